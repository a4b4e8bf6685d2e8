"""Runs that diverge: updates, steps and losses that are not finite, and warnings at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedtide.algorithms import Algorithm, ClientUpdates, RoundInfo
from fedtide.errors import InvalidInputError, list_names, quantify
from fedtide.participation import Ids
from fedtide.population import Population
from fedtide.problems import Evaluation
from fedtide.simulation.experiment import OnNonfinite
from fedtide.training import devices

RISE = 5.0
"""A run diverged if its last loss exceeds the initial model's by more than this factor."""

Flags = tuple[torch.Tensor, torch.Tensor]
"""Clients, shape (S,), and, on the device, whether each one's update is finite, shape (S,)."""


class DivergenceError(InvalidInputError):
    """An update, a step or a loss is not finite, and the run stops."""


def drop_or_raise_nonfinite(
    updates: ClientUpdates,
    t: int,
    on_nonfinite: OnNonfinite,
    population: Population,
    buffers: torch.Tensor | None,
) -> tuple[ClientUpdates, torch.Tensor | None]:
    """Return the updates of round t that are finite, including their buffers, and these buffers.

    Raises:
        DivergenceError: an update is not finite, and `on_nonfinite` is "stop".
    """
    if all(map(has_finite_sum, _rows(updates, buffers))):
        return updates, buffers
    _, finite = flag_finite(updates, buffers)
    if bool(finite.all()):  # only their sum overflows
        return updates, buffers
    if on_nonfinite == "stop":
        raise _not_finite(updates.clients[~finite.cpu()].numpy(), t, population)
    return updates.select(finite), None if buffers is None else buffers[finite]


def has_finite_sum(tensor: torch.Tensor | None) -> bool:
    """Return whether the sum of all numbers is finite, so that all of them are; true for None."""
    return tensor is None or math.isfinite(tensor.sum())


def flag_finite(updates: ClientUpdates, buffers: torch.Tensor | None) -> Flags:
    """Return the clients, and which of their updates are finite, without waiting for a GPU."""
    finite = [torch.isfinite(row).all(dim=1) for row in _rows(updates, buffers)]
    return updates.clients, torch.stack(finite).all(dim=0)


def _rows(updates: ClientUpdates, buffers: torch.Tensor | None) -> list[torch.Tensor]:
    """Return all tensors that the clients sent with one row per client, such as (S, d)."""
    return [r for r in (updates.deltas, updates.gradients, buffers) if r is not None]


def check_step(
    info: RoundInfo,
    t: int,
    population: Population,
    algorithm: Algorithm[Any],
    unread: Sequence[Flags] | None,
) -> None:
    """Check that the step of round t is finite.

    Args:
        info: of the round.
        t: the round.
        population: the clients.
        algorithm: the method, whose fields the message names.
        unread: flags of updates that were absorbed without looking at them, because on a GPU the
            flags of a round are read all at once. None: every update has been checked.

    Raises:
        DivergenceError: an update is not finite, or finite updates led to a step that is not.
    """
    if unread is not None:
        step = torch.isfinite(info.direction).all()
        *updates, finite_step = devices.read([*(flags for _, flags in unread), step])
        for (clients, _), finite in zip(unread, updates, strict=True):
            if not finite.all():
                raise _not_finite(clients.numpy()[~finite], t, population)
        if finite_step:
            return
    elif has_finite_sum(info.direction) or bool(torch.isfinite(info.direction).all()):
        return
    named = _list_clients(info.clients.numpy(), population)
    too_high = _list_step_sizes(algorithm)
    raise DivergenceError(f"local.lr: the step of round {t} is not finite{named}; lower {too_high}")


def check_loss(
    evaluation: Evaluation, ended: int, population: Population, algorithm: Algorithm[Any]
) -> None:
    """Check that the loss after `ended` rounds is finite.

    Raises:
        DivergenceError: it is not.
    """
    loss = evaluation.metrics.get("loss", 0.0)
    if np.isfinite(loss):
        return
    losses = evaluation.clients.get("loss", np.zeros(0))
    named = _list_clients(np.flatnonzero(~np.isfinite(losses)), population)
    if ended == 0:
        raise DivergenceError(
            f"problem: the loss is {loss} before any training{named}; check the loss function, "
            "the data and the initial model"
        )
    raise DivergenceError(
        f"local.lr: the loss is {loss} after {quantify(ended, 'round')}{named}; "
        f"lower {_list_step_sizes(algorithm)}"
    )


def _not_finite(clients: Ids, t: int, population: Population) -> DivergenceError:
    named = _list_clients(clients, population)
    return DivergenceError(
        f"local.lr: an update in round {t} is not finite{named}; "
        "lower lr, or drop such updates with on_nonfinite: drop"
    )


def _list_clients(clients: Ids, population: Population) -> str:
    """Return the names of the first few of these clients in parentheses, for an error message."""
    if len(clients) == 0:
        return ""
    return f" (clients {list_names(population.names_of(clients).tolist())})"


def find_warnings(
    algorithm: Algorithm[Any],
    metrics: Sequence[Mapping[str, Any]],
    start_loss: float,
    reports: int,
    moved: bool,
) -> list[str]:
    """Return a sentence on everything about a finished run that its user should be warned of.

    Args:
        algorithm: the method of the run.
        metrics: one row per evaluation.
        start_loss: the loss of the initial model.
        reports: the number of rounds in which at least one client reported.
        moved: whether the model differs from the initial one.
    """
    rounds, loss = metrics[-1]["round"], metrics[-1].get("loss", 0.0)
    if not moved and reports == 0:
        return [
            "participation: no client took part in any round, so the model is the "
            "initial one; choose higher rates or more rounds"
        ]
    if not moved:
        return [
            f"algorithm: the model is the initial one after {quantify(rounds, 'round')}, although "
            f"clients took part in {reports:,} of them; if the method waits for the end of a "
            "period or for all clients, let it wait for less or run more rounds; if all updates "
            "are 0 or too small to change the model, raise lr"
        ]
    if not np.isfinite(loss) or 0 < RISE * start_loss < loss:
        return [
            f"local.lr: the loss ended at {loss:,.3g}, from {start_loss:.3g} of the initial model: "
            f"the run diverged; lower {_list_step_sizes(algorithm)}"
        ]
    scored = {n: v for n, v in metrics[-1].items() if n.startswith(("train_", "test_"))}
    if undefined := [name for name, value in scored.items() if not np.isfinite(value)]:
        return [
            f"problem: {', '.join(undefined)} ended as NaN or infinity, although the loss is "
            "finite; a metric must give a finite number for every sample, and a class needs test "
            "samples"
        ]
    return []


def _list_step_sizes(algorithm: Algorithm[Any]) -> str:
    """Return the fields to lower when a run with this method diverges, for a message."""
    factor = algorithm.traits.amplification
    return "lr" if factor is None else f"lr or algorithm.{factor}"
