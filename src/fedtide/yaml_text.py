"""Conversion of plain data to YAML text and back; nothing in a text is ever executed."""

from __future__ import annotations

import re
from typing import Any

import yaml

from fedtide.errors import first_line

_WHOLE = re.compile("[0-9]{1,18}")
_DEEPEST = 100
"""How deeply data may be nested; the interpreter's own limit varies between processes."""


class YamlError(ValueError):
    """A text is not YAML or not plain data; the message says why."""


def parse(text: str) -> Any:
    """Return the plain data that a YAML text describes; nothing in it is executed.

    Plain scalars are interpreted by the core schema of YAML 1.2 (section 10.3.2): 010 is ten, 1e-3
    is a number, and `on`, 1:30 and 2026-05-01 are text.

    Raises:
        YamlError: not YAML, a value that its tag does not allow, a duplicate key, data that contain
            themselves or are nested more than 100 levels deep (fewer if the call stack is almost
            full), or aliases that expand to far more data than the text.

    >>> parse("{rounds: 5, rates: &r [0.1, 0.2], again: *r}")
    {'rounds': 5, 'rates': [0.1, 0.2], 'again': [0.1, 0.2]}
    >>> parse("{on: 0.9, start: off, compile: false}")
    {'on': 0.9, 'start': 'off', 'compile': False}
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = [getattr(error, name, None) for name in ("context", "problem")]
        reason = ", ".join(filter(None, said)) or first_line(error)
        where = f" in line {mark.line + 1}" if mark else ""
        raise YamlError(f"not YAML{where} ({reason:.200})") from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except YamlError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # raised by the safe loader's conversions, such as of a 5000-digit number or `!!int x`
        raise YamlError(f"not YAML ({first_line(error, 80)})") from None


def dump(plain: Any, **layout: Any) -> str:
    """Return plain data as YAML that both `parse` and readers of YAML 1.1 read as the same data.

    Args:
        plain: mappings, lists, strings, numbers, booleans and None.
        layout: further options of `yaml.dump`.

    >>> print(dump({"name": "12e5", "seed": 3, "lr": 1e-3}), end="")
    name: '12e5'
    seed: 3
    lr: 0.001
    """
    text = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **layout)
    return str(text)


class _Loader(yaml.SafeLoader):
    """The safe loader with the core schema and limits on what a document may expand to."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, unless it is nested too deeply."""
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
        text = str(self.construct_scalar(node))
        number = int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if number.bit_length() > 1024:
            raise YamlError(f"not plain: a whole number of {number.bit_length()} bits")
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    """The safe dumper; it quotes text that YAML 1.1 or the core schema would read as a number."""


_CORE = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", [*"-+."]),
    ("merge", r"<<", ["<"]),  # of YAML 1.1; `<<: *defaults` is in wide use
)
"""The tags of plain scalars in the core schema, and the characters with which these begin."""

_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _CORE:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), _first
        )


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values after expanding every alias."""
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
    """Refuse duplicate keys, as the first value would be lost silently."""
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            is_number = key.style is None and _WHOLE.fullmatch(key.value)
            name = str(int(key.value)) if is_number else key.value
            if name in seen:
                line = key.start_mark.line + 1
                hint = "" if name == key.value else f" as the number {name}: quote it if it is text"
                raise YamlError(
                    f"not YAML in line {line}, the key {key.value!r:.60} is duplicate{hint}"
                )
            seen.add(name)
