"""The code behind classes and functions: the modules that define it, and their hashes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.import_paths import LIBRARIES, import_object
from fedtide.spec.content import hash_file, is_network
from fedtide.spec.visit import Kind, visit
from fedtide.validation import expand_home


def hash_files(thing: Any, path: str = "") -> dict[str, str]:
    """Return the hash of every file that an object names, by the dotted field that names it."""
    return {
        name: hash_file(expand_home(part))
        for name, kind, part in visit(thing, path)
        if kind is Kind.FILE and expand_home(part).is_file()
    }


def hash_code(things: Iterable[Any]) -> dict[str, str]:
    """Return the hash of every module outside of the libraries that defines what objects use."""
    modules = {
        module
        for thing in things
        for _, kind, part in visit(thing)
        if kind in (Kind.SPEC, Kind.CODE)
        for module in _modules(part)
    }
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules)}
    return {name: hash_file(file) for name, file in files.items() if file and Path(file).is_file()}


def _modules(thing: Any) -> set[str]:
    """Return the modules that define the behaviour of an object, a class or a function."""
    if isinstance(thing, str):
        try:
            thing = import_object(thing, "path")
        except InvalidInputError:  # other text with a colon, or fails again when used
            return set()
    if is_network(thing):
        defined = [cls for layer in thing.modules() for cls in type(layer).__mro__]
    elif isinstance(thing, type) or not hasattr(thing, "__qualname__"):
        cls: type = thing if isinstance(thing, type) else type(thing)
        defined = [*cls.__mro__]
    else:
        defined = [thing]
    names = {getattr(one, "__module__", None) or "builtins" for one in defined}
    return {name for name in names if name.partition(".")[0] not in LIBRARIES}
