"""By what objects, files and code are recognised, and what a process computes only once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.import_paths import LIBRARIES, import_object, source_of
from fedtide.spec.content import fingerprint, hash_file, is_network
from fedtide.spec.visit import Kind, visit
from fedtide.validation import expand_home

T = TypeVar("T")

_KEPT = 2  # prepared problems


class Session:
    """Results that are kept while neither data nor code change, such as fingerprints of objects.

    Attributes:
        prepared: the last prepared problems, each with its key.
    """

    def __init__(self) -> None:
        self.prepared: list[tuple[Any, Any]] = []
        self._hashes: dict[int, tuple[Any, str]] = {}
        self._results: dict[Any, Any] = {}

    @classmethod
    def current(cls) -> Session:
        """Return the session that is open; an empty one outside of any."""
        return _open.get() or cls()

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """Return `compute()`, which is called only once for equal keys."""
        if key not in self._results:
            self._results[key] = compute()
        return self._results[key]  # type: ignore[no-any-return]

    def hash_once(self, thing: Any, compute: Callable[[Any], str]) -> str:
        """Return `compute(thing)`, which is called only once for each object."""
        if id(thing) not in self._hashes:  # with the object, so that no other gets its id
            self._hashes[id(thing)] = thing, compute(thing)
        return self._hashes[id(thing)][1]

    def prepare(self, key: Any, compute: Callable[[], T]) -> T:
        """Return `compute()`, or what it returned for an equal key among the last two."""
        for known, found in reversed(self.prepared):
            if known == key:
                return found  # type: ignore[no-any-return]
        found = compute()
        self.prepared[:] = [*self.prepared, (key, found)][-_KEPT:]
        return found


PROCESS = Session()
"""The session of the whole process, for what cannot change unseen."""

_open: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def session() -> Iterator[Session]:
    """Open a session, or continue the one that is open."""
    if (opened := _open.get()) is not None:
        yield opened
        return
    token = _open.set(Session())
    try:
        yield Session.current()
    finally:
        _open.reset(token)


def fingerprint_once(thing: Any) -> str:
    """Return the fingerprint of an object, which is hashed only once in a session."""
    return Session.current().hash_once(thing, fingerprint)


class Same:
    """Equals only what stands for the same object, and keeps the object alive."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other._thing is self._thing

    def __hash__(self) -> int:
        return id(self._thing)


def key(thing: Any) -> tuple[Any, ...]:
    """Return a hashable key, equal for equal objects: data by content, files by their version.

    Code is recognised by its name or object, and a network by its layers and values; what is
    opaque equals only itself.

    >>> from fedtide.participation import Bernoulli
    >>> key(Bernoulli(rates=[0.5, 1.0])) == key(Bernoulli(rates=[0.5, 1.0]))
    True
    """
    return tuple((path, kind, _token(kind, part)) for path, kind, part in visit(thing))


def is_changeable(thing: Any) -> bool:
    """Return whether an object involves code or opaque parts, which may change unseen."""
    return any(
        kind in (Kind.CODE, Kind.OPAQUE)
        or (kind is Kind.SPEC and type(part).__module__.partition(".")[0] != "fedtide")
        for _, kind, part in visit(thing)
    )


def _token(kind: Kind, part: Any) -> Any:
    """Return a hashable object that is equal for equal parts of this kind."""
    if kind is Kind.SPEC:
        return type(part)
    if kind is Kind.FILE:
        return str(part), *_versions(expand_home(part))
    if kind is Kind.PLAIN:
        if part is None or isinstance(part, str | int | float):
            return type(part), part
        is_long = isinstance(part, list | tuple) and {*map(type, part)} in ({int}, {float})
        return fingerprint(np.asarray(part) if is_long else part)
    if kind is Kind.OPAQUE or (kind is Kind.CODE and not is_network(part)):
        return part if isinstance(part, str) else Same(part)
    try:
        content = fingerprint_once(part)
    except InvalidInputError:  # samples of other types
        return Same(part)
    return (content, *(type(layer) for layer in part.modules())) if is_network(part) else content


def _versions(path: Path) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of a file, or of the files in a folder."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files if file.is_file()]
    except (OSError, ValueError):  # not a path
        return []
    return [(name, status.st_size, status.st_mtime_ns) for name, status in found]


def hash_files(thing: Any, path: str = "") -> dict[str, str]:
    """Return the hash of every file that an object names, by the dotted field that names it."""
    return {
        name: hash_file(expand_home(part))
        for name, kind, part in visit(thing, path)
        if kind is Kind.FILE and expand_home(part).is_file()
    }


def hash_code(things: Iterable[Any]) -> dict[str, str]:
    """Return the hash of every module outside of the libraries that defines what objects use.

    Of a notebook, it is the hash of the classes and functions that they use.
    """
    things = list(things)
    modules = {*map(_module, _code(things))}
    own = sorted(name for name in modules if name.partition(".")[0] not in LIBRARIES)
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in own}
    found = {name: hash_file(file) for name, file in files.items() if file and Path(file).is_file()}
    if "__main__" not in found and (source := main_source(things)):
        found["__main__"] = hashlib.sha256(source.encode()).hexdigest()
    return found


def main_source(things: Iterable[Any]) -> str:
    """Return the source of what objects use and the notebook or script itself defines."""
    own = [thing for thing in _code(things) if _module(thing) == "__main__"]
    return "\n\n\n".join(dict.fromkeys(filter(None, map(source_of, own))))


def _module(thing: Any) -> str:
    return getattr(thing, "__module__", None) or "builtins"


def _code(things: Iterable[Any]) -> Iterator[Any]:
    """Yield the classes and functions that define the behaviour of objects."""
    for thing in things:
        for _, kind, part in visit(thing):
            if kind in (Kind.SPEC, Kind.CODE):
                yield from _definitions(part)


def _definitions(thing: Any) -> Iterable[Any]:
    """Return the classes and functions that define an object, a class or a function."""
    if isinstance(thing, str):
        try:
            thing = import_object(thing, "path")
        except InvalidInputError:  # other text with a colon, or fails again when used
            return []
    if is_network(thing):
        return [cls for layer in thing.modules() for cls in type(layer).__mro__]
    if isinstance(thing, type) or not hasattr(thing, "__qualname__"):
        cls: type = thing if isinstance(thing, type) else type(thing)
        return cls.__mro__
    return [thing]
