"""What a person sees of runs under way: one line for all, and one for each that is running."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedtide.sweep.sweep_progress import SweepProgress

_LINE_SECONDS = 10.0  # between two lines where there is no terminal
_SHOWN = 16  # running runs that have a line of their own
_WIDEST = 48


class View(AbstractContextManager["View"]):
    """Progress bars on a terminal, a line now and then elsewhere: rounds, rate, loss, ETA.

    Args:
        title: what is running.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task(title, total=None, said="")
        self._each: dict[str, TaskID] = {}
        self._first: tuple[float, int] | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> View:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, board: SweepProgress) -> None:
        """Show how far the runs are."""
        now = time.monotonic()
        began, before = self._first = self._first or (now, board.ended)
        rate = (board.ended - before) / (now - began) if now > began else 0.0
        said = _said(board, rate)
        self._bars.update(self._all, completed=board.ended, total=board.rounds, said=said)
        if len(board.runs) > 1:
            self._show_each(board)
        if self._bars.disable and now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            left = f", {(board.rounds - board.ended) / rate:,.0f} s left" if rate else ""
            line = f"{self._title}: round {board.ended} of {board.rounds}, {said}{left}"
            print(line, file=sys.stderr, flush=True)

    def _show_each(self, board: SweepProgress) -> None:
        running = dict(list(board.running())[:_SHOWN])
        for path in self._each.keys() - running.keys():
            self._bars.remove_task(self._each.pop(path))
        for path, one in running.items():
            if path not in self._each:
                name = path if len(path) <= _WIDEST else f"…{path[1 - _WIDEST :]}"
                self._each[path] = self._bars.add_task(f"  {name}", total=one.rounds, said="")
            self._bars.update(self._each[path], completed=one.ended, said=_loss(one.loss))


def _said(board: SweepProgress, rate: float) -> str:
    """Return the rate, and the loss of a single run or the counts of several."""
    speed = f"{rate:,.0f} rounds/s" if rate >= 10 else f"{rate:.2f} rounds/s"
    if len(board.runs) == 1:
        loss = _loss(next(iter(board.runs.values())).loss)
        return f"{speed}, {loss}" if loss else speed
    counts = {"done": board.count("done"), "running": board.count("running")}
    counts |= {"failed": failed} if (failed := board.count("failed")) else {}
    named = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{named} of {len(board.runs)} runs, {speed}"


def _loss(loss: float | None) -> str:
    return "" if loss is None else f"loss {loss:.4g}"
