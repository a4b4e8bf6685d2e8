"""Safe YAML loading: plain data or an error, whatever the text contains."""

from __future__ import annotations

import re
from typing import Any

import yaml

from fedtide.errors import first_line

_DEEPEST = 100
"""How deep data may be nested; the interpreter's own limit differs from process to process."""


class YamlError(ValueError):
    """A text is not YAML or not plain data; the message says why."""


def parse(text: str) -> Any:
    """Return the plain data that a YAML text describes; nothing in it is executed.

    Raises:
        YamlError: not YAML, an impossible value (such as month 99), a duplicate key, data that
            contain themselves or are nested more than 100 deep (less where the call stack is
            almost full), or aliases that expand to far more data than the text.

    >>> parse("{rounds: 5, rates: &r [0.1, 0.2], again: *r}")
    {'rounds': 5, 'rates': [0.1, 0.2], 'again': [0.1, 0.2]}
    >>> parse("{on: 0.9, start: off, compile: false}")
    {'on': 0.9, 'start': 'off', 'compile': False}
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise YamlError("not YAML" + (f" in line {mark.line + 1}" if mark else "")) from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except YamlError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # raised by conversions of the safe loader: dates, numbers of 5000 digits, `!!int x`
        raise YamlError(f"not YAML ({first_line(error, 80)})") from None


class _Loader(yaml.SafeLoader):
    """The safe loader, with limits on what a document may expand to."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, unless it lies too deep."""
        if self._depth == _DEEPEST:
            raise YamlError("nested too deeply")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the data, unless aliases expand to far more than the text."""
        if _size(node, {}) > 10 * self.index + 1000:
            raise YamlError("not plain: its aliases expand to more than ten times its length")
        return super().construct_document(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number of at most 1024 bits."""
        number = int(super().construct_yaml_int(node))
        if number.bit_length() > 1024:
            raise YamlError(f"not plain: a whole number of {number.bit_length()} bits")
        return number


_BOOL = "tag:yaml.org,2002:bool"
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
# As in YAML 1.2, only true and false are booleans: `on` and `off` are parameter names.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), [*"tTfF"]
)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values with every alias expanded."""
    if id(node) not in known:
        known[id(node)] = -1  # being computed
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated(node)
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    if known[id(node)] < 0:
        raise YamlError("not plain: an alias refers to data that contain it")
    return known[id(node)]


def _refuse_repeated(node: yaml.MappingNode) -> None:
    """Refuse duplicate keys, whose first value would be lost silently."""
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise YamlError(f"not YAML in line {line}, the key {key.value!r:.60} is duplicate")
            seen.add(key.value)
