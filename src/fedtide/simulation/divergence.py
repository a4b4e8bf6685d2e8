"""Handling of updates, steps and losses that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedtide.algorithms import Algorithm, ClientUpdates, RoundInfo
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation import Ids
from fedtide.population import Population
from fedtide.problems import Evaluation
from fedtide.simulation.experiment import OnNonfinite
from fedtide.simulation.run_warnings import list_step_sizes
from fedtide.training import devices

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
    rows = _rows(updates, buffers)
    if all(map(has_finite_sum, rows)):
        return updates, buffers
    finite = _are_finite(rows)
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
    return updates.clients, _are_finite(_rows(updates, buffers))


def _rows(updates: ClientUpdates, buffers: torch.Tensor | None) -> list[torch.Tensor]:
    """Return all tensors that the clients sent with one row per client, such as (S, d)."""
    return [r for r in (updates.deltas, updates.gradients, buffers) if r is not None]


def _are_finite(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return for which clients all numbers are finite, shape (S,)."""
    return torch.stack([torch.isfinite(row).all(dim=1) for row in rows]).all(dim=0)


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
    too_high = list_step_sizes(algorithm)
    raise DivergenceError(f"local.lr: the step of round {t} is not finite{named}; lower {too_high}")


def check_loss(
    evaluation: Evaluation, ended: int, population: Population, algorithm: Algorithm[Any]
) -> None:
    """Check that the loss after `ended` rounds is finite.

    Raises:
        DivergenceError: it is not.
    """
    loss = evaluation.metrics.get("loss", 0.0)
    if not np.isfinite(loss):
        losses = evaluation.clients.get("loss", np.zeros(0))
        named = _list_clients(np.flatnonzero(~np.isfinite(losses)), population)
        if ended == 0:
            raise DivergenceError(
                f"problem: the loss is {loss} before any training{named}; check the loss function, "
                "the data and the initial model"
            )
        raise DivergenceError(
            f"local.lr: the loss is {loss} after {quantify(ended, 'round')}{named}; "
            f"lower {list_step_sizes(algorithm)}"
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
    more = ", ..." if len(clients) > 8 else ""
    names = map(str, population.names_of(clients[:8]).tolist())
    return f" (clients {', '.join(names)}{more})"
