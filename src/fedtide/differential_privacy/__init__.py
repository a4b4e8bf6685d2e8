"""Clipping and noise for weighted sums; `fedtide.privacy` is the public module."""

from fedtide.differential_privacy.accounting import epsilon_of_loss, loss_of_epsilon
from fedtide.differential_privacy.mechanisms import (
    MECHANISMS,
    Gaussian,
    MatrixFactorisation,
    Mechanism,
)
from fedtide.differential_privacy.private_sum import (
    PrivateSum,
    PrivateSumState,
    largest_epsilon,
    make_private,
    shut_out,
)

__all__ = [
    "MECHANISMS",
    "Gaussian",
    "MatrixFactorisation",
    "Mechanism",
    "PrivateSum",
    "PrivateSumState",
    "epsilon_of_loss",
    "largest_epsilon",
    "loss_of_epsilon",
    "make_private",
    "shut_out",
]
