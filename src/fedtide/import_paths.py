"""Classes and functions by their import path, such as "package.module:Class".

Importing a module runs it, and so does calling a function, so an import path is code. This module
keeps a file without accompanying code from reaching functions of the standard library, such as
`os:system` with a command as its argument. It is not a sandbox: a module in the working directory
or in an installed package is imported, whatever it does.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from contextlib import suppress
from functools import lru_cache, reduce
from importlib.metadata import PathDistribution
from pathlib import Path
from types import ModuleType
from typing import Any

from fedtide.errors import InvalidInputError, first_line

LIBRARIES = sys.stdlib_module_names | {"fedtide", "torch"}
"""Packages whose code is never a user's own."""

_PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def is_import_path(value: object) -> bool:
    """Return whether a value is a string of the form package.module:Name.

    >>> is_import_path("torch.nn:Linear"), is_import_path("cuda:0"), is_import_path(3)
    (True, False, False)
    """
    return isinstance(value, str) and _PATH.fullmatch(value) is not None


def import_object(path: str, field: str) -> Any:
    """Return the class, function or object at an import path; the working directory comes first.

    Args:
        path: "package.module:Name", or "package.module:Class.name".
        field: the field that an error names.

    Raises:
        InvalidInputError: there is no such module or name, importing the module fails, or the path
            leads into the standard library or a module other than the one it names.

    >>> import_object("fedtide.errors:InvalidInputError", "type")
    <class 'fedtide.errors.InvalidInputError'>
    >>> import_object("os:system", "type")
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: type: 'os:system' is part of Python's standard library; ...
    """
    module, _, name = path.partition(":")
    _require_no_standard_library(module, path, field)
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        *classes, last = name.split(".")
        imported: Any = importlib.import_module(module)
        found = getattr(reduce(_get_class, classes, imported), last)
    except Exception as error:  # a user's module may raise anything
        raise InvalidInputError(
            f"{field}: {path!r:.100} cannot be imported ({first_line(error, with_type=True)}); "
            f"give package.module:Class, installed or in the working directory"
        ) from error
    finally:
        sys.path.remove(folder)
    if isinstance(found, ModuleType):
        raise InvalidInputError(f"{field}: {path!r:.100} is a module; give a class or function")
    if isinstance(found, type) or inspect.isroutine(found):
        _require_no_standard_library(str(home_module(found)), path, field)
    return found


def home_module(thing: Any) -> str | None:
    """Return the name of the module that defines a class or function, seen through decorators."""
    name: str | None = getattr(inspect.unwrap(thing), "__module__", None)
    return name


def is_own(cls: type) -> bool:
    """Return whether a class is defined outside of fedtide.

    >>> is_own(InvalidInputError), is_own(int)
    (False, True)
    """
    return cls.__module__.partition(".")[0] != "fedtide"


def is_installed(module: str) -> bool:
    """Return whether an imported module is part of fedtide, PyTorch or another package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.partition(".")[0] in LIBRARIES or file is None or is_installed_file(Path(file))


def is_installed_file(file: Path) -> bool:
    """Return whether a module's file belongs to an installed package rather than to the user.

    >>> [is_installed_file(Path(file)) for file in ("site-packages/numpy/linalg.py", "a.py")]
    [True, False]
    """
    if file.suffix != ".py" or not {"site-packages", "dist-packages"}.isdisjoint(file.parts):
        return True
    file = file.absolute()
    return any(
        file.relative_to(folder).as_posix() in _installed_in(folder) for folder in file.parents
    )


@lru_cache(maxsize=1024)
def _installed_in(folder: Path) -> frozenset[str]:
    """Return the files of the packages that `pip install --target` has put into a folder.

    Packages in editable mode are elsewhere, and count as the user's own.
    """
    found: set[str] = set()
    with suppress(OSError):  # the folder cannot be read
        for package in folder.glob("*.dist-info"):
            with suppress(Exception):  # its list of files is damaged
                found.update(map(str, PathDistribution(package).files or ()))
    return frozenset(found)


def _get_class(owner: Any, name: str) -> type:
    """Return the class of this name, whose attributes an import path may name."""
    found = getattr(owner, name)
    if not isinstance(found, type):
        raise TypeError(f"{name} is not a class")
    return found


def _require_no_standard_library(module: str, path: str, field: str) -> None:
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise InvalidInputError(
            f"{field}: {path!r:.100} is part of Python's standard library; give a class or "
            "function of a module of your own, or of an installed package"
        )


def import_path_of(thing: Any) -> str:
    """Return the import path of a class or function.

    Raises:
        InvalidInputError: it has none, such as a lambda or a class defined in a notebook or script.

    >>> import_path_of(InvalidInputError)
    'fedtide.errors:InvalidInputError'
    >>> import_path_of(lambda: 0)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: out: <lambda> of ... has no import path; ...
    """
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", type(thing).__name__)
    try:
        found = reduce(getattr, name.split("."), sys.modules[str(module)])
    except (KeyError, AttributeError):
        found = None
    if found is not thing or module in ("__main__", "__mp_main__"):
        raise InvalidInputError(
            f"out: {name} of {module} has no import path; define it at the top level of a module "
            "(a .py file that is imported), give an object instead of a class or function, or run "
            "without a folder"
        )
    return f"{module}:{name}"
