"""What is done about updates, steps and losses that are not finite."""

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
"""Whether an update that is not finite stops the run or is left out."""


class DivergenceError(InvalidInputError):
    """An update, a step or a loss that is not finite, in a run that stops there."""


def drop_or_raise_nonfinite(
    reports: ClientUpdates, t: int, on_nonfinite: OnNonfinite
) -> ClientUpdates:
    """Return the reports of round t whose updates are finite.

    Raises:
        DivergenceError: one is not, and that stops the run.
    """
    rows = [reports.updates] + ([] if reports.gradients is None else [reports.gradients])
    if all(math.isfinite(row.sum()) for row in rows):
        return reports
    finite = torch.stack([torch.isfinite(row).all(dim=1) for row in rows]).all(dim=0)
    if bool(finite.all()):  # only their sum is too large
        return reports
    if on_nonfinite == "stop":
        named = _named(reports.clients[~finite].cpu().numpy())
        raise DivergenceError(
            f"local.lr: an update in round {t} is not finite{named}; "
            "lower lr, or leave such updates out with on_nonfinite: drop"
        )
    return reports.of(finite)


def check_step(info: RoundInfo, t: int) -> None:
    """Make sure that the step of round t is finite: there is nothing to leave out of it.

    Raises:
        DivergenceError: finite updates made a step that is not.
    """
    if math.isfinite(info.direction.sum()) or bool(torch.isfinite(info.direction).all()):
        return
    named = _named(info.clients.cpu().numpy())
    raise DivergenceError(f"local.lr: the step of round {t} is not finite{named}; lower lr")


def check_loss(evaluation: Evaluation, ended: int) -> None:
    """Make sure that the loss after so many rounds is finite.

    Raises:
        DivergenceError: it is not.
    """
    loss = evaluation.metrics.get("loss", 0.0)
    if not np.isfinite(loss):
        losses = evaluation.clients.get("loss", np.zeros(0))
        named = _named(np.flatnonzero(~np.isfinite(losses)))
        raise DivergenceError(f"local.lr: the loss is {loss} after {ended} rounds{named}; lower lr")


def _named(clients: Ids) -> str:
    """Return a few of these clients in brackets, for a complaint."""
    if len(clients) == 0:
        return ""
    more = ", ..." if len(clients) > 8 else ""
    return f" (clients {', '.join(map(str, clients[:8].tolist()))}{more})"
