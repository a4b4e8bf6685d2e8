"""Runs what is planned and not recorded yet, one record a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fedtide.atomic_io import make_folder
from fedtide.errors import InvalidInputError
from fedtide.papers.analytic import COMPUTATIONS
from fedtide.papers.derived_metrics import DERIVED
from fedtide.papers.paper_registry import load, names
from fedtide.papers.paper_spec import PaperExperiment
from fedtide.papers.plan import PlannedRun
from fedtide.papers.record import Record, load_record, record_file, record_of, write_record
from fedtide.problems.datasets import catalogue
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run_folder import RunFolder
from fedtide.sweep import Sweep, SweepRun, run_sweep
from fedtide.sweep.configurations import Configuration
from fedtide.sweep.job import failure
from fedtide.sweep.sweep_runner import Progress


def run_all(
    paper: PaperExperiment,
    runs: Sequence[PlannedRun],
    out: Path,
    records: Path,
    workers: int | None = 1,
    progress: Progress | None = None,
) -> list[Record]:
    """Run what has no fitting record yet, and return the records of all runs.

    A run that was interrupted goes on where it was saved. One that diverges is recorded as such.

    Args:
        paper: the published experiment.
        runs: of its plan, all at one scale.
        out: below which the run folders lie.
        records: below which the records lie.
        workers: how many runs at a time; None: one for each core.
        progress: is given the board of the runs whenever something on it has changed.

    Raises:
        InvalidInputError: data that cannot be had, or a run that cannot be made here.
        Interrupted: asked to end; what was running is saved.
    """
    left = [run for run in runs if recorded(run, records) is None]
    check_data(left)
    for run in left:
        if run.compute is not None:
            metrics = COMPUTATIONS[run.compute](run.settings)
            write_record(record_of(run, paper.measures, metrics, seconds=0.0), records)
    trained = [run for run in left if run.compute is None]
    if trained:
        _train(paper, trained, out, records, workers, progress)
    return [record for run in runs if (record := recorded(run, records)) is not None]


def _train(
    paper: PaperExperiment,
    runs: Sequence[PlannedRun],
    out: Path,
    records: Path,
    workers: int | None,
    progress: Progress | None,
) -> None:
    """Make the runs as a sweep, and record each when it has ended."""
    recorder = _Recorder(paper, {run.folder: run for run in runs}, records)
    members = tuple(
        SweepRun(
            run.folder, Experiment.from_dict(run.settings), {"method": run.method, "seed": run.seed}
        )
        for run in runs
    )
    everything = Configuration("", {}, (), {})  # the runs differ in more than a sweep's fields
    plain = {"name": paper.name, "scale": runs[0].scale}
    sweep = Sweep(paper.name, members, (everything,), (), None, plain)
    place = out / paper.name / runs[0].scale
    make_folder(place)
    run_sweep(sweep, place, workers=workers, progress=progress, done=recorder)


@dataclass(frozen=True)
class _Recorder:
    """LogColumns each run that a sweep hands on."""

    paper: PaperExperiment
    runs: Mapping[str, PlannedRun]
    records: Path

    def __call__(self, member: SweepRun, path: Path) -> None:
        """Write the record of a run that has finished or diverged.

        Raises:
            InvalidInputError: it failed for another reason.
        """
        run, folder = self.runs[member.path], RunFolder(path)
        write_record(self._record(run, folder), self.records)

    def _record(self, run: PlannedRun, folder: RunFolder) -> Record:
        measures = self.paper.measures
        if (note := failure(folder)) is not None:
            if not note["permanent"]:
                raise InvalidInputError(f"{run.folder}.{note['sentence']}")
            why = note["sentence"].partition(";")[0]
            return record_of(run, measures, pl.DataFrame(), 0.0, stopped=why)
        metrics = pl.read_parquet(folder.metrics)
        if self.paper.derive is not None:
            metrics = DERIVED[self.paper.derive](metrics, run, folder)
        timings = json.loads(folder.timings.read_text(encoding="utf-8"))
        seconds = timings["training_seconds"] + timings["evaluation_seconds"]
        return record_of(run, measures, metrics, seconds)


def check_data(runs: Iterable[PlannedRun]) -> None:
    """Make sure that the data of all runs can be had, before the first one is made.

    Raises:
        InvalidInputError: with the files that are missing, and what needs none.
    """
    problems = [run.settings.get("problem", {}) for run in runs]
    for dataset in {p["dataset"] for p in problems if "dataset" in p}:
        try:
            catalogue.load(dataset)
        except InvalidInputError as error:
            free = ", ".join(name for name in names() if load(name).dataset is None)
            raise InvalidInputError(
                f"{error}; at any scale, no data are needed for {free}"
            ) from None


def recorded(run: PlannedRun, records: Path) -> Record | None:
    """Return the record of a run with its present settings, if there is one."""
    key = (run.paper, run.scale, run.case, run.method, run.seed)
    file = record_file(records, key)
    record = load_record(file) if file.exists() else None
    return record if record is not None and record.fits(run) else None
