"""Classes and functions by their import path, such as "package.module:Class"."""

from __future__ import annotations

import importlib
import re
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from fedtide.errors import InvalidInputError, first_line

_PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def is_import_path(value: object) -> bool:
    """Return whether a value is text of the form package.module:Name.

    >>> is_import_path("torch.nn:Linear"), is_import_path("cuda:0"), is_import_path(3)
    (True, False, False)
    """
    return isinstance(value, str) and _PATH.fullmatch(value) is not None


def import_object(path: str, field: str) -> Any:
    """Return the class or function at an import path; the working directory is searched first.

    Args:
        path: "package.module:Name".
        field: the field that an error names.

    Raises:
        InvalidInputError: there is no such module or name, or importing the module fails.

    >>> import_object("fedtide.errors:InvalidInputError", "type")
    <class 'fedtide.errors.InvalidInputError'>
    """
    module, _, name = path.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as error:  # a user's module may raise anything
        raise InvalidInputError(
            f"{field}: {path!r:.100} cannot be imported ({first_line(error, with_type=True)}); "
            f"give package.module:Class, installed or in the working directory"
        ) from error
    finally:
        sys.path.remove(folder)


def import_path_of(thing: Any) -> str:
    """Return the import path of a class or function.

    Raises:
        InvalidInputError: it has none, as a lambda or what a notebook or script defines.

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
            "(a .py file that is imported), or run without a folder"
        )
    return f"{module}:{name}"
