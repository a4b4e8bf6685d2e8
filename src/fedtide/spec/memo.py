"""What one call of `simulate`, one sweep or one worker computes once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

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
