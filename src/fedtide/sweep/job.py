"""A run of a sweep on any worker, and its progress; only its folder records how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedtide.atomic_io import make_folder, write_json, write_yaml
from fedtide.errors import Interrupted
from fedtide.simulation.callbacks import Callback, RunView
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.early_end import Failure
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run_folder import Resume, RunFolder
from fedtide.simulation.run_progress import RunProgress, RunState
from fedtide.simulation.runner import execute

_STATUS_SECONDS = 0.2  # every status costs time that grows with the number of runs of a sweep

MAX_ATTEMPTS = 3
"""How often a run may lose its worker process before it counts as failed."""


@dataclass(frozen=True)
class Job:
    """A run to execute.

    Args:
        path: its folder below the sweep's.
        experiment: what it runs.
        folder: its full folder.
        resume: whether to continue from what the folder holds; "force": even if data or code have
            changed since it began.
        alike: how many runs of one process take the same local steps, on average; see `Run`.
        losses: how often its worker process was lost.
    """

    path: str
    experiment: Experiment
    folder: Path
    resume: Resume = True
    alike: float = 1
    losses: int = 0

    def retry(self) -> Job:
        """Return the job for another attempt after its worker process was lost."""
        return replace(self, resume=self.resume or True, losses=self.losses + 1)


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


@dataclass(frozen=True)
class Outcome:
    """How a run ended; by default it is done.

    Args:
        failure: why it failed; None: it did not.
        interrupted: where it was interrupted and saved; empty: it was not.
    """

    failure: Failure | None = None
    interrupted: str = ""

    @property
    def state(self) -> RunState:
        """The final state of the run."""
        if self.interrupted:
            return "interrupted"
        return "done" if self.failure is None else "failed"


INTERRUPTED = Outcome(interrupted="interrupted")

OnStatus = Callable[[RunStatus], None]
"""Called with the status of a run when it starts, after rounds, at most once per
`_STATUS_SECONDS`, and when a long activity begins or ends."""

OnFinished = Callable[[Job, Outcome], None]
"""Called with every run that has ended."""


class SweepProgress:
    """Progress of every run of a sweep.

    Args:
        on_change: called with this object after every change.

    Attributes:
        runs: the progress of each run, by its folder.
    """

    def __init__(self, on_change: Callable[[SweepProgress], None] | None = None) -> None:
        self._on_change = on_change
        self.runs: dict[str, RunProgress] = {}

    def add(self, path: str, rounds: int) -> None:
        """Add a run unless it is known already."""
        self.runs.setdefault(path, RunProgress(rounds))

    def start(self, path: str) -> None:
        """Mark a run as running."""
        self.runs[path].start()
        self._notify()

    def set_status(self, path: str, status: RunStatus) -> None:
        """Set the status of a run."""
        run = self.runs[path]
        run.activity = status.activity
        if status.ended is not None:
            run.update(status.ended, status.loss)
        self._notify()

    def finish(self, path: str, state: RunState) -> None:
        """Set the final state of a run."""
        self.runs[path].finish(state)
        self._notify()

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change(self)


class _StatusReporter(Callback):
    """Reports the status of a run."""

    def __init__(self, on_status: OnStatus) -> None:
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


def run_job(job: Job, on_status: OnStatus, cluster: RayCluster | None = None) -> Outcome:
    """Run a job to its end and return its outcome; exceptions become failures.

    With a cluster, its workers train the clients.
    """
    try:
        with suppress(OSError):  # a folder that cannot be written is an error of `execute`
            RunFolder(job.folder).failure.unlink()
        reporter = _StatusReporter(on_status)
        execute(job.experiment, job.folder, job.resume, [reporter], cluster, job.alike)
    except Interrupted as error:
        return Outcome(interrupted=error.what)
    except Exception as error:  # a user's model may raise anything; the other runs continue
        return Outcome(Failure.of(error))
    return Outcome()


def lost_worker(job: Job, how: str) -> Outcome:
    """Return the outcome of a job whose worker process was lost too often."""
    return Outcome(
        Failure(
            f"workers: {job.path} lost its process {job.losses} times ({how}); if memory is short, "
            "use fewer workers"
        )
    )


def write_failure(job: Job, failure: Failure) -> None:
    """Record in a run's folder why it failed, even if it never started."""
    folder = RunFolder(job.folder)
    make_folder(folder.path)
    if not folder.experiment.exists():
        write_yaml(folder.experiment, job.experiment.to_dict())
    write_json(folder.failure, asdict(failure))
