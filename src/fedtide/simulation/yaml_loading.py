"""Reading YAML that anybody may have written: plain data, or a complaint, whatever it holds."""

from __future__ import annotations

import re
from typing import Any

import yaml


class NotUsable(ValueError):
    """A text that is no YAML, or no plain data; says what is wrong with it."""


def parse(text: str) -> Any:
    """Return the plain data that a YAML text describes; nothing in it is executed.

    Raises:
        NotUsable: no YAML, a value that its type does not have (such as a 99th month), a key that
            is there twice, data that contain themselves, or aliases that blow up.

    >>> parse("{rounds: 5, rates: &r [0.1, 0.2], again: *r}")
    {'rounds': 5, 'rates': [0.1, 0.2], 'again': [0.1, 0.2]}
    >>> parse("{on: 0.9, start: off, compile: false}")
    {'on': 0.9, 'start': 'off', 'compile': False}
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NotUsable("not YAML" + (f" in line {mark.line + 1}" if mark else "")) from None
    except RecursionError:
        raise NotUsable("nested too deeply") from None
    except NotUsable:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # what the safe loader's own conversions raise: dates, numbers of 5000 digits, `!!int x`
        raise NotUsable(f"not YAML ({str(error).splitlines()[0]:.80})") from None


class _Loader(yaml.SafeLoader):
    """The safe loader, which looks at what it is going to make before it makes it."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the data, unless there are far more of them than the text is long."""
        if _size(node, {}) > 10 * self.index + 1000:
            raise NotUsable("not plain: its aliases make more than ten times as much of it")
        return super().construct_document(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number, unless it is longer than any other number."""
        number = int(super().construct_yaml_int(node))
        if number.bit_length() > 1024:
            raise NotUsable(f"not plain: a whole number of {number.bit_length()} bits")
        return number


_BOOL = "tag:yaml.org,2002:bool"
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
# As in YAML 1.2, only true and false are truth values: `on` and `off` are names of parameters.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), [*"tTfF"]
)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values there are when every alias is written out."""
    if id(node) not in known:
        known[id(node)] = -1  # until it is known
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated(node)
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    if known[id(node)] < 0:
        raise NotUsable("not plain: an alias stands inside of what it refers to")
    return known[id(node)]


def _refuse_repeated(node: yaml.MappingNode) -> None:
    """Refuse a key that is there twice: the first value would be forgotten in silence."""
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise NotUsable(
                    f"not YAML in line {line}, the key {key.value!r:.60} is there twice"
                )
            seen.add(key.value)
