"""A run of a sweep on any worker; only its folder records how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fedtide.atomic_io import make_folder, write_json, write_yaml
from fedtide.errors import Interrupted
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.early_end import Failure
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.progress import RunState, RunStatus, StatusReporter
from fedtide.simulation.run_folder import Resume, RunFolder
from fedtide.simulation.runner import execute

MAX_ATTEMPTS = 3
"""How often a run may lose its worker process before it counts as failed."""


@dataclass(frozen=True)
class Job:
    """A run to execute.

    Args:
        path: its folder below the sweep's.
        experiment: what it runs.
        folder: its full folder.
        force: whether to continue even if data or code have changed since it began.
        alike: how many runs of one process take the same local steps, on average; see `Run`.
    """

    path: str
    experiment: Experiment
    folder: Path
    force: bool = False
    alike: float = 1

    def run(
        self, on_status: Callable[[RunStatus], None], cluster: RayCluster | None = None
    ) -> Outcome:
        """Run to the end and return the outcome; exceptions become failures.

        With a cluster, its workers train the clients.
        """
        reporter = StatusReporter(on_status)
        resume: Resume = "force" if self.force else True  # also after the loss of a worker
        try:
            execute(self.experiment, self.folder, resume, [reporter], cluster, self.alike)
        except Interrupted as error:
            return Outcome(interrupted=error.what)
        except Exception as error:  # a user's model may raise anything; the other runs continue
            return Outcome(Failure.of(error))
        return Outcome()

    def write_failure(self, failure: Failure) -> None:
        """Record in the run's folder why it failed, even if it never started."""
        folder = RunFolder(self.folder)
        make_folder(folder.path)
        if not folder.experiment.exists():
            write_yaml(folder.experiment, self.experiment.to_dict())
        write_json(folder.failure, asdict(failure))


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

    @classmethod
    def lost(cls, job: Job, how: str) -> Outcome:
        """Return the outcome of a job whose worker process was lost too often."""
        sentence = (
            f"workers: {job.path} lost its process {MAX_ATTEMPTS} times ({how}); if memory is "
            "short, use fewer workers"
        )
        return cls(Failure(sentence))


INTERRUPTED = Outcome(interrupted="interrupted")

OnFinished = Callable[[Job, Outcome], None]
"""Called with every run that has ended."""
