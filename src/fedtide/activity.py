"""What a process is busy with while no round ends, to be shown as progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

ActivityListener = Callable[[str], None]
"""Called with an activity that begins, such as "measuring trainers"; with "" when it ends."""

PREPARING = "preparing the problem"
MEASURING = "measuring trainers"
COMPILING = "compiling the local steps"
STARTING_WORKERS = "starting the workers"

_listeners: list[ActivityListener] = []
_under_way: list[str] = []


@contextmanager
def activity(what: str) -> Iterator[None]:
    """Announce an activity for the duration of this context; afterwards, the one around it."""
    _under_way.append(what)
    try:
        _tell(what)
        yield
    finally:
        _under_way.remove(what)
        _tell(_under_way[-1] if _under_way else "")


@contextmanager
def listen(listener: ActivityListener) -> Iterator[None]:
    """Tell `listener` about every activity in this context, including those in other threads.

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
