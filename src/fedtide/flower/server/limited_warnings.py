"""Warnings that clients can cause by the thousand, of which only some are logged."""

from __future__ import annotations

from logging import getLogger

log = getLogger("flwr")

_LOGGED = 10


class LimitedWarnings:
    """Logs the first ten warnings of a kind, and only the number of the others.

    Args:
        further: the text about the others, with %d for their number.
    """

    def __init__(self, further: str) -> None:
        self._further, self._count = further, 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, unless there were too many."""
        self._count += 1
        if self._count <= _LOGGED:
            log.warning(text, *arguments)

    def close(self) -> None:
        """Log how many were only counted, and begin again."""
        if self._count > _LOGGED:
            log.warning(self._further, self._count - _LOGGED)
        self._count = 0
