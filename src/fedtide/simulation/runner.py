"""Running an experiment: in memory, or in a folder from which it can be resumed at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedtide.algorithms import Algorithm
from fedtide.atomic_io import write_atomically, write_frame, write_json
from fedtide.content_hash import hash_once
from fedtide.errors import InvalidInputError
from fedtide.participation import Availability, Dropout, Selection
from fedtide.problems import Problem
from fedtide.problems.weighted_objective import Objective
from fedtide.simulation.callbacks import ProgressCallback
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save
from fedtide.simulation.divergence import DivergenceError, OnNonfinite
from fedtide.simulation.experiment import Checkpoints, Evaluate, Experiment, LogStage
from fedtide.simulation.fingerprints import fingerprint_experiment
from fedtide.simulation.interruption import Interrupted, Interruption
from fedtide.simulation.loop import Run
from fedtide.simulation.run_folder import Resume, RunFolder
from fedtide.training import LocalTraining
from fedtide.training.trainers.select import TrainerName

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Args:
        model: the model after the last round, or what the algorithm recommends instead, (d,).
        metrics: one row per evaluation: `round` (the number of completed rounds), the problem's
            metrics, and the spread of each client metric.
        participation: the log: round, client, stage, weight.
        clients: one row per client: samples, participation, mean weight and last metrics.
        state: the algorithm's final state; None for a finished run without checkpoints.
        trainer: the trainer that was used, and why.
        timings: seconds spent, and rounds per second.
        iterates: x_0, ..., x_T, shape (rounds + 1, d); None unless `record_iterates`, and without
            a state.
        out: the run folder; None for a run in memory.
    """

    model: NDArray[Any]
    metrics: pl.DataFrame
    participation: pl.DataFrame
    clients: pl.DataFrame
    state: Any
    trainer: str
    timings: dict[str, float]
    iterates: NDArray[Any] | None = None
    out: Path | None = None


_EVALUATE, _CHECKPOINTS = Evaluate(), Checkpoints()  # the defaults of `simulate`

Config = Mapping[str, Any]
"""Plain data as in an experiment file: the fields of an object, and its `type`."""


def simulate(
    *,
    problem: Problem | Config | str,
    participation: Availability | Config | str,
    algorithm: Algorithm[Any] | Config | str,
    local: LocalTraining | Config,
    rounds: int,
    seed: int = 0,
    name: str = "run",
    objective: Objective = "uniform",
    selection: Selection | Config | str = "all",
    dropout: Dropout | Config | str = "none",
    evaluation: Evaluate | Config = _EVALUATE,
    dtype: Literal["float32", "float64", "bfloat16"] = "float32",
    device: str = "cpu",
    trainer: TrainerName = "auto",
    compile: bool = True,
    on_nonfinite: OnNonfinite = "stop",
    log: LogStage = "available",
    checkpoint: Checkpoints | Config = _CHECKPOINTS,
    record_iterates: bool = False,
    max_stack_bytes: int = 2**25,
    out: str | Path | None = None,
    resume: Resume = False,
) -> Result:
    """Run an experiment, given as objects or as plain data.

    The arguments are the fields of `Experiment`, which explains them, and

    Args:
        out: the run folder to write; None: run in memory.
        resume: whether to continue the run in the folder; "force": also if its data, files or
            imported code have changed since it began.

    Raises:
        InvalidInputError: any input that cannot be used.

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
    for name in ("out", "resume"):
        del given[name]
    return execute(Experiment.from_dict(given), out=out, resume=resume)


def run(
    path: str | Path,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: Resume = False,
) -> Result:
    """Run the experiment of a YAML file, with overrides such as `algorithm.cutoff=20`.

    Raises:
        InvalidInputError: a file or a value that cannot be used, in one sentence.
    """
    return execute(Experiment.load(path, overrides), out=out, resume=resume)


def execute(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: Resume = False,
    progress: ProgressCallback | None = None,
) -> Result:
    """Run an experiment, in memory or in the folder `out`."""
    if out is None and resume:
        raise InvalidInputError("resume: no folder to continue; give it as out")
    with _memory_errors(), hash_once():
        return (
            _in_memory(Run(experiment), progress)
            if out is None
            else _in_folder(experiment, RunFolder(out), resume, progress)
        )


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn memory errors into an InvalidInputError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # the latter is what torch raises
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        reason = "".join(str(error).splitlines()[:1])
        raise InvalidInputError(
            f"problem: not enough memory ({reason:.200}); give fewer clients, samples or local "
            "steps, a smaller model, or a lower max_stack_bytes"
        ) from None


def _log_warnings(run: Run) -> list[str]:
    """Log and return what a run should not end with in silence."""
    found = run.warnings()
    for sentence in found:
        _logger.warning("%s, seed %d: %s", run.experiment.name, run.experiment.seed, sentence)
    return found


def _in_memory(run: Run, progress: ProgressCallback | None) -> Result:
    _loop(run, progress)
    _log_warnings(run)
    return _result(run, run.log_table())


def _in_folder(
    experiment: Experiment, folder: RunFolder, resume: Resume, progress: ProgressCallback | None
) -> Result:
    plain = experiment.to_dict()
    folder.check(plain, resume)
    fingerprints = fingerprint_experiment(experiment)
    folder.check_fingerprints(fingerprints, resume)
    started = _prepare(experiment, _last(folder) if resume else None, folder)
    with folder.lock(plain, resume, fingerprints):
        if folder.finished:
            folder.drop_log_parts()
            return _read(started, folder)
        _loop_in_folder(started, folder, progress)
        log = _finish(started, folder)
    return _result(started, log, folder.path)


def _last(folder: RunFolder) -> Checkpoint | None:
    """Return the last intact checkpoint whose log is intact, too."""
    if folder.finished:  # the parts of the log are one file now
        return load_newest(folder.checkpoints)
    return load_newest(
        folder.checkpoints, lambda c: c.facts.get("log") == folder.chain_until(c.round)
    )


def _prepare(experiment: Experiment, checkpoint: Checkpoint | None, folder: RunFolder) -> Run:
    """Return the run, ready to start or to continue."""
    if checkpoint is None:
        return Run(experiment)
    with _version_errors(checkpoint, folder):
        threads, trainer, chain = (checkpoint.facts[name] for name in ("threads", "trainer", "log"))
    torch.set_num_threads(threads)  # sums are split by threads: needed for the same bits
    folder.log_chain = chain
    started = Run(experiment, trainer)
    with _version_errors(checkpoint, folder):
        clients = len(checkpoint.tensors["tally.used"])
    _check_size("clients", clients, started.population.clients, folder)
    with _version_errors(checkpoint, folder):
        started.restore(checkpoint)
    model, start = started.driver.state.model, started.task.start
    _check_size("parameters", len(model), len(start), folder)
    return started


def _check_size(what: str, before: int, now: int, folder: RunFolder) -> None:
    """Refuse a checkpoint of another number of clients or parameters."""
    if before != now:
        raise InvalidInputError(
            f"resume: the run in {folder.path} has {before} {what}, and this one {now}; give the "
            "same data and model or another folder"
        )


@contextmanager
def _version_errors(checkpoint: Checkpoint, folder: RunFolder) -> Iterator[None]:
    """Refuse an intact checkpoint with other contents, as another version may write it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            f"resume: the checkpoint of round {checkpoint.round} in {folder.path} is of another "
            f"version ({error!r:.80}); start again in another folder"
        ) from None


def _loop(run: Run, progress: ProgressCallback | None) -> None:
    """Run the remaining rounds in memory."""
    run.start()
    while run.ended < run.experiment.rounds:
        _advance(run, progress)


def _advance(run: Run, progress: ProgressCallback | None) -> None:
    run.round()
    run.evaluate_if_due()
    loss = run.metrics[-1].get("loss") if run.metrics else None
    if progress is not None:
        progress(run.ended, run.experiment.rounds, loss)


def _loop_in_folder(run: Run, folder: RunFolder, progress: ProgressCallback | None) -> None:
    """Run the remaining rounds, saving checkpoints on the way and at the end."""
    folder.truncate_after(run.ended)
    run.start()
    if run.ended == 0:
        _save(run, folder)
    settings, saved = run.experiment.checkpoint, time.monotonic()
    with Interruption() as interruption:
        while run.ended < run.experiment.rounds:
            try:
                _advance(run, progress)
            except DivergenceError as error:
                kept = load_newest(folder.checkpoints)
                assert kept is not None
                raise DivergenceError(
                    f"{error}; the checkpoint of round {kept.round} is kept"
                ) from None
            due = settings.every is not None and run.ended % settings.every == 0
            if due or interruption.requested or time.monotonic() - saved > settings.seconds:
                _save(run, folder)
                saved = time.monotonic()
            if interruption.requested:
                raise Interrupted(
                    f"interrupted after round {run.ended} of {run.experiment.rounds}, saved in "
                    f"{folder.path}",
                    "continue with resume=True",
                )
    _save(run, folder)


def _save(run: Run, folder: RunFolder) -> None:
    """Write the new part of the log, then the checkpoint that relies on it."""
    if run.log:
        folder.add_to_log(run.ended, run.log_table())
        run.log.clear()
    checkpoint = run.checkpoint()
    facts = {**checkpoint.facts, "threads": torch.get_num_threads(), "log": folder.log_chain}
    save(folder.checkpoints, Checkpoint(checkpoint.round, checkpoint.tensors, facts))


def _finish(run: Run, folder: RunFolder) -> pl.DataFrame:
    """Write the results and return the log; the summary, written last, marks them complete."""
    log = pl.concat([run.log_table(), *folder.read_log()])
    write_frame(folder.participation, log)
    write_frame(folder.metrics, run.metrics_table())
    clients = run.clients()
    write_frame(folder.clients, clients)
    named = run.task.layout.unflatten(run.driver.output)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in named.items()}
    write_atomically(folder.model, lambda path: safetensors.torch.save_file(tensors, path))
    write_json(folder.timings, _timings(run) | {"trainer": run.trainer_choice})
    summary = {
        "rounds": run.ended,
        "metrics": run.metrics[-1],
        "lower_is_better": run.lower_is_better(clients.columns),
        "warnings": _log_warnings(run),
    }
    write_json(folder.summary, summary)
    folder.drop_log_parts()
    return log


def _read(run: Run, folder: RunFolder) -> Result:
    """Return the result that a finished run left in its folder.

    Raises:
        InvalidInputError: a missing or damaged file.
    """
    try:
        folder.read_json(folder.summary)
        named = safetensors.torch.load_file(folder.model, device=run.experiment.device)
        metrics, log, clients = map(
            pl.read_parquet, (folder.metrics, folder.participation, folder.clients)
        )
        timings = folder.read_json(folder.timings)
        model = run.task.layout.flatten(named).cpu().numpy()
    except InvalidInputError:
        raise
    except (OSError, SafetensorError, pl.exceptions.PolarsError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"out: {folder.path} is finished, but its results cannot be read ({reason}); "
            "start again in another folder"
        ) from None
    whole = run.ended == run.experiment.rounds  # only a checkpoint contains the state
    return Result(
        model=model,
        metrics=metrics,
        participation=log,
        clients=clients,
        state=run.driver.state if whole else None,
        trainer=timings.pop("trainer", ""),
        timings=timings,
        iterates=_iterates(run) if whole else None,
        out=folder.path,
    )


def _timings(run: Run) -> dict[str, Any]:
    spent = run.timings
    return {
        "rounds": spent.rounds,
        "training_seconds": spent.training,
        "evaluation_seconds": spent.evaluation,
        "rounds_per_second": spent.rounds / spent.training if spent.training else 0.0,
    }


def _iterates(run: Run) -> NDArray[Any] | None:
    return np.stack([x.cpu().numpy() for x in run.iterates]) if run.iterates else None


def _result(run: Run, participation: pl.DataFrame, out: Path | None = None) -> Result:
    return Result(
        model=run.driver.output.cpu().numpy(),
        metrics=run.metrics_table(),
        participation=participation,
        clients=run.clients(),
        state=run.driver.state,
        trainer=run.trainer_choice,
        timings=_timings(run),
        iterates=_iterates(run),
        out=out,
    )
