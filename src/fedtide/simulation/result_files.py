"""The results of a run: collected in memory, and written to its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from fedtide.algorithms import Instructions
from fedtide.atomic_io import write_atomically, write_frame, write_json
from fedtide.errors import InvalidInputError
from fedtide.metric_direction import lower_is_better
from fedtide.simulation.divergence import find_warnings
from fedtide.simulation.loop import Run
from fedtide.simulation.metrics import clients_table, declared_directions
from fedtide.simulation.result import Result
from fedtide.simulation.run_folder import RunFolder, finite_row
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.select import choose_trainer

_logger = logging.getLogger(__name__)

_FINE_TUNED = 100  # clients whose models are in memory together


def collect_result(
    run: Run,
    plain: Mapping[str, Any],
    participation: pl.DataFrame,
    clients: pl.DataFrame,
    out: Path | None,
) -> Result:
    """Return the result of a run after its last round.

    Args:
        run: the run.
        plain: its experiment as plain data.
        participation: its participation log.
        clients: its table of clients.
        out: its folder; None in memory.
    """
    return Result(
        model=run.driver.output.cpu().numpy(),
        metrics=_metrics_table(run),
        participation=participation,
        clients=clients,
        state=run.driver.state,
        trainer=run.trainer_choice,
        timings=_timings(run),
        experiment=run.experiment,
        plain=plain,
        buffers=None if run.buffer_values is None else run.buffer_values.cpu().numpy(),
        iterates=np.stack([x.cpu().numpy() for x in run.iterates]) if run.iterates else None,
        out=out,
        stopped=run.stopped,
        network=_network(run),
        classes=run.task.class_names,
        held_out=run.task.held_out,
    )


def write_results(run: Run, folder: RunFolder) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Write the results of a run; return the log and the table of clients.

    The summary, written last, marks the results as complete. The warnings in it are looked for when
    all else is written, because they may fail on objects of the user.

    Args:
        run: the run, after its last round.
        folder: its folder.

    Raises:
        InvalidInputError: a file cannot be written.
    """
    log = pl.concat([run.log_table(), *folder.read_log()], how="diagonal")
    write_frame(folder.participation, log)
    write_frame(folder.metrics, _metrics_table(run))
    clients = final_clients(run)
    write_frame(folder.clients, clients)
    tensors = _saved_model(run)
    write_atomically(folder.model, lambda path: safetensors.torch.save_file(tensors, path))
    write_timings(run, folder)
    summary = {
        "rounds": run.ended,
        "parameters": run.task.start.numel(),
        "metrics": finite_row(run.metrics[-1]),
        "lower_is_better": _lower_is_better(run, clients.columns),
        "warnings": warn(run),
    }
    if run.stopped:
        summary["stopped"] = run.stopped
    if run.task.class_names is not None:  # what the network's outputs stand for
        summary["classes"] = list(run.task.class_names)
    write_json(folder.summary, summary)
    folder.drop_partial_results()
    return log, clients


def write_timings(run: Run, folder: RunFolder) -> None:
    """Write how long a run took and how it was computed, even if it diverged."""
    executions = run.executions or [run.execution]  # it may diverge before its first round
    how = {"trainer": run.trainer_choice, "executions": executions}
    write_json(folder.timings, _timings(run) | how)


def _saved_model(run: Run) -> dict[str, torch.Tensor]:
    """Return the model in the form that its network's `load_state_dict` takes.

    If the problem has no network, return the parameters.
    """
    network = _network(run)
    if network is None:
        named = run.task.layout.unflatten(run.driver.output)
    else:
        named = network.state_dict()
    dense = {
        name: tensor if tensor.layout is torch.strided else tensor.to_dense()
        for name, tensor in named.items()
    }  # the file format has no sparse tensors, and refuses the shared memory of tied parameters
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in dense.items()}


def final_clients(run: Run) -> pl.DataFrame:
    """Return one row per client, with its metrics at the last evaluation."""
    evaluation = run.last_evaluation()
    if steps := run.experiment.evaluation.personalise:
        figures = {**evaluation.clients, **_personalised(run, steps)}
        evaluation = replace(evaluation, clients=figures)
    return clients_table(run.population, run.tally, evaluation, run.ended)


def _personalised(run: Run, steps: int) -> dict[str, NDArray[np.float64]]:
    """Return the metrics of each client, shape (N,), after local steps from the output.

    Compared with those of the output, they tell whether the shared model or a model of its own
    serves a client better.
    """
    task, local = run.task.unweighted, replace(run.experiment.local, steps=steps, epochs=None)
    trainer, _ = choose_trainer(run.trainer_name, task, local, 0, compile=False)
    planner = MinibatchPlanner(task.population, local, run.experiment.seed)
    x, lr, parts = run.driver.output, local.rate(run.ended), []
    for first in range(0, task.population.clients, _FINE_TUNED):
        clients = np.arange(first, min(first + _FINE_TUNED, task.population.clients))
        ids = torch.from_numpy(clients).to(x.device)
        start = None if run.buffers is None else run.buffers.of(ids)
        trained = trainer.train(Instructions(x), planner.plan(clients), lr, start)
        parts.append(task.evaluate_clients(x + trained.deltas, clients, trained.buffers))
    return {f"personalised_{n}": np.concatenate([part[n] for part in parts]) for n in parts[0]}


def warn(run: Run) -> list[str]:
    """Log and return what the user should know of a run, such as that it diverged."""
    start = run.metrics[0]
    if start["round"] > 0:
        start = dict(run.task.evaluate(run.task.start, clients=False).metrics)
    moved = not torch.equal(run.driver.output, run.task.start)
    experiment, loss = run.experiment, start.get("loss", 0.0)
    found = find_warnings(experiment.algorithm, run.metrics, loss, run.tally.reports, moved)
    for sentence in found:
        _logger.warning("%s, seed %d: %s", experiment.name, experiment.seed, sentence)
    return found


def _lower_is_better(run: Run, columns: Iterable[str]) -> list[str]:
    """Return the metrics, and those of the clients' columns, for which lower is better."""
    declared = declared_directions(run.last_evaluation())
    names = dict.fromkeys([*run.metrics[-1], *columns])
    return [name for name in names if lower_is_better(name, declared)]


def _metrics_table(run: Run) -> pl.DataFrame:
    """Return one row per evaluation."""
    return pl.DataFrame(run.metrics, infer_schema_length=None)


def _timings(run: Run) -> dict[str, Any]:
    spent = run.timings
    return {
        "rounds": spent.rounds,
        "training_seconds": spent.training,
        "evaluation_seconds": spent.evaluation,
        "rounds_per_second": spent.rounds / spent.training if spent.training else 0.0,
    }


def _network(run: Run) -> nn.Module | None:
    """Return the trained network, which does not keep the data in memory, or None."""
    try:
        return run.task.module(run.driver.output, run.buffer_values)
    except InvalidInputError:  # the problem has no network
        return None
