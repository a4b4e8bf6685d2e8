"""Running an experiment given as objects, as plain data or as a file: `simulate` and `run`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack, overload

from fedtide.algorithms import Algorithm
from fedtide.differential_privacy import Mechanism
from fedtide.errors import InvalidInputError
from fedtide.participation import Availability, Dropout, Selection, Timing
from fedtide.problems import Problem
from fedtide.problems.weighted_objective import Objective
from fedtide.simulation.callbacks import Callback, check_callbacks
from fedtide.simulation.cluster.ray_cluster import open_cluster
from fedtide.simulation.experiment import (
    Checkpoints,
    Dtype,
    Evaluate,
    Experiment,
    LogStage,
    OnNonfinite,
)
from fedtide.simulation.inputs import count_alike
from fedtide.simulation.progress import Progress, ProgressBars, StatusReporter
from fedtide.simulation.result import Result, Results
from fedtide.simulation.run_folder import Resume, RunFolder
from fedtide.simulation.runner import execute
from fedtide.spec import is_network, session, visit
from fedtide.training import LocalTraining
from fedtide.training.trainers.select import TrainerName
from fedtide.validation import require_whole_number

_logger = logging.getLogger("fedtide")

_EVALUATE, _CHECKPOINTS = Evaluate(), Checkpoints()  # the defaults of `simulate`

Config = Mapping[str, Any]
"""Plain data as in an experiment file: the fields of an object, and its `type`."""


class _Arguments(TypedDict, total=False):
    """The arguments of `simulate` other than `seeds`, for its two signatures."""

    problem: Required[Problem | Config | str]
    participation: Required[Availability | Config | str]
    algorithm: Required[Algorithm[Any] | Config | str]
    local: Required[LocalTraining | Config]
    rounds: Required[int]
    seed: int
    name: str
    objective: Objective
    selection: Selection | Config | str
    dropout: Dropout | Config | str
    timing: Timing | Config | None
    privacy: Mechanism | Config | None
    evaluation: Evaluate | Config
    dtype: Dtype
    device: str
    trainer: TrainerName
    compile: bool
    on_nonfinite: OnNonfinite
    log: LogStage
    checkpoint: Checkpoints | Config
    record_iterates: bool
    chunk: int | None
    max_stack_bytes: int
    out: str | Path | None
    resume: Resume
    progress: bool | None
    callbacks: Iterable[Callback]
    cluster: str | None
    workers: int | None


@overload
def simulate(*, seeds: None = None, **arguments: Unpack[_Arguments]) -> Result: ...
@overload
def simulate(*, seeds: Iterable[int], **arguments: Unpack[_Arguments]) -> Results: ...
def simulate(
    *,
    problem: Problem | Config | str,
    participation: Availability | Config | str,
    algorithm: Algorithm[Any] | Config | str,
    local: LocalTraining | Config,
    rounds: int,
    seed: int = 0,
    seeds: Iterable[int] | None = None,
    name: str = "run",
    objective: Objective = "uniform",
    selection: Selection | Config | str = "all",
    dropout: Dropout | Config | str = "none",
    timing: Timing | Config | None = None,
    privacy: Mechanism | Config | None = None,
    evaluation: Evaluate | Config = _EVALUATE,
    dtype: Dtype = "float32",
    device: str = "cpu",
    trainer: TrainerName = "auto",
    compile: bool = True,
    on_nonfinite: OnNonfinite = "stop",
    log: LogStage = "available",
    checkpoint: Checkpoints | Config = _CHECKPOINTS,
    record_iterates: bool = False,
    chunk: int | None = None,
    max_stack_bytes: int = 2**25,
    out: str | Path | None = None,
    resume: Resume = False,
    progress: bool | None = None,
    callbacks: Iterable[Callback] = (),
    cluster: str | None = None,
    workers: int | None = None,
) -> Result | Results:
    """Run an experiment, given as objects or as plain data.

    The arguments are the fields of `Experiment`, which explains them, and these:

    Args:
        seeds: several seeds instead of `seed`, run one after another; the call then returns
            `Results`, and `out` gets one run folder, `seed-SEED`, for each.
        out: the run folder to write; None: run in memory.
        resume: whether to continue the run in the folder: an interrupted one, or a finished one
            that had fewer `rounds`; "force": even if its data, files or imported code have changed
            since it began.
        progress: whether to show rounds, speed and the remaining time on standard error; None: only
            in a terminal or a notebook.
        callbacks: objects that watch the run and may end it early, such as
            `ft.callbacks.EarlyStopping`.
        cluster: the address of a Ray cluster (HOST:PORT, or "auto") whose workers train the
            clients; None: this process does. The results are the same.
        workers: how many workers of the cluster to use; None: as many as it has room for.

    Raises:
        InvalidInputError: an input cannot be used.

    >>> import fedtide as ft
    >>> result = ft.simulate(
    ...     problem=ft.problems.Quadratic(matrices=[[[1.0]], [[1.0]]], centers=[[0.0], [1.0]]),
    ...     participation=ft.participation.Full(),
    ...     algorithm=ft.algorithms.FedAvg(),
    ...     local=ft.LocalTraining(steps=1, lr=0.5),
    ...     rounds=20,
    ...     dtype="float64",
    ... )
    >>> round(float(result.model[0]), 4)
    0.5
    """
    given = dict(locals())
    for argument in ("seeds", "out", "resume", "progress", "callbacks", "cluster", "workers"):
        del given[argument]
    experiment = Experiment.from_dict(given)
    how = (resume, progress, callbacks, cluster, workers)
    if seeds is None:
        return _execute([experiment], [out], *how)[0]
    runs = [replace(experiment, seed=one) for one in _check_seeds(seeds, seed)]
    if len(runs) > 1 and any(is_network(part) for _, _, part in visit(experiment.problem)):
        _logger.warning(
            "model: a network given as an object has the same initial weights under every seed, so "
            "intervals leave out their effect; give its class or a function that makes it"
        )
    folders = [None if out is None else Path(out) / f"seed-{run.seed}" for run in runs]
    return Results(_execute(runs, folders, *how))


def run(
    path: str | Path,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: Resume = False,
    progress: bool | None = None,
    callbacks: Iterable[Callback] = (),
    cluster: str | None = None,
    workers: int | None = None,
) -> Result:
    """Run the experiment of a YAML file, with overrides such as `algorithm.cutoff=20`.

    The other arguments are those of `simulate`.

    Raises:
        InvalidInputError: the file or a value cannot be used.
    """
    experiment = Experiment.load(path, overrides)
    return _execute([experiment], [out], resume, progress, callbacks, cluster, workers)[0]


@session()
def _execute(
    runs: Sequence[Experiment],
    folders: Sequence[str | Path | None],
    resume: Resume,
    progress: bool | None,
    callbacks: Iterable[Callback],
    cluster: str | None,
    workers: int | None,
) -> list[Result]:
    """Run experiments that differ in the seed; all folders are checked before the first starts."""
    watchers = check_callbacks(callbacks)
    for run, folder in zip(runs, folders, strict=True):
        if folder is not None:
            RunFolder(folder).check(run.to_dict(), resume)
    found = []
    with open_cluster(cluster, workers) as opened, _shown(progress, runs) as shown:
        for run, folder, alike in zip(runs, folders, count_alike(runs), strict=True):
            name = f"seed {run.seed}"
            reporter = StatusReporter(partial(shown.set_status, name))
            shown.start(name)
            try:
                given = [*watchers, reporter]
                found.append(execute(run, folder, resume, given, opened, alike))
            except BaseException as error:
                shown.finish(name, "failed" if isinstance(error, Exception) else "interrupted")
                raise
            shown.finish(name, "done")
    return found


@contextmanager
def _shown(wanted: bool | None, runs: Sequence[Experiment]) -> Iterator[Progress]:
    """Yield the progress of the runs, which is shown if wanted."""
    bars = ProgressBars(runs[0].name)
    is_shown = bars.is_interactive if wanted is None else wanted
    progress = Progress(bars if is_shown else None)
    for run in runs:
        progress.add(f"seed {run.seed}", run.rounds)
    with bars if is_shown else nullcontext():
        yield progress


def _check_seeds(seeds: Iterable[int], seed: int) -> list[int]:
    """Return the seeds as a list.

    Raises:
        InvalidInputError: not different whole numbers, or given together with `seed`.
    """
    listed = list(seeds)
    for one in listed:
        require_whole_number("seeds", one, low=0)
    if not listed or len(set(listed)) < len(listed):
        raise InvalidInputError(
            f"seeds: {listed!r:.60} is empty or names a seed twice; give different numbers"
        )
    if seed != 0:
        raise InvalidInputError("seed: given besides seeds; give one of them")
    return [int(one) for one in listed]
