"""What updates say about gradients."""

from __future__ import annotations

from torch import Tensor

from fedtide.algorithms.algorithm import Reports
from fedtide.checks import positive


def mean_descents(reports: Reports) -> Tensor:
    """Return -Δ_n / (γ I_n), what each client stepped along on average, shape (S, d).

    For plain local SGD that is the mean of its raw gradients plus its drift.

    Raises:
        BadInput: γ is not positive, so that the updates say nothing.
    """
    positive("lr", reports.lr)
    scale = -1.0 / (reports.lr * reports.steps.double())
    return reports.updates * scale.to(reports.updates.dtype).unsqueeze(1)
