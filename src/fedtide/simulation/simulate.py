"""Running an experiment from Python: in memory, or in a folder that survives any kill."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.torch
import torch
from numpy.typing import NDArray

from fedtide.participation import log_of
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.finite import Diverged
from fedtide.simulation.folder import RunFolder, write_atomically, write_frame, write_json
from fedtide.simulation.interrupt import Interrupted, Interruption
from fedtide.simulation.progress import Silent, Watcher
from fedtide.simulation.run import Run


@dataclass(frozen=True)
class Result:
    """What a run gives.

    Args:
        model: the model after the last round, or what the algorithm recommends instead, (d,).
        metrics: one row per evaluation: `round` (how many had ended), then the problem's metrics
            and the spread of each client figure.
        participation: the log: round, client, stage, weight.
        clients: one row per client: its samples, participation, mean weight, and last figures.
        state: the algorithm's final state.
        trainer: the trainer that was used, and why.
        timings: seconds spent, and rounds per second.
        iterates: x_0, ..., x_T, shape (rounds + 1, d); None unless `record_iterates`.
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


def simulate(*, out: str | Path | None = None, resume: bool = False, **fields: Any) -> Result:
    """Run an experiment given by the fields of `Experiment`, as objects or plain data.

    Args:
        out: a run folder to write; None runs in memory.
        resume: go on with the run that the folder holds.
        **fields: `problem`, `participation`, `algorithm`, `local`, `rounds` and any other field of
            `Experiment`.

    Raises:
        BadInput: anything that cannot be used, in one sentence.

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
    return execute(Experiment.of(fields), out=out, resume=resume)


def run(
    path: str | Path,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Run the experiment of a YAML file, with overrides such as `algorithm.cutoff=20`.

    Raises:
        BadInput: a file or a value that cannot be used, in one sentence.
    """
    return execute(Experiment.load(path, overrides), out=out, resume=resume)


def execute(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Run an experiment, in memory or in the folder `out`."""
    watcher = watcher or Silent()
    if out is None:
        started = Run(experiment)
        _loop(started, watcher)
        return _result(started, log_of(started.log))
    folder, plain = RunFolder(out), experiment.plain()
    folder.check(plain, resume)
    checkpoint = load_newest(folder.checkpoints) if resume else None
    started = _prepare(experiment, checkpoint)
    with folder.held(plain, resume):
        if not folder.finished:
            _loop_in_folder(started, folder, watcher)
            _finish(started, folder)
    return _result(started, pl.read_parquet(folder.participation), folder.path)


def _prepare(experiment: Experiment, checkpoint: Checkpoint | None) -> Run:
    """Return the run, ready to start or to go on."""
    if checkpoint is None:
        return Run(experiment)
    torch.set_num_threads(checkpoint.facts["threads"])  # sums are cut by threads: same bits
    started = Run(experiment, trainer=checkpoint.facts["trainer"])
    started.restore(checkpoint)
    return started


def _loop(run: Run, watcher: Watcher) -> None:
    """Run all rounds that are left, in memory."""
    run.start()
    while run.ended < run.experiment.rounds:
        _advance(run, watcher)


def _advance(run: Run, watcher: Watcher) -> None:
    run.round()
    run.evaluate_if_due()
    loss = run.metrics[-1].get("loss") if run.metrics else None
    watcher.update(run.ended, run.experiment.rounds, loss)


def _loop_in_folder(run: Run, folder: RunFolder, watcher: Watcher) -> None:
    """Run all rounds that are left, saving now and then, and once more at the end."""
    folder.forget_after(run.ended)
    run.start()
    if run.ended == 0:
        _save(run, folder)
    settings, saved = run.experiment.checkpoint, time.monotonic()
    with Interruption() as interruption:
        while run.ended < run.experiment.rounds:
            try:
                _advance(run, watcher)
            except Diverged as error:
                kept = load_newest(folder.checkpoints)
                assert kept is not None
                raise Diverged(f"{error}; the checkpoint of round {kept.round} is kept") from None
            due = settings.every is not None and run.ended % settings.every == 0
            if due or interruption.asked or time.monotonic() - saved > settings.seconds:
                _save(run, folder)
                saved = time.monotonic()
            if interruption.asked:
                raise Interrupted(
                    f"interrupted after round {run.ended} of {run.experiment.rounds}, saved in "
                    f"{folder.path}; the same command with --resume goes on"
                )
    _save(run, folder)


def _save(run: Run, folder: RunFolder) -> None:
    """Write the log since the last time, then the checkpoint that counts on it."""
    if run.log:
        write_frame(folder.log_parts / f"{run.ended:09d}.parquet", log_of(run.log))
        run.log.clear()
    checkpoint = run.checkpoint()
    facts = {**checkpoint.facts, "threads": torch.get_num_threads()}
    save(folder.checkpoints, Checkpoint(checkpoint.round, checkpoint.tensors, facts))


def _finish(run: Run, folder: RunFolder) -> None:
    """Write the results; the summary comes last and says that all of them are there."""
    parts = sorted(folder.log_parts.glob("*.parquet"))
    log = pl.concat([log_of(run.log), *map(pl.read_parquet, parts)])
    write_frame(folder.participation, log)
    write_frame(folder.metrics, run.metrics_table())
    write_frame(folder.clients, run.clients())
    named = run.task.layout.unflatten(run.output())
    tensors = {name: tensor.contiguous().cpu() for name, tensor in named.items()}
    write_atomically(folder.model, lambda path: safetensors.torch.save_file(tensors, path))
    write_json(folder.timings, _timings(run) | {"trainer": run.trainer_choice})
    write_json(folder.summary, {"rounds": run.ended, "metrics": run.metrics[-1]})
    for part in parts:
        part.unlink()
    if folder.log_parts.exists():
        folder.log_parts.rmdir()


def _timings(run: Run) -> dict[str, Any]:
    spent = run.timings
    return {
        "rounds": spent.rounds,
        "training_seconds": spent.training,
        "evaluation_seconds": spent.evaluation,
        "rounds_per_second": spent.rounds / spent.training if spent.training else 0.0,
    }


def _result(run: Run, participation: pl.DataFrame, out: Path | None = None) -> Result:
    iterates = None
    if run.iterates:
        iterates = np.stack([x.cpu().numpy() for x in run.iterates])
    return Result(
        model=run.output().cpu().numpy(),
        metrics=run.metrics_table(),
        participation=participation,
        clients=run.clients(),
        state=run.state,
        trainer=run.trainer_choice,
        timings=_timings(run),
        iterates=iterates,
        out=out,
    )
