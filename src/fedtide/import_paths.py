"""Classes and functions by their import path, such as "package.module:Class".

Importing a module runs it, and so does calling a function, so an import path is code. A file that
comes without code must not run any of the file's choice: `os:system` takes a command, and functions
of installed packages load pickles or compile text. So an import path names what the user's own
modules define (Python files that are not installed: in the working directory, on PYTHONPATH or in a
package in editable mode), fedtide's classes and functions, or a network of a few packages. It is
not a sandbox: an own module is imported, whatever it does.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from contextlib import suppress
from functools import lru_cache, reduce
from importlib.metadata import PathDistribution
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

from fedtide.errors import InvalidInputError, first_line

LIBRARIES = sys.stdlib_module_names | {"fedtide", "torch"}
"""Packages whose code is never a user's own."""

NETWORKS = ("torch.nn", "torchvision.models", "timm", "transformers", "peft")
"""Installed packages whose classes of networks an import path may name."""

FUNCTIONS = ("torch.nn", "torchvision.models")
"""Those whose functions it may name, too; functions of others load whatever a file says."""

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
            leads to neither a module of the user's own nor a network or loss of a known package.

    >>> import_object("torch.nn:Linear", "type")
    <class 'torch.nn.modules.linear.Linear'>
    >>> import_object("os:system", "type")
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: type: 'os:system' is part of Python's standard library; ...
    """
    module, _, name = path.partition(":")
    if module == "__main__":
        return _find_in_main(name, path, field)
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        if not _may_import(module):
            raise _refusal(module, path, field)
        *classes, last = name.split(".")
        imported: Any = importlib.import_module(module)
        found = getattr(reduce(_get_class, classes, imported), last)
    except InvalidInputError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise InvalidInputError(
            f"{field}: {path!r:.100} cannot be imported ({first_line(error, with_type=True)}); "
            f"give package.module:Class, installed or in the working directory"
        ) from error
    finally:
        sys.path.remove(folder)
    if isinstance(found, ModuleType):
        raise InvalidInputError(f"{field}: {path!r:.100} is a module; give a class or function")
    _require_known_home(found, module, path, field)
    return found


def _find_in_main(name: str, path: str, field: str) -> Any:
    """Return what the notebook or script of this process defines, not what it imports."""
    found = getattr(sys.modules["__main__"], name, None)
    if found is None or home_module(found) != "__main__":
        raise InvalidInputError(
            f"{field}: {path!r:.100} is defined by a notebook or script, and not by this one; run "
            "its definition (source.py in the run's folder), or move it to a module"
        )
    return found


def home_module(thing: Any) -> str | None:
    """Return the name of the module that defines a class or function, seen through decorators."""
    name: str | None = getattr(inspect.unwrap(thing), "__module__", None)
    return name


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
    if file.is_relative_to(get_path("stdlib")):  # such as `test`, which no list of names has
        return True
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


def _may_import(module: str) -> bool:
    """Return whether a module may be imported; its package is found without running it."""
    top = module.partition(".")[0]
    if top in LIBRARIES or _is_in(module, NETWORKS):
        return _is_in(module, ("fedtide", *NETWORKS))
    spec = find_spec(top)
    if spec is None:
        return True  # importing it says what is missing
    folders = spec.submodule_search_locations or ()
    files = [spec.origin] if spec.has_location else [f"{one}/__init__.py" for one in folders]
    return not all(is_installed_file(Path(str(file))) for file in files)


def _require_known_home(found: Any, module: str, path: str, field: str) -> None:
    """Raise InvalidInputError if something is defined elsewhere than an import path may lead to.

    A module also holds what it imports, so what counts is where a class or function is defined.
    """
    is_class, is_function = isinstance(found, type), inspect.isroutine(found)
    home = str(home_module(found)) if is_class or is_function else module
    if not is_installed(home):
        return
    from torch import nn  # takes a second, and an audit needs no network

    is_network = is_class and issubclass(found, nn.Module) and _is_in(home, NETWORKS)
    is_plain_function = is_function and "." not in path.partition(":")[2]
    if _is_in(home, ("fedtide",)) and (is_class or is_function):
        return
    if not is_network and not (is_plain_function and _is_in(home, FUNCTIONS)):
        raise _refusal(home, path, field)


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _refusal(module: str, path: str, field: str) -> InvalidInputError:
    is_standard = module.partition(".")[0] in sys.stdlib_module_names
    part = "Python's standard library" if is_standard else "an installed package"
    return InvalidInputError(
        f"{field}: {path!r:.100} is part of {part}; give a class or function that a module of your "
        "own defines (a Python file in the working directory, on PYTHONPATH or in a package "
        f"installed in editable mode), or a network of {', '.join(NETWORKS[:-1])} or {NETWORKS[-1]}"
    )


def import_path_of(thing: Any, in_main: bool = False) -> str:
    """Return the import path of a class or function.

    Args:
        thing: the class or function.
        in_main: whether it may be one of a notebook or script whose source can be read; only that
            process can find it at its path.

    Raises:
        InvalidInputError: it has none, such as a lambda, or `import_object` would refuse it.

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
    is_main = module in ("__main__", "__mp_main__")
    if found is not thing or (is_main and not (in_main and source_of(thing))):
        raise InvalidInputError(
            f"out: {name} of {module} has no import path; define it at the top level of a module "
            "(a .py file that is imported) or of a cell of a notebook, give an object instead of a "
            "class or function, or run without a folder"
        )
    if is_main:
        return f"__main__:{name}"
    _require_known_home(thing, str(module), f"{module}:{name}", "out")
    return f"{module}:{name}"


def source_of(thing: Any) -> str:
    """Return the source of a class or function of the main module; empty if there is none.

    In a notebook it is the last cell that defines this name: `inspect` does not find its classes.
    """
    for cell in reversed(getattr(sys.modules["__main__"], "In", ())):
        with suppress(SyntaxError):
            for node in ast.parse(cell).body:
                if getattr(node, "name", None) == thing.__qualname__:
                    decorators = getattr(node, "decorator_list", [])
                    first = min(part.lineno for part in [node, *decorators])
                    return "\n".join(cell.splitlines()[first - 1 : node.end_lineno])
    with suppress(OSError, TypeError):
        return inspect.getsource(thing)
    return ""


def code_name(thing: Any) -> str:
    """Return the module and the name of a class or function, also of those of a script.

    Raises:
        InvalidInputError: these do not identify it, or its code is not in any file.
    """
    module, name = thing.__module__.replace("__mp_main__", "__main__"), thing.__qualname__
    interactive = module == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    local = "<" in name and not module.startswith("torch.")  # a lambda, or what a function defines
    return import_path_of(thing, in_main=True) if local or interactive else f"{module}:{name}"
