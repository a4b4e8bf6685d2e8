"""What a person sees of a run under way."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LINE_SECONDS = 10.0  # between two lines where there is no terminal


class Watcher(ABC):
    """Is told of every round; the loop does not care what it does with it."""

    @abstractmethod
    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Take note that `ended` of `rounds` rounds are over, with the last loss evaluated."""


class Silent(Watcher):
    """Shows nothing."""

    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Show nothing."""


class Bar(Watcher, AbstractContextManager["Bar"]):
    """A progress bar on a terminal, a line now and then elsewhere: rounds, rate, loss, ETA.

    Args:
        title: what is running.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None, rate="", loss="")
        self._first: tuple[float, int] | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Move the bar, or print a line when it is time for one."""
        now = time.monotonic()
        began, ended_before = self._first = self._first or (now, ended)
        rate = (ended - ended_before) / (now - began) if now > began else 0.0
        shown_rate = f"{rate:,.0f} rounds/s" if rate >= 10 else f"{rate:.2f} rounds/s"
        shown_loss = "" if loss is None else f"loss {loss:.4g}"
        self._bar.update(
            self._task, completed=ended, total=rounds, rate=shown_rate, loss=shown_loss
        )
        if self._bar.disable and now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            left = f"{(rounds - ended) / rate:,.0f} s left" if rate else ""
            line = f"{self._title}: round {ended} of {rounds}, {shown_rate}, {shown_loss}, {left}"
            print(line, file=sys.stderr, flush=True)
