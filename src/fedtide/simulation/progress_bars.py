"""Progress of runs: a bar for all runs together and one for each active run."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from rich import progress as rich_progress
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fedtide.activity import COMPILING
from fedtide.simulation.run_progress import Progress, RunProgress

_LINE_SECONDS = 10.0  # between lines of output if there is no terminal
_MAX_BARS = 16  # active runs with a bar of their own
_MAX_NAME_LENGTH = 48
_PACE_SECONDS = 1.0  # of measurement before a remaining time is shown


class ProgressBars(AbstractContextManager["ProgressBars"]):
    """Shows rounds, speed, loss and remaining time: as bars in a terminal or notebook, else lines.

    Args:
        title: the name of what is running.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        console = Console(stderr=True)
        self.is_interactive = console.is_terminal or _is_notebook(console)
        self._bars = rich_progress.Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not self.is_interactive,
        )
        self._total = self._bars.add_task(title, total=None, status="")
        self._by_run: dict[str, TaskID] = {}
        self._pace = Pace()
        self._last_line = time.monotonic()
        self._announced = ""

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_interactive:  # before 14.3, rich ends a disabled display with an empty line
            self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the current progress."""
        runs, now = progress.runs, time.monotonic()
        running = {name: run for name, run in runs.items() if run.state == "running"}
        self._pace.update(
            now,
            sum(run.observed for run in runs.values()),
            bool(running) and all(run.activity == COMPILING for run in running.values()),
        )
        status = _format_status(list(runs.values()), self._pace)
        ended, rounds = (sum(getattr(r, n) for r in runs.values()) for n in ("ended", "rounds"))
        if not self.is_interactive:
            self._print_line(now, ended, rounds, status)
            return
        self._bars.start()
        self._bars.update(self._total, completed=ended, total=rounds, status=status)
        if len(runs) > 1:
            self._update_runs(running)

    def _print_line(self, now: float, ended: int, rounds: int, status: str) -> None:
        """Print a line every `_LINE_SECONDS`, and when compiling starts, which takes long."""
        is_compiling = COMPILING in status
        is_new = is_compiling and not self._announced
        self._announced = status if is_compiling else self._announced
        if is_new or now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            line = ", ".join(filter(None, (f"round {ended:,} of {rounds:,}", status)))
            print(f"{self._title}: {line}", file=sys.stderr, flush=True)

    def _update_runs(self, running: Mapping[str, RunProgress]) -> None:
        running = dict(list(running.items())[:_MAX_BARS])
        for path in self._by_run.keys() - running.keys():
            self._bars.remove_task(self._by_run.pop(path))
        for path, run in running.items():
            if path not in self._by_run:
                name = path if len(path) <= _MAX_NAME_LENGTH else f"…{path[1 - _MAX_NAME_LENGTH :]}"
                self._by_run[path] = self._bars.add_task(f"  {name}", total=run.rounds, status="")
            status = run.activity or _format_loss(run.loss)
            self._bars.update(self._by_run[path], completed=run.ended, status=status)


class Pace:
    """The speed of runs, measured after the first round and without the time spent compiling.

    >>> pace = Pace()
    >>> for second, rounds, is_compiling in [(0, 0, True), (60, 1, False), (62, 5, False)]:
    ...     pace.update(second, rounds, is_compiling)
    >>> pace.rate, pace.seconds_left(100)
    (2.0, 50.0)
    """

    def __init__(self) -> None:
        self._first: int | None = None  # rounds observed when measuring began
        self._rounds = 0
        self._seconds = 0.0
        self._last = 0.0
        self._was_compiling = False

    def update(self, now: float, observed: int, is_compiling: bool) -> None:
        """Take the time in seconds, the rounds observed so far, and whether a run is compiling."""
        if self._first is None:
            self._first = observed or None
        else:
            self._rounds = observed - self._first
            self._seconds += 0.0 if self._was_compiling else now - self._last
        self._last, self._was_compiling = now, is_compiling

    @property
    def rate(self) -> float | None:
        """Rounds per second; None until rounds have been measured."""
        is_known = self._rounds > 0 and self._seconds > 0
        return self._rounds / self._seconds if is_known else None

    def seconds_left(self, rounds: int) -> float | None:
        """Return how long these rounds will take; None until a second has been measured."""
        if self.rate is None or self._seconds < _PACE_SECONDS:
            return None
        return rounds / self.rate


def format_seconds(seconds: float) -> str:
    """Return a duration in the two largest units that matter.

    >>> [format_seconds(s) for s in (0.2, 59.6, 200, 3700, 203_324)]
    ['1 s', '1 min 0 s', '3 min 20 s', '1 h 1 min', '56 h 28 min']
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _is_notebook(console: Console) -> bool:
    """Return whether bars can be drawn in a notebook, for which rich needs ipywidgets."""
    return console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None


def _format_status(runs: Sequence[RunProgress], pace: Pace) -> str:
    """Return a status text: the activity or state, speed, loss or counts, and time left."""
    parts = []
    if len(runs) == 1:
        parts.append(runs[0].activity)
        if runs[0].state in ("failed", "interrupted"):
            parts.append(runs[0].state)
    else:
        counts = {s: sum(run.state == s for run in runs) for s in ("done", "running", "failed")}
        listed = ", ".join(f"{n} {state}" for state, n in counts.items() if n or state != "failed")
        parts.append(f"{listed} of {len(runs)} runs")
    if pace.rate is not None:
        digits = 0 if pace.rate >= 10 else 2
        parts.append(f"{pace.rate:,.{digits}f} rounds/s")
    if len(runs) == 1:
        parts.append(_format_loss(runs[0].loss))
    left = sum(run.left for run in runs)
    seconds = pace.seconds_left(left) if left else None
    parts.append("" if seconds is None else f"{format_seconds(seconds)} left")
    return ", ".join(filter(None, parts))


def _format_loss(loss: float | None) -> str:
    return "" if loss is None else f"loss {loss:.4g}"
