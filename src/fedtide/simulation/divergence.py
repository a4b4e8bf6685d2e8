"""Handling of updates, steps and losses that are not finite."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch

from fedtide.algorithms import ClientUpdates, RoundInfo
from fedtide.errors import InvalidInputError
from fedtide.participation import Ids
from fedtide.problems import Evaluation

OnNonfinite = Literal["stop", "drop"]
"""Whether an update that is not finite stops the run or is dropped."""


class DivergenceError(InvalidInputError):
    """An update, a step or a loss is not finite, and the run stops."""


def drop_or_raise_nonfinite(
    updates: ClientUpdates, t: int, on_nonfinite: OnNonfinite
) -> ClientUpdates:
    """Return the updates of round t that are finite.

    Raises:
        DivergenceError: one is not, and `on_nonfinite` is "stop".
    """
    rows = [updates.deltas] + ([] if updates.gradients is None else [updates.gradients])
    if all(math.isfinite(row.sum()) for row in rows):
        return updates
    finite = torch.stack([torch.isfinite(row).all(dim=1) for row in rows]).all(dim=0)
    if bool(finite.all()):  # only their sum overflows
        return updates
    if on_nonfinite == "stop":
        named = _list_clients(updates.clients[~finite].cpu().numpy())
        raise DivergenceError(
            f"local.lr: an update in round {t} is not finite{named}; "
            "lower lr, or drop such updates with on_nonfinite: drop"
        )
    return updates.select(finite)


def check_step(info: RoundInfo, t: int, knobs: str = "lr") -> None:
    """Check that the step of round t is finite; `knobs` are the fields that might be too high.

    Raises:
        DivergenceError: finite updates led to a step that is not.
    """
    if math.isfinite(info.direction.sum()) or bool(torch.isfinite(info.direction).all()):
        return
    named = _list_clients(info.clients.cpu().numpy())
    raise DivergenceError(f"local.lr: the step of round {t} is not finite{named}; lower {knobs}")


def check_loss(evaluation: Evaluation, ended: int, knobs: str = "lr") -> None:
    """Check that the loss after `ended` rounds is finite; `knobs` are the fields to lower.

    Raises:
        DivergenceError: it is not.
    """
    loss = evaluation.metrics.get("loss", 0.0)
    if not np.isfinite(loss):
        losses = evaluation.clients.get("loss", np.zeros(0))
        named = _list_clients(np.flatnonzero(~np.isfinite(losses)))
        raise DivergenceError(
            f"local.lr: the loss is {loss} after {ended} rounds{named}; lower {knobs}"
        )


def _list_clients(clients: Ids) -> str:
    """Return the first of these clients in parentheses, for an error message."""
    if len(clients) == 0:
        return ""
    more = ", ..." if len(clients) > 8 else ""
    return f" (clients {', '.join(map(str, clients[:8].tolist()))}{more})"
