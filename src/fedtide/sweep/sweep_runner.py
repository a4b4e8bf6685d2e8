"""Runs a sweep: finished runs are kept, all others are executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from joblib.externals.loky import cpu_count

from fedtide.atomic_io import write_frame, write_yaml
from fedtide.errors import Interrupted, InvalidInputError, RunFailedError
from fedtide.locking import LOCK_FILE, lock_folder
from fedtide.simulation.cluster.ray_cluster import open_cluster
from fedtide.simulation.early_end import Failure, Interruption
from fedtide.simulation.experiment import BUILDER
from fedtide.simulation.experiment_files import read_yaml
from fedtide.simulation.inputs import count_alike, fingerprint_experiment
from fedtide.simulation.progress import Progress
from fedtide.simulation.run_folder import Resume, RunFolder, folder_errors
from fedtide.spec import session
from fedtide.sweep.grid import Configuration, SweepRun
from fedtide.sweep.job import Job, OnFinished, Outcome
from fedtide.sweep.local_workers import run_in_processes, run_sequentially
from fedtide.sweep.result_table import RESULTS_FILE, read_results
from fedtide.sweep.sweep_spec import BEST_FILE, SWEEP_FILE, Sweep
from fedtide.validation import expand_home, require_whole_number
from fedtide.yaml_text import dump

_PROCESSES_OF_A_GPU = 2
"""Two on a GPU: one prepares its next round while the other's kernels run; each takes memory."""

OnProgress = Callable[[Progress], None]
"""Called with the progress of all runs when the state of one changes, and after rounds."""

OnRunEnd = Callable[[SweepRun, Path], None]
"""Called with each run that finished or failed, in this or an earlier call, and its folder."""


@session()
def run_sweep(
    sweep: Sweep,
    out: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    cluster: str | None = None,
    strict: bool = False,
    resume: Resume = True,
    progress: OnProgress | None = None,
    done: OnRunEnd | None = None,
    table: bool = True,
) -> pl.DataFrame:
    """Execute all runs, each in its own folder below `out`, and return one row per run.

    The rows are also written to `out/results.parquet`. Repeating the call continues an interrupted
    or killed sweep and runs what was added to it: finished and diverged runs are not repeated.

    Args:
        sweep: the sweep.
        out: the output folder, in which ~ is the home folder.
        workers: how many runs are executed at a time; None: one per core, or two on a GPU. With
            `cluster`, how many workers train the clients; None: as many as the cluster has room
            for.
        ray: the address of a Ray cluster on which each run is a task; None: use processes on this
            machine.
        cluster: the address of a Ray cluster whose workers train the clients of one run after
            another, as with `simulate`; None: each run trains its own clients.
        strict: whether to stop at the first failure and raise it. Otherwise a failure is recorded
            in the run's folder and the other runs continue.
        resume: whether `out` may hold the results of an earlier call; "force": even if data or
            imported code have changed since.
        progress: called with the progress of all runs when the state of one changes, and after
            rounds, at most five times a second for each active run.
        done: called with each run that has finished or failed, and its folder, including those of
            earlier calls.
        table: whether to write results.parquet. If so, no other sweep may use `out` meanwhile; if
            not, several calls may execute different runs in one folder.

    Raises:
        InvalidInputError: `out` holds something else or is in use by another sweep; with `strict`,
            a run cannot start.
        Interrupted: the sweep was interrupted; active runs are saved.
        RunFailedError: with `strict`, a run failed with an exception in a user's code.
    """
    if ray is not None and cluster is not None:
        raise InvalidInputError("cluster: given besides ray; give one of them")
    if workers is not None:
        require_whole_number("workers", workers)
    out = expand_home(out)
    _check_folders(sweep, out, resume)
    execution = _Execution(
        sweep, out, workers, ray, cluster, strict, resume, done, Progress(progress)
    )
    table = table and not sweep.is_single_run  # which locks its folder itself
    lock = lock_folder(out, "out", "wait for it or choose another")
    with lock if table else nullcontext():
        try:
            execution.run()
        finally:
            frame = execution.results()
            if table and any(map(Path.is_dir, map(Path, frame["folder"]))):
                write_frame(out / RESULTS_FILE, frame)
    return frame


def _check_folders(sweep: Sweep, out: Path, resume: Resume) -> None:
    """Check that the folders of a sweep are free, or hold the same runs.

    Raises:
        InvalidInputError: one holds something else, or the record of the sweep would replace a
            sweep.yaml written by hand.
    """
    file = out / SWEEP_FILE
    with folder_errors(out):
        if out.exists() and not out.is_dir():
            raise InvalidInputError(f"out: {out} is a file; give a folder")
        used = out.is_dir() and any(there.name != LOCK_FILE for there in out.iterdir())
        if used and not sweep.is_single_run:
            if not file.exists() and not any((out / run.path).exists() for run in sweep.runs):
                raise InvalidInputError(
                    f"out: {out} is not empty and holds no sweep; choose another"
                )
            if not resume:
                raise InvalidInputError(
                    f"out: {out} is not empty; choose another, or continue with --resume (in "
                    "Python resume=True)"
                )
    for run in sweep.runs:
        folder = RunFolder(out / run.path)
        folder.check(run.experiment.to_dict(), resume)
        if folder.experiment.exists():
            folder.check_fingerprints(fingerprint_experiment(run.experiment), resume)
    is_written = file.is_file() and not sweep.is_single_run
    if is_written and file.read_text(encoding="utf-8") != dump(read_yaml(file)):
        raise InvalidInputError(
            f"out: {file} is not a record of a sweep, and would be replaced; choose another"
        )


@dataclass
class _Execution:
    """The arguments of `run_sweep` and the state of its runs.

    Attributes:
        runs: the runs requested so far, by their folders.
        best: the labels of the configurations that a strategy found best.
        failed: the path of the run that failed first, and why, if `strict`.
        interrupted: the message of an interruption; empty without one.
    """

    sweep: Sweep
    out: Path
    workers: int | None
    ray: str | None
    cluster: str | None
    strict: bool
    resume: Resume
    done: OnRunEnd | None
    progress: Progress
    runs: dict[str, SweepRun] = field(default_factory=dict)
    best: set[str] = field(default_factory=set)
    failed: tuple[str, Failure] | None = None
    interrupted: str = ""

    def run(self) -> None:
        """Execute the runs that the sweep lists, or those that its strategy requests."""
        if not self.sweep.is_single_run:
            write_yaml(self.out / SWEEP_FILE, BUILDER.to_plain(self.sweep.plain))
        if self.sweep.strategy is None:
            self._execute(self.sweep.runs)
            return
        found = self.sweep.strategy.search(self.sweep.configurations, self._scores)
        self.best = {best.label for _, best in found}
        write_yaml(self.out / BEST_FILE, BUILDER.to_plain(self.sweep.best_methods(found)))

    def results(self) -> pl.DataFrame:
        """Return one row per run requested so far; a strategy adds the column `best`."""
        frame = read_results([*self.runs.values()] or self.sweep.runs, self.out)
        if self.sweep.strategy is None:
            return frame
        labels = frame["run"].str.replace("/seed-[^/]*$", "")
        return frame.insert_column(1, labels.is_in(sorted(self.best)).alias("best"))

    def _scores(self, configurations: Sequence[Configuration]) -> list[float]:
        """Execute configurations with all seeds and return the mean loss of each."""
        if not configurations:
            return []
        seeds, name = self.sweep.seeds, self.sweep.name
        runs = [configuration.run(seed, name) for seed in seeds for configuration in configurations]
        self._execute(runs)
        frame = read_results(runs, self.out)
        if "loss" not in frame.columns:
            return [float("inf")] * len(configurations)
        losses = frame["loss"].cast(pl.Float64).fill_null(float("inf")).to_numpy()
        return [float(loss) for loss in np.reshape(losses, (len(seeds), -1)).mean(axis=0)]

    def _execute(self, runs: Sequence[SweepRun]) -> None:
        """Execute the runs that have not ended yet."""
        for run in runs:
            self.runs.setdefault(run.path, run)
            self.progress.add(run.path, run.experiment.rounds)
        jobs = [
            Job(run.path, run.experiment, self.out / run.path, self.resume == "force", alike)
            for run, alike in zip(runs, self._count_alike(runs), strict=True)
            if not self._has_ended(run)
        ]
        workers = min(self._processes, len(jobs))
        if self.ray is not None:
            from fedtide.sweep.ray_workers import run_on_ray

            self._execute_in_parallel(partial(run_on_ray, jobs, self.ray, self.workers))
        elif self.cluster is not None and jobs:
            with open_cluster(self.cluster, self.workers) as opened:
                run_sequentially(jobs, self.progress, self._on_finished, self._is_stopped, opened)
        elif workers > 1:
            threads = max(1, cpu_count() // workers)
            self._execute_in_parallel(partial(run_in_processes, jobs, workers, threads))
        else:
            run_sequentially(jobs, self.progress, self._on_finished, self._is_stopped)
        self._raise_if_stopped()

    @property
    def _processes(self) -> int:
        """How many processes of this machine may run at a time."""
        if self.workers is not None:
            return self.workers
        on_gpu = any(run.experiment.device != "cpu" for run in self.runs.values())
        cores: int = cpu_count()  # that this process, or its container, may use
        return min(cores, _PROCESSES_OF_A_GPU) if on_gpu else cores

    def _count_alike(self, runs: Sequence[SweepRun]) -> list[float]:
        """Return for each run how many in its process take the same steps, even if some have ended.

        How the runs are spread over the processes of a cluster is not known, so each counts alone.
        """
        alone = self.ray is not None or self.cluster is not None
        processes = len(runs) if alone else self._processes
        counts = count_alike([run.experiment for run in runs])
        return [max(1, count / processes) for count in counts]

    def _execute_in_parallel(
        self, execute: Callable[[Progress, OnFinished, Callable[[], bool]], None]
    ) -> None:
        with Interruption() as interruption:

            def stopped() -> bool:
                if interruption.requested:
                    self.interrupted = "interrupted"
                return self._is_stopped()

            execute(self.progress, self._on_finished, stopped)

    def _is_stopped(self) -> bool:
        return self.failed is not None or bool(self.interrupted)

    def _raise_if_stopped(self) -> None:
        if self.failed is not None:
            path, failure = self.failed
            if failure.trace:
                where = f"{path}: " if path else ""
                raise RunFailedError(f"{where}{failure.sentence}", failure.trace)
            where = f"{path}." if path else ""
            raise InvalidInputError(f"{where}{failure.sentence}")
        if self.interrupted:
            what = self.interrupted if self.sweep.is_single_run else "interrupted and saved"
            raise Interrupted(what, "repeat the call with resume=True to continue")

    def _has_ended(self, run: SweepRun) -> bool:
        """Return whether a run has finished or diverged; if so, show it as ended."""
        folder = RunFolder(self.out / run.path)
        failure = None if self.strict else folder.read_failure(run.experiment.rounds)
        if folder.has_ended(run.experiment.rounds):
            self.progress.finish(run.path, "done")
        elif failure is not None and failure.permanent:
            self.progress.finish(run.path, "failed")
        else:
            return False
        self._call_done(run)
        return True

    def _call_done(self, run: SweepRun) -> None:
        if self.done is not None:
            self.done(run, self.out / run.path)

    def _on_finished(self, job: Job, outcome: Outcome) -> None:
        """Record the outcome of a job."""
        self.progress.finish(job.path, outcome.state)
        if outcome.interrupted:
            self.interrupted = self.interrupted or outcome.interrupted
            return
        if outcome.failure is not None and self.strict:
            self.failed = self.failed or (job.path, outcome.failure)
            return
        if outcome.failure is not None:
            job.write_failure(outcome.failure)
        self._call_done(self.runs[job.path])
