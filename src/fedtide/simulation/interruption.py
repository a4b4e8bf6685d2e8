"""Signals that end a run cleanly."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from fedtide.errors import Interrupted


class Interruption:
    """A context in which Ctrl-C and SIGTERM only set `requested`; a second Ctrl-C ends at once.

    Only the main thread can handle signals; in other threads the context does nothing.

    Attributes:
        requested: whether the run was asked to end.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise Interrupted("ended at once", "continue from the last checkpoint with resume=True")
        self.requested = True
