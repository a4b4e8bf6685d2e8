"""The code behind classes and functions: the modules that define it, and their hashes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.import_paths import LIBRARIES, import_object, is_installed_file
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
    """Return the hash of every module that defines a class or function that objects use.

    These are the modules outside of the libraries, and the user's own modules that they import.
    """
    modules = {
        module
        for thing in things
        for _, kind, part in visit(thing)
        if kind in (Kind.SPEC, Kind.CODE)
        for module in _modules(part)
    }
    files: dict[str, Path] = {}
    for name in modules:
        _add_module(name, getattr(sys.modules.get(name), "__file__", None), files)
    return {name: hash_file(files[name]) for name in sorted(files)}


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


def _add_module(name: str, file: str | Path | None, files: dict[str, Path]) -> None:
    """Add the file of a module, and those of the user's own modules that it imports."""
    if file is None or not Path(file).is_file() or name in files:
        return
    files[name] = Path(file)
    if not is_installed_file(files[name]):
        for imported in _imports(name, files[name], hash_file(file)):
            _add_module(imported, _own_file(imported), files)


@lru_cache(maxsize=512)
def _imports(name: str, file: Path, _sha256: str) -> set[str]:
    """Return the modules that the code of a module may import: all that its imports name."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (SyntaxError, ValueError):  # reported when the module is imported
        return found
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -(node.level - 1) or None] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    parents = {part.rpartition(".")[0] for part in found}
    return {one for one in found | parents if one}


def _own_file(module: str) -> Path | None:
    """Return the file of a user's own module without importing it; None for installed ones."""
    top, *rest = module.split(".")
    if top in LIBRARIES:
        return None
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None or (spec.origin and is_installed_file(Path(spec.origin))):
        return None
    if not rest:
        return None if spec.origin is None else Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *rest)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file() and not is_installed_file(file):
                return file
    return None
