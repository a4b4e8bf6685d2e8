"""Running a sweep: what is finished is left alone, and everything else is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from fedtide.atomic_io import make_folder, write_frame, write_yaml
from fedtide.errors import InvalidInputError
from fedtide.simulation.interruption import Interrupted, Interruption
from fedtide.simulation.run_folder import RunFolder
from fedtide.sweep.configurations import Configuration, SweepRun
from fedtide.sweep.job import Job, OnFinished, Outcome, failure, note_failure
from fedtide.sweep.local_workers import cores, run_here, run_in_processes
from fedtide.sweep.preflight import check_runs
from fedtide.sweep.result_table import RESULTS, results
from fedtide.sweep.sweep_progress import SweepProgress
from fedtide.sweep.sweep_spec import BEST, FILE, Sweep

Progress = Callable[[SweepProgress], None]
"""Is given the board whenever something on it has changed."""

Done = Callable[[SweepRun, Path], None]
"""Is given each run that has ended, finished or failed, now or earlier, and its folder."""


def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    strict: bool = False,
    resume: bool = True,
    progress: Progress | None = None,
    done: Done | None = None,
) -> pl.DataFrame:
    """Run all members, each in a folder of its own below `out`, and return one row per run.

    The rows are also written to `out/results.parquet`. The same call goes on with a sweep that was
    interrupted or killed, and with one that has grown: runs that are finished are left alone, and
    so are those that diverged.

    Args:
        sweep: what to run.
        out: the folder.
        workers: how many runs at a time; None: one for each core.
        ray: the address of a Ray cluster that runs them; None: processes of this machine.
        strict: whether the first run that fails ends the others and is raised. All runs are then
            prepared once before anything is written. Otherwise a failure is noted in the run's
            folder and the others go on.
        resume: whether `out` may hold what an earlier call left there.
        progress: is given the board whenever something on it has changed.
        done: is given each run that has ended, also those that had before.

    Raises:
        InvalidInputError: runs that cannot be run, or an `out` that holds something else.
        Interrupted: the sweep was asked to end; what was running has been saved.
    """
    out = Path(out)
    check_runs(sweep.members, out, strict, resume)
    running = _Running(sweep, out, workers, ray, strict, resume, done, SweepProgress(progress))
    try:
        running.run()
    finally:
        frame = running.frame()
        if not sweep.alone and out.is_dir():
            write_frame(out / RESULTS, frame)
    return frame


@dataclass
class _Running:
    """A sweep under way: what `run_sweep` was given, and what has come of it."""

    sweep: Sweep
    out: Path
    workers: int | None
    ray: str | None
    strict: bool
    resume: bool
    done: Done | None
    board: SweepProgress
    members: dict[str, SweepRun] = field(default_factory=dict)
    best: set[str] = field(default_factory=set)
    wrong: Outcome | None = None
    interrupted: str = ""

    def run(self) -> None:
        """Run what is known, and what the strategy asks for."""
        if not self.sweep.alone:
            make_folder(self.out)
            write_yaml(self.out / FILE, dict(self.sweep.plain))
        if self.sweep.strategy is None:
            self._batch(self.sweep.members)
            return
        found = self.sweep.strategy.search(self.sweep.settings, self._scores)
        self.best = {choice.best.label for choice in found if choice.best is not None}
        write_yaml(self.out / BEST, self.sweep.chosen(found))

    def frame(self) -> pl.DataFrame:
        """Return one row per run so far; a strategy says which of them won."""
        members = self.members or {member.path: member for member in self.sweep.members}
        frame = results(members.values(), self.out)
        if self.sweep.strategy is None:
            return frame
        settings = frame["run"].str.replace("/seed-[^/]*$", "")
        return frame.insert_column(1, settings.is_in(sorted(self.best)).alias("best"))

    def _scores(self, settings: Sequence[Configuration]) -> list[float]:
        """Run settings with all seeds and return the mean loss of each."""
        if not settings:
            return []
        seeds, name = self.sweep.seeds, self.sweep.name
        by_seed = [[setting.member(seed, name) for setting in settings] for seed in seeds]
        members = [member for group in by_seed for member in group]
        self._batch(members)
        frame = results(members, self.out)
        if "loss" not in frame.columns:
            return [float("inf")] * len(settings)
        losses = frame["loss"].cast(pl.Float64).fill_null(float("inf")).to_numpy()
        return [float(loss) for loss in np.reshape(losses, (len(seeds), -1)).mean(axis=0)]

    def _batch(self, members: Sequence[SweepRun]) -> None:
        """Run these members, as far as they have not been run."""
        for member in members:
            self.members.setdefault(member.path, member)
            self.board.add(member.path, member.experiment.rounds)
        jobs = [self._job(member) for member in members if not self._settled(member)]
        if self.ray is None:
            workers = min(self.workers or cores(), len(jobs))
            if workers <= 1:
                run_here(jobs, self.board, self._over, self._stopped)
            else:
                self._side_by_side(partial(run_in_processes, jobs, workers))
        else:
            from fedtide.sweep.ray_workers import run_on_ray

            self._side_by_side(partial(run_on_ray, jobs, self.ray, self.workers))
        self._raise()

    def _side_by_side(
        self, run: Callable[[SweepProgress, OnFinished, Callable[[], bool]], None]
    ) -> None:
        with Interruption() as interruption:

            def stopped() -> bool:
                if interruption.asked:
                    self.interrupted = "interrupted"
                return self._stopped()

            run(self.board, self._over, stopped)

    def _stopped(self) -> bool:
        return self.wrong is not None or bool(self.interrupted)

    def _raise(self) -> None:
        """Raise what ended the batch before its time."""
        if self.wrong is not None and self.wrong.trace:
            raise RuntimeError(f"a run of the sweep failed\n{self.wrong.trace}")
        if self.wrong is not None:
            raise InvalidInputError(self.wrong.sentence)
        if self.interrupted and self.sweep.alone:
            raise Interrupted(self.interrupted)
        if self.interrupted:
            how = "with --resume " if self.strict else ""
            raise Interrupted(f"interrupted and saved; the same command {how}goes on")

    def _job(self, member: SweepRun) -> Job:
        return Job(member.path, member.experiment, self.out / member.path, self.resume)

    def _settled(self, member: SweepRun) -> bool:
        """Say whether there is nothing left to run, and put it on the board."""
        folder = RunFolder(self.out / member.path)
        note = None if self.strict else failure(folder)
        if folder.finished:
            self.board.over(member.path, "done")
        elif note is not None and note["permanent"]:
            self.board.over(member.path, "failed")
        else:
            return False
        self._tell(member)
        return True

    def _tell(self, member: SweepRun) -> None:
        if self.done is not None:
            self.done(member, self.out / member.path)

    def _over(self, job: Job, outcome: Outcome) -> None:
        """Take note of a run that has ended."""
        self.board.over(job.path, outcome.state)
        if outcome.state == "interrupted":
            self.interrupted = self.interrupted or outcome.sentence
            return
        if outcome.state == "failed" and self.strict:
            self.wrong = self.wrong or outcome
            return
        if outcome.state == "failed":
            note_failure(job, outcome)
        self._tell(self.members[job.path])
