"""The progress of one or several runs, and the bars that show it."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from rich import progress as rich_progress
from rich.console import Console

from fedtide.activity import COMPILING
from fedtide.simulation.callbacks import Callback, RunView

RunState = Literal["waiting", "running", "done", "failed", "interrupted"]

_STATUS_SECONDS = 0.2  # every status costs time that grows with the number of runs
_LINE_SECONDS = 10.0  # between lines of output if there is no terminal
_MAX_BARS = 16  # active runs with a bar of their own
_MAX_NAME = 48


@dataclass
class RunProgress:
    """Progress of one run.

    Args:
        rounds: its total number of rounds.
        ended: how many rounds have ended.
        state: its state.
        loss: the last loss evaluated.
        activity: what it is busy with while no round ends; empty otherwise.
    """

    rounds: int
    ended: int = 0
    state: RunState = "waiting"
    loss: float | None = None
    activity: str = ""

    @property
    def status(self) -> str:
        """The activity of the run, or its last loss."""
        return self.activity or ("" if self.loss is None else f"loss {self.loss:.4g}")


@dataclass(frozen=True)
class RunStatus:
    """The status of a run: after a round, or in an activity in which no round ends.

    Args:
        activity: such as "compiling the local steps"; empty when it has ended.
        ended: how many rounds have ended; None before the run starts and in an activity.
        loss: the last loss evaluated.
    """

    activity: str = ""
    ended: int | None = None
    loss: float | None = None


class StatusReporter(Callback):
    """Reports the status of a run.

    Args:
        on_status: called when the run starts, after rounds, at most once per `_STATUS_SECONDS`, and
            when a long activity begins or ends.
    """

    def __init__(self, on_status: Callable[[RunStatus], None]) -> None:
        self._on_status = on_status
        self._last = 0.0

    def on_activity(self, activity: str) -> None:
        self._on_status(RunStatus(activity))

    def on_start(self, run: RunView) -> None:
        self._report(run)

    def on_round_end(self, run: RunView) -> None:
        if time.monotonic() - self._last > _STATUS_SECONDS:
            self._report(run)

    def _report(self, run: RunView) -> None:
        self._last = time.monotonic()
        loss = run.metrics[-1].get("loss") if run.metrics else None
        self._on_status(RunStatus(ended=run.round, loss=loss))


class Progress:
    """Progress of several runs.

    Args:
        on_change: called with this object after every change.

    Attributes:
        runs: the progress of each run, by its name or folder.
    """

    def __init__(self, on_change: Callable[[Progress], None] | None = None) -> None:
        self._on_change = on_change
        self.runs: dict[str, RunProgress] = {}

    def add(self, name: str, rounds: int) -> None:
        """Add a run unless it is known already."""
        self.runs.setdefault(name, RunProgress(rounds))

    def start(self, name: str) -> None:
        """Mark a run as running."""
        self.runs[name].state = "running"
        self._notify()

    def set_status(self, name: str, status: RunStatus) -> None:
        """Set the status of a run."""
        run = self.runs[name]
        run.activity = status.activity
        if status.ended is not None:
            run.ended, run.loss = status.ended, status.loss
        self._notify()

    def finish(self, name: str, state: RunState) -> None:
        """Set the final state of a run; if it is done, all of its rounds have ended."""
        run = self.runs[name]
        run.state, run.activity = state, ""
        run.ended = run.rounds if state == "done" else run.ended
        self._notify()

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change(self)


class ProgressBars(AbstractContextManager["ProgressBars"]):
    """Shows rounds, speed, loss and remaining time: as bars in a terminal or notebook, else lines.

    The speed is that of the last half minute, beginning with the first round that ends here.

    Args:
        title: the name of what is running.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        console = Console(stderr=True)
        is_notebook = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self.is_interactive = console.is_terminal or is_notebook
        self._bars = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=24),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[status]}"),
            rich_progress.TimeElapsedColumn(),
            console=console,
            disable=not self.is_interactive,
            get_time=time.monotonic,
        )
        self._total = self._bars.add_task(title, total=None, status="")
        self._by_run: dict[str, rich_progress.TaskID] = {}
        self._last_line = time.monotonic()
        self._announced = False

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_interactive:  # before 14.3, rich ends a disabled display with an empty line
            self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the current progress."""
        runs = progress.runs.values()
        ended, rounds = sum(run.ended for run in runs), sum(run.rounds for run in runs)
        task = self._bars.tasks[self._total]
        if ended > task.completed and any(run.state != "waiting" for run in runs):
            self._bars.update(self._total, completed=ended, total=rounds)
        status = _format_status(progress, task)
        if not self.is_interactive:
            self._print_line(f"{self._title}: round {ended:,} of {rounds:,}", status)
            return
        self._bars.start()
        self._bars.update(self._total, total=rounds, status=status)
        if len(runs) > 1:
            self._update_runs(progress)

    def _print_line(self, start: str, status: str) -> None:
        """Print a line every `_LINE_SECONDS`, and when compiling starts, which takes long."""
        is_new = COMPILING in status and not self._announced
        self._announced |= is_new
        if is_new or time.monotonic() - self._last_line > _LINE_SECONDS:
            self._last_line = time.monotonic()
            print(", ".join(filter(None, (start, status))), file=sys.stderr, flush=True)

    def _update_runs(self, progress: Progress) -> None:
        running = {name: run for name, run in progress.runs.items() if run.state == "running"}
        running = dict(list(running.items())[:_MAX_BARS])
        for name in self._by_run.keys() - running.keys():
            self._bars.remove_task(self._by_run.pop(name))
        for name, run in running.items():
            if name not in self._by_run:
                short = name if len(name) <= _MAX_NAME else f"…{name[1 - _MAX_NAME :]}"
                self._by_run[name] = self._bars.add_task(f"  {short}", total=run.rounds, status="")
            self._bars.update(self._by_run[name], completed=run.ended, status=run.status)


def _format_status(progress: Progress, task: rich_progress.Task) -> str:
    """Return a status text: the activity or state, speed, loss or counts, and time left."""
    runs = list(progress.runs.values())
    speed = "" if task.speed is None else f"{task.speed:,.{0 if task.speed >= 10 else 2}f} rounds/s"
    if len(runs) == 1:
        is_over = runs[0].state in ("failed", "interrupted")
        parts = [speed, runs[0].state if is_over else runs[0].status]
    else:
        counts = {s: sum(run.state == s for run in runs) for s in ("done", "running", "failed")}
        listed = ", ".join(f"{n} {state}" for state, n in counts.items() if n or state != "failed")
        parts = [f"{listed} of {len(runs)} runs", speed]
    if task.time_remaining:
        parts.append(f"{timedelta(seconds=int(task.time_remaining))} left")
    return ", ".join(filter(None, parts))
