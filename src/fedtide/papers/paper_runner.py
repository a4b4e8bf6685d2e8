"""Runs the planned runs that have no record yet, and writes one record for each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.atomic_io import make_folder
from fedtide.errors import InvalidInputError
from fedtide.locking import lock_folder
from fedtide.papers.computed_experiments import COMPUTATIONS
from fedtide.papers.measures import DERIVED_METRICS
from fedtide.papers.paper_registry import load, names
from fedtide.papers.paper_spec import PaperExperiment
from fedtide.papers.plan import PlannedRun
from fedtide.papers.record import Record, find_record, make_record, record_path, write_record
from fedtide.papers.shared_runs import find_identical, group_identical
from fedtide.problems.datasets import catalogue
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run_folder import RunFolder, read_frame
from fedtide.sweep import Sweep, SweepRun, run_sweep
from fedtide.sweep.sweep_runner import OnProgress

_PATIENCE = 60.0  # seconds that another process may take to write its records


def run_paper(
    paper: PaperExperiment,
    runs: Sequence[PlannedRun],
    out: Path,
    records: Path,
    workers: int | None = 1,
    progress: OnProgress | None = None,
) -> list[Record]:
    """Run the planned runs that have no matching record, and return the records of all of them.

    Runs with the same settings, in this or another experiment, are run once: each gets a record
    with the measures of its own experiment, from an existing record if that has them. If an earlier
    record lacks one of them, the run is repeated, and replaces that record, too. An interrupted run
    resumes at its checkpoint. A run that diverges is recorded as diverged.

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
    missing = [run for run in runs if not _ensure_record(run, runs, paper, records)]
    check_datasets(missing)
    trained = []
    for group in group_identical(missing, runs):
        run = group[0]
        if run.compute is None:
            trained.append(group)
        else:
            start = time.perf_counter()
            metrics = COMPUTATIONS[run.compute](run.settings)
            _write(RunOutcome(metrics, time.perf_counter() - start), group, paper, records)
    if trained:
        _train(paper, trained, out, records, workers, progress)
    return [record for run in runs if (record := find_record(run, records)) is not None]


def _ensure_record(
    run: PlannedRun, runs: Sequence[PlannedRun], paper: PaperExperiment, records: Path
) -> bool:
    """Give a run the record of another one with the same settings if it has none.

    Returns:
        Whether it has one now.
    """
    if find_record(run, records) is not None:
        return True
    for other in find_identical(run, runs):
        found = find_record(other, records)
        if found is None:
            continue
        shared = found.share(_experiment_of(other, paper), run, _experiment_of(run, paper))
        if shared is not None:
            write_record(shared, records)
            return True
    return False


def _experiment_of(run: PlannedRun, paper: PaperExperiment) -> PaperExperiment:
    """Return the experiment of a run, which may be this one or another of fedtide."""
    return paper if run.paper == paper.name else load(run.paper)


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run.

    Args:
        metrics: one row per evaluation; no rows if the run diverged.
        seconds: the time of training and evaluation.
        stopped: why it ended before its last round, if it did.
        rounds: the completed rounds; None: those of the last evaluation.
        execution: see `Execution`; under "earlier" those of earlier parts of the run that differ.
        model: the file of the final model, if any.
    """

    metrics: pl.DataFrame
    seconds: float
    stopped: str | None = None
    rounds: int | None = None
    execution: Mapping[str, Any] = field(default_factory=dict)
    model: Path | None = None


def _write(
    outcome: RunOutcome, group: Sequence[PlannedRun], paper: PaperExperiment, records: Path
) -> None:
    """Write the record of the first run of a group, which was run, and those of the others.

    Another process may have run one of them meanwhile; then its result is kept, and shared.
    """
    run, *others = group
    make_folder(record_path(records, run.key).parent, field="records")  # errors name this folder
    with lock_folder(records, "records", "wait until it has ended", patience=_PATIENCE):
        if not _ensure_record(run, group, paper, records):
            _write_all(outcome, group, paper, records)
            return
        for other in others:
            _ensure_record(other, group, paper, records)  # shares the other process's result


def _write_all(
    outcome: RunOutcome, group: Sequence[PlannedRun], paper: PaperExperiment, records: Path
) -> None:
    """Write the records of a group, none of which another process has run."""
    for run in group:
        of_run = _experiment_of(run, paper)
        metrics = outcome.metrics
        if of_run.derive is not None and outcome.stopped is None:
            assert outcome.model is not None
            metrics = DERIVED_METRICS[of_run.derive](metrics, run.settings, outcome.model)
        record = make_record(
            run,
            of_run.measures,
            metrics,
            outcome.seconds,
            stopped=outcome.stopped,
            rounds=outcome.rounds,
            execution=outcome.execution,
            shared_from=None if run is group[0] else group[0],
        )
        write_record(record, records)


def _train(
    paper: PaperExperiment,
    groups: Sequence[Sequence[PlannedRun]],
    out: Path,
    records: Path,
    workers: int | None,
    progress: OnProgress | None,
) -> None:
    """Execute the first runs of the groups as a sweep, and record each group when it ends."""
    runs = [group[0] for group in groups]
    by_folder = {group[0].folder: group for group in groups}
    members = tuple(
        SweepRun(
            run.folder, Experiment.from_dict(run.settings), {"method": run.method, "seed": run.seed}
        )
        for run in runs
    )
    plain = {"name": paper.name, "scale": runs[0].scale}
    sweep = Sweep(paper.name, members, (), (), None, plain)
    folder = out / paper.name / runs[0].scale
    make_folder(folder)

    def write(member: SweepRun, path: Path) -> None:
        group = by_folder[member.path]
        _write(_read_outcome(group[0], RunFolder(path)), group, paper, records)

    # processes with other seeds or methods may share the folder
    run_sweep(sweep, folder, workers=workers, progress=progress, done=write, table=False)


def _read_outcome(run: PlannedRun, folder: RunFolder) -> RunOutcome:
    """Return the outcome of a run that has finished or diverged.

    Raises:
        InvalidInputError: it failed for another reason.
    """
    failure = folder.read_failure(run.resolved["rounds"])
    if failure is not None and not failure.permanent:
        raise InvalidInputError(f"{run.folder}.{failure.sentence}")
    reason = None if failure is None else failure.sentence.partition(";")[0]
    spent = ("training_seconds", "evaluation_seconds")
    timings = folder.read_json(folder.timings, [*spent, "rounds", "executions"])
    seconds = sum(float(timings[name]) for name in spent)
    *earlier, execution = timings["executions"]
    if earlier:  # the run was continued on another machine or GPU
        execution = {**execution, "earlier": earlier}
    if reason is not None:
        return RunOutcome(pl.DataFrame(), seconds, reason, timings["rounds"], execution)
    metrics = read_frame(folder.metrics)
    return RunOutcome(metrics, seconds, execution=execution, model=folder.model)


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
