"""What updates say about gradients."""

from __future__ import annotations

from torch import Tensor

from fedtide.algorithms.base import ClientUpdates
from fedtide.errors import InvalidInputError
from fedtide.validation import positive


def mean_descents(reports: ClientUpdates) -> Tensor:
    """Return -Δ_n / (γ I_n), what each client stepped along on average, shape (S, d).

    For plain local SGD that is the mean of its raw gradients plus its correction.

    Raises:
        InvalidInputError: γ is not positive, or a client took no step, so that its update says nothing.
    """
    positive("lr", reports.lr)
    if len(reports.steps) and int(reports.steps.min()) < 1:
        raise InvalidInputError("steps: a client took no local step; leave its report out")
    scale = -1.0 / (reports.lr * reports.steps.double())
    return reports.updates * scale.to(reports.updates.dtype).unsqueeze(1)
