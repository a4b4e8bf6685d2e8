"""Runs the planned runs that have no record yet, as a sweep, and records each as it ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from fedtide.atomic_io import make_folder
from fedtide.errors import InvalidInputError
from fedtide.papers.computed_experiments import COMPUTATIONS
from fedtide.papers.measures import DERIVED_METRICS
from fedtide.papers.paper_spec import PaperExperiment, load, names
from fedtide.papers.plan import PlannedRun
from fedtide.papers.record import Record, make_record, match_records, records_of
from fedtide.problems.datasets import catalogue
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run_folder import RunFolder, read_frame
from fedtide.sweep import Sweep, SweepRun, run_sweep
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
        workers: how many runs at a time; None: see `run_sweep`.
        progress: is called with the progress of the runs after every change.

    Raises:
        InvalidInputError: missing data, or a run that fails for another reason than divergence.
        Interrupted: the user interrupted; running work has been saved.
    """
    kept = records_of(records, paper.name)
    recorded = match_records(runs, kept.read())
    missing = [run for run in runs if run.key not in recorded]
    check_datasets(missing)
    trained = {}
    for run in missing:
        if run.compute is None:
            trained[run.folder] = run
            continue
        start = time.perf_counter()
        metrics = COMPUTATIONS[run.compute](run.settings)
        kept.add([make_record(run, paper.measures, metrics, time.perf_counter() - start)])

    def record(member: SweepRun, path: Path) -> None:
        kept.add([_read_record(paper, trained[member.path], RunFolder(path))])

    if trained:
        scale = missing[0].key.scale
        members = tuple(
            SweepRun(run.folder, Experiment.from_dict(run.settings), run.key._asdict())
            for run in trained.values()
        )
        sweep = Sweep(paper.name, members, (), (), None, {"name": paper.name, "scale": scale})
        folder = out / paper.name / scale
        make_folder(folder)
        # without a table, as processes with other seeds or methods may share the folder
        run_sweep(sweep, folder, workers=workers, progress=progress, done=record, table=False)
    found = match_records(runs, kept.read())
    return [found[run.key] for run in runs if run.key in found]


def _read_record(paper: PaperExperiment, run: PlannedRun, folder: RunFolder) -> Record:
    """Return the record of a run that has finished or diverged.

    Raises:
        InvalidInputError: it failed for another reason.
    """
    failure = folder.read_failure(run.resolved["rounds"])
    if failure is not None and not failure.permanent:
        raise InvalidInputError(f"{run.folder}.{failure.sentence}")
    spent = ("training_seconds", "evaluation_seconds")
    timings = folder.read_json(folder.timings, [*spent, "rounds", "executions"])
    seconds = sum(float(timings[name]) for name in spent)
    *earlier, execution = timings["executions"]
    if earlier:  # the run was continued on another machine or GPU
        execution = {**execution, "earlier": earlier}
    if failure is not None:
        reason, rounds = failure.sentence.partition(";")[0], timings["rounds"]
        none = pl.DataFrame()
        return make_record(run, paper.measures, none, seconds, reason, rounds, execution)
    metrics = read_frame(folder.metrics)
    if paper.derive is not None:
        metrics = DERIVED_METRICS[paper.derive](metrics, run.settings, folder.model)
    return make_record(run, paper.measures, metrics, seconds, execution=execution)


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
