"""Runs the planned runs that have no record yet, and writes one record for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fedtide.atomic_io import make_folder
from fedtide.errors import InvalidInputError
from fedtide.papers.computed_experiments import COMPUTATIONS
from fedtide.papers.measures import DERIVED_METRICS
from fedtide.papers.paper_registry import load, names
from fedtide.papers.paper_spec import PaperExperiment
from fedtide.papers.plan import PlannedRun
from fedtide.papers.record import Record, find_record, make_record, write_record
from fedtide.problems.datasets import catalogue
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run_folder import RunFolder
from fedtide.sweep import Sweep, SweepRun, run_sweep
from fedtide.sweep.configurations import Configuration
from fedtide.sweep.sweep_runner import OnProgress


def run_paper(
    paper: PaperExperiment,
    runs: Sequence[PlannedRun],
    out: Path,
    records: Path,
    workers: int | None = 1,
    progress: OnProgress | None = None,
) -> list[Record]:
    """Run the planned runs that have no matching record, and return the records of all of them.

    An interrupted run resumes at its checkpoint. A run that diverges is recorded as diverged.

    Args:
        paper: the published experiment.
        runs: runs of its plan, all at one scale.
        out: the folder of the run folders.
        records: the folder of the records.
        workers: how many runs at a time; None: one for each core.
        progress: is called with the progress of the runs after every change.

    Raises:
        InvalidInputError: missing data, or a run that fails for another reason than divergence.
        Interrupted: the user interrupted; running work has been saved.
    """
    missing = [run for run in runs if find_record(run, records) is None]
    check_datasets(missing)
    trained = []
    for run in missing:
        if run.compute is None:
            trained.append(run)
        else:
            metrics = COMPUTATIONS[run.compute](run.settings)
            write_record(make_record(run, paper.measures, metrics, seconds=0.0), records)
    if trained:
        _train(paper, trained, out, records, workers, progress)
    return [record for run in runs if (record := find_record(run, records)) is not None]


def _train(
    paper: PaperExperiment,
    runs: Sequence[PlannedRun],
    out: Path,
    records: Path,
    workers: int | None,
    progress: OnProgress | None,
) -> None:
    """Execute the runs as a sweep, and record each when it ends."""
    recorder = _Recorder(paper, {run.folder: run for run in runs}, records)
    members = tuple(
        SweepRun(
            run.folder, Experiment.from_dict(run.settings), {"method": run.method, "seed": run.seed}
        )
        for run in runs
    )
    configuration = Configuration("", {}, (), {})  # the runs differ in more than a sweep's fields
    plain = {"name": paper.name, "scale": runs[0].scale}
    sweep = Sweep(paper.name, members, (configuration,), (), None, plain)
    folder = out / paper.name / runs[0].scale
    make_folder(folder)
    run_sweep(sweep, folder, workers=workers, progress=progress, done=recorder)


@dataclass(frozen=True)
class _Recorder:
    """Writes the record of each run that a sweep has ended."""

    paper: PaperExperiment
    runs: Mapping[str, PlannedRun]
    records: Path

    def __call__(self, member: SweepRun, path: Path) -> None:
        """Write the record of a run that has finished or diverged.

        Raises:
            InvalidInputError: the run failed for another reason.
        """
        run, folder = self.runs[member.path], RunFolder(path)
        write_record(self._record(run, folder), self.records)

    def _record(self, run: PlannedRun, folder: RunFolder) -> Record:
        measures = self.paper.measures
        if (failure := folder.read_failure()) is not None:
            if not failure.permanent:
                raise InvalidInputError(f"{run.folder}.{failure.sentence}")
            reason = failure.sentence.partition(";")[0]
            return make_record(run, measures, pl.DataFrame(), 0.0, stopped=reason)
        metrics = pl.read_parquet(folder.metrics)
        if self.paper.derive is not None:
            metrics = DERIVED_METRICS[self.paper.derive](metrics, run.settings, folder.model)
        spent = ("training_seconds", "evaluation_seconds")
        timings = folder.read_json(folder.timings, spent)
        seconds = sum(float(timings[name]) for name in spent)
        return make_record(run, measures, metrics, seconds)


def check_datasets(runs: Iterable[PlannedRun]) -> None:
    """Check that the data sets of all runs are available.

    Raises:
        InvalidInputError: with the missing files, and the experiments that need no data.
    """
    problems = [run.settings.get("problem", {}) for run in runs]
    for dataset in {p["dataset"] for p in problems if "dataset" in p}:
        try:
            catalogue.load(dataset)
        except InvalidInputError as error:
            without_data = ", ".join(name for name in names() if load(name).dataset is None)
            raise InvalidInputError(
                f"{error}; experiments that need no data: {without_data}"
            ) from None
