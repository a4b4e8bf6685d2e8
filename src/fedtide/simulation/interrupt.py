"""Ending a run in good order when somebody asks for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import ClassVar, Self

from fedtide.errors import Interrupted as Interrupted


class Interruption:
    """While it is entered, Ctrl-C and SIGTERM only set `asked`; a second Ctrl-C ends at once.

    Signals can be caught in the main thread only. One that is entered in another thread has been
    asked when the one of the main thread has.
    """

    _in_main: ClassVar[Interruption | None] = None

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, object] = {}
        self._outer: Interruption | None = None

    @property
    def asked(self) -> bool:
        """Whether the run has been asked to end."""
        return self._asked or (self._outer is not None and self._outer.asked)

    def ask(self) -> None:
        """Ask the run to end, as a signal would."""
        self._asked = True

    def __enter__(self) -> Self:
        self._outer = Interruption._in_main
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear)
            Interruption._in_main = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before:
            Interruption._in_main = self._outer
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._asked and number == signal.SIGINT:
            raise Interrupted("ended at once; --resume goes on from the last checkpoint")
        self.ask()
