"""Progress of runs in the terminal: a bar for all runs together and one for each active run."""

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

_LINE_SECONDS = 10.0  # between two lines of output without a terminal
_MAX_BARS = 16  # active runs with a bar of their own
_MAX_NAME_LENGTH = 48


class ProgressBars(AbstractContextManager["ProgressBars"]):
    """Shows rounds, rate, loss and remaining time: as bars in a terminal, else as a line at times.

    Args:
        title: the name of what is running.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._total = self._bars.add_task(title, total=None, status="")
        self._by_run: dict[str, TaskID] = {}
        self._start: tuple[float, int] | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, progress: SweepProgress) -> None:
        """Show the current progress."""
        now = time.monotonic()
        started, before = self._start = self._start or (now, progress.ended)
        rate = (progress.ended - before) / (now - started) if now > started else 0.0
        status = _format_status(progress, rate)
        self._bars.update(
            self._total, completed=progress.ended, total=progress.rounds, status=status
        )
        if len(progress.runs) > 1:
            self._update_runs(progress)
        if self._bars.disable and now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            left = f", {(progress.rounds - progress.ended) / rate:,.0f} s left" if rate else ""
            line = f"{self._title}: round {progress.ended} of {progress.rounds}, {status}{left}"
            print(line, file=sys.stderr, flush=True)

    def _update_runs(self, progress: SweepProgress) -> None:
        running = dict(list(progress.running().items())[:_MAX_BARS])
        for path in self._by_run.keys() - running.keys():
            self._bars.remove_task(self._by_run.pop(path))
        for path, run in running.items():
            if path not in self._by_run:
                name = path if len(path) <= _MAX_NAME_LENGTH else f"…{path[1 - _MAX_NAME_LENGTH :]}"
                self._by_run[path] = self._bars.add_task(f"  {name}", total=run.rounds, status="")
            status = _format_loss(run.loss)
            self._bars.update(self._by_run[path], completed=run.ended, status=status)


def _format_status(progress: SweepProgress, rate: float) -> str:
    """Return the speed with the loss of a single run, or with the counts of several runs."""
    speed = f"{rate:,.0f} rounds/s" if rate >= 10 else f"{rate:.2f} rounds/s"
    if len(progress.runs) == 1:
        loss = _format_loss(next(iter(progress.runs.values())).loss)
        return f"{speed}, {loss}" if loss else speed
    counts = {state: progress.count(state) for state in ("done", "running", "failed")}
    listed = ", ".join(f"{n} {state}" for state, n in counts.items() if n or state != "failed")
    return f"{listed} of {len(progress.runs)} runs, {speed}"


def _format_loss(loss: float | None) -> str:
    return "" if loss is None else f"loss {loss:.4g}"
