"""What a process is busy with while no round ends, for those who show its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

ActivityListener = Callable[[str], None]
"""Takes what begins, such as "measuring trainers"; an empty string when it has ended."""

PREPARING = "preparing the problem"
MEASURING = "measuring trainers"
COMPILING = "compiling the local steps"
STARTING_WORKERS = "starting the workers"

_listeners: list[ActivityListener] = []
_under_way: list[str] = []


@contextmanager
def activity(what: str) -> Iterator[None]:
    """Tell the listeners what is done in this context, and what was under way before at its end."""
    _under_way.append(what)
    try:
        _tell(what)
        yield
    finally:
        _under_way.remove(what)
        _tell(_under_way[-1] if _under_way else "")


@contextmanager
def listen(listener: ActivityListener) -> Iterator[None]:
    """Tell `listener` of every activity in this context, also of those in other threads.

    >>> with listen(print), activity("measuring trainers"):
    ...     pass
    measuring trainers
    <BLANKLINE>
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _tell(what: str) -> None:
    for listener in tuple(_listeners):
        listener(what)
