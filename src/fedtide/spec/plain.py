"""Objects as plain data, from which `build` makes equal ones, and how plain data differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.import_paths import code_name, import_path_of
from fedtide.spec.annotations import is_flat
from fedtide.spec.content import data_type, fingerprint, is_network
from fedtide.spec.fields import Field
from fedtide.spec.identity import fingerprint_once
from fedtide.spec.visit import ANYTHING, Kind, children, is_tensor, kind_of

_LISTED = 10_000
"""Arrays with more numbers are described by a fingerprint where no object is built from them."""


def label(thing: Any) -> str:
    """Return a text that tells an object in memory apart from all others, and says its name.

    The label of a network changes with its values.

    >>> label(lambda: 0).partition(" at ")[0]
    '<lambda>'
    """
    name = getattr(thing, "__name__", type(thing).__name__)
    values = f", {fingerprint(dict(thing.state_dict()))[:8]}" if is_network(thing) else ""
    return f"{name} at {id(thing):#x}{values}"


def without_addresses(text: str) -> str:
    """Return a text without what tells labels of the same name apart."""
    return re.sub(r" at 0x[0-9a-f]+(, [0-9a-f]{8})?", "", text)


def to_plain(
    thing: Any, name_type: Callable[[type], Any], in_memory: bool = False, field: Field = ANYTHING
) -> Any:
    """Return plain data from which `build` makes an equal object.

    Functions, and classes without a `type` name, are written as import paths. Tables, data sets,
    networks and mappings of arrays are described by a fingerprint, which is equal for equal data
    but which `build` refuses.

    Args:
        thing: the object.
        name_type: returns the `type` of a class; None if the field that holds it implies it.
        in_memory: whether a label stands for what plain data cannot describe, and a fingerprint for
            large arrays; otherwise such objects are refused.
        field: the field that holds the object.

    Raises:
        InvalidInputError: an object that plain data cannot describe.
    """
    try:
        return _to_plain(thing, name_type, in_memory, field)
    except InvalidInputError:
        if not in_memory:
            raise
        return label(thing)


def _to_plain(
    thing: Any,
    name_type: Callable[[type], Any],
    in_memory: bool,
    field: Field,
) -> Any:
    def inner(part: Any, holder: Field) -> Any:
        return to_plain(part, name_type, in_memory, holder)

    kind = kind_of(thing, field)
    if kind is Kind.FILE:
        return str(thing)
    if kind is Kind.DATA or is_network(thing):
        return describe(thing)
    if kind is Kind.CODE:
        return thing if isinstance(thing, str) else import_path_of(thing, in_main=not in_memory)
    if kind is Kind.SPEC:
        name = inner(name_type(type(thing)), ANYTHING)
        head = {} if name is None else {"type": name}
        return head | {name: inner(part, holder) for name, part, holder in children(thing, field)}
    if kind is Kind.OPAQUE:
        raise InvalidInputError(
            f"out: a {type(thing).__name__} object cannot be written to an experiment file; "
            "describe it by name, or run without a folder"
        )
    if isinstance(thing, Mapping):
        return {
            key.item() if isinstance(key, np.generic) else key: inner(value, field)
            for key, value in thing.items()
        }
    if isinstance(thing, list | tuple):
        return list(thing) if is_flat(thing) else [inner(part, field) for part in thing]
    if isinstance(thing, np.ndarray | np.generic) or is_tensor(thing):
        return describe(thing) if in_memory and prod(thing.shape) > _LISTED else thing.tolist()
    return thing


def describe(thing: Any) -> dict[str, Any]:
    """Return the description of data or a network given in memory for an experiment file.

    >>> describe({"x": np.zeros(3), "y": [0, 1, 1]})["in_memory"]
    'dict'
    """
    name = data_type(thing)
    about: dict[str, Any]
    if name == "torch.Module":
        about = {"in_memory": code_name(type(thing)), "structure": str(thing)}
    elif name in ("numpy.ndarray", "torch.Tensor"):
        about = {"in_memory": type(thing).__name__}
    else:
        rows = len(next(iter(thing.values())) if name == "dict" else thing)
        about = {"in_memory": name, "rows": rows}
    return about | {"sha256": fingerprint_once(thing)}


def canonical(plain: Any) -> str:
    """Return the same text for plain data that differ only in the order of keys; 7 and "7" are one.

    >>> canonical({"rates": {7: 0.1, "ann": 0.2}})
    '{"rates": {"7": 0.1, "ann": 0.2}}'
    """
    with_text_keys = json.loads(json.dumps(plain, default=str))
    return json.dumps(with_text_keys, sort_keys=True)


def diff(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted keys in which two pieces of plain data differ, with both values.

    >>> list(diff({"rounds": 5, "local": {"lr": 0.1}}, {"rounds": 6, "local": {"lr": 0.1}}))
    ['rounds (was 5, is 6)']
    """
    if old == new:
        return
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        yield f"{path} (was {old!r:.40}, is {new!r:.40})"
    elif old.get("in_memory") and old.get("in_memory") == new.get("in_memory"):
        drawn = "; new layers draw new weights: use torch.manual_seed, or give the class"
        hint = drawn if "structure" in old and old["structure"] == new["structure"] else ""
        yield f"{path} (other content than in the folder{hint})"
    else:
        for key in dict.fromkeys([*old, *new]):
            yield from diff(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
