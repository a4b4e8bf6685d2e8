"""Ending a run in good order when somebody asks for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from fedtide.errors import Interrupted as Interrupted


class Interruption:
    """While it is entered, Ctrl-C and SIGTERM only set `asked`; a second Ctrl-C ends at once.

    Signals can be caught in the main thread only; elsewhere nothing changes.

    Attributes:
        asked: whether the run has been asked to end.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise Interrupted("ended at once; --resume goes on from the last checkpoint")
        self.asked = True
