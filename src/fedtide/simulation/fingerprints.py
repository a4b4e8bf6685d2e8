"""Fingerprints of all that a run reads and imports, so that a resumed run notices changes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, get_args

from torch import nn

from fedtide.configurable import field_types
from fedtide.content_hash import hash_file, is_data, once
from fedtide.errors import InvalidInputError, error_prefix
from fedtide.import_paths import LIBRARIES, import_object, is_import_path, is_installed_file
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.task_cache import content_key
from fedtide.validation import expand_home

Fingerprints = Mapping[str, Any]
"""SHA-256 hashes. `data`: of the problem's data, or None; `files`: of the files that the
participation names; `code`: of the modules of imported classes and functions, and of the user's
own modules that these import."""


def fingerprint_experiment(experiment: Experiment) -> Fingerprints:
    """Return the SHA-256 of the data, files and code that an experiment uses.

    Raises:
        InvalidInputError: the data cannot be read.
    """
    with error_prefix("problem"):
        data = once(content_key(experiment.problem), experiment.problem.fingerprint)
    parts = ("participation", "selection", "dropout", "problem", "algorithm", "local")
    named = {name: getattr(experiment, name) for name in parts}
    reading = {name: named[name] for name in parts[:3]}
    return {"data": data, "files": hash_files(reading), "code": hash_code(named.values())}


def list_changes(before: Fingerprints, now: Fingerprints) -> list[str]:
    """Return what differs between two fingerprints of the same experiment, in words.

    >>> list_changes({"data": "a", "code": {"m": "b"}}, {"data": "a", "code": {"m": "c"}})
    ['the code of m']
    """
    changes = ["the data of the problem"] if before.get("data") != now.get("data") else []
    for kind, words in (("files", "the file of"), ("code", "the code of")):
        old, new = before.get(kind, {}), now.get(kind, {})
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        changes += [f"{words} {name}" for name in names]
    return changes


def hash_files(parts: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of every file that objects, or objects in them, name, by dotted field."""
    found = {}
    for name, part in parts.items():
        for path, thing in _walk(name, part):
            for field, kind in _field_types(thing).items():
                named = getattr(thing, field) if Path in (kind, *get_args(kind)) else None
                if isinstance(named, str | Path) and expand_home(named).is_file():
                    found[f"{path}.{field}"] = hash_file(expand_home(named))
    return found


def hash_code(parts: Iterable[Any]) -> dict[str, str]:
    """Return the hash of the source of every module that defines a class or function used.

    Args:
        parts: objects, or plain data that name classes by their import paths.
    """
    walked = (thing for part in parts for _, thing in _walk("", part))
    modules = {module for thing in walked for module in _modules(thing)}
    files: dict[str, Path] = {}
    for name in modules:
        _add_module(name, getattr(sys.modules.get(name), "__file__", None), files)
    return {name: hash_file(files[name]) for name in sorted(files)}


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


def _field_types(thing: Any) -> Mapping[str, Any]:
    """Return the annotations of the fields of a dataclass object; {} for anything else."""
    cls: type = type(thing)
    try:
        return field_types(cls) if is_dataclass(cls) else {}
    except NameError:  # an import for type checkers only
        return {}


def _walk(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object and everything in it, each with its dotted name."""
    yield path, thing
    cls: type = type(thing)
    if is_data(thing):
        return
    if is_dataclass(cls):
        for field in fields(cls):
            yield from _walk(f"{path}.{field.name}", getattr(thing, field.name))
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _walk(f"{path}.{key}", value)
    elif isinstance(thing, list | tuple) and not all(isinstance(x, int | float) for x in thing[:1]):
        for i, value in enumerate(thing):
            yield from _walk(f"{path}.{i}", value)


def _modules(thing: Any) -> set[str]:
    """Return the modules that define an object's behaviour, except those of libraries."""
    if is_import_path(thing):
        try:
            thing = import_object(thing, "path")
        except InvalidInputError:  # other text with a colon, or fails again when used
            return set()
    if isinstance(thing, nn.Module):
        named = [cls for module in thing.modules() for cls in type(module).__mro__]
    elif isinstance(thing, type):
        named = [*thing.__mro__]
    elif callable(thing) and hasattr(thing, "__qualname__"):
        named = [thing]
    else:
        cls: type = type(thing)
        named = [*cls.__mro__] if is_dataclass(cls) else []
    names = {getattr(one, "__module__", None) or "builtins" for one in named}
    return {name for name in names if name.partition(".")[0] not in LIBRARIES}
