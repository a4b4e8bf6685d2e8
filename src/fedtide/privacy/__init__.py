"""Client-level differential privacy under the participation that really happened.

`Gaussian` and `MatrixFactorisation` are given as `privacy=` to `simulate` and to the strategy of a
federation; `spent` says what a participation log has cost each client.
"""

from fedtide.auditing.privacy import (
    FixedSizeSampling,
    LawCheck,
    PoissonSampling,
    Spent,
    spent,
)
from fedtide.differential_privacy import (
    Gaussian,
    MatrixFactorisation,
    Mechanism,
    PrivateSum,
    epsilon_of_loss,
    loss_of_epsilon,
    make_private,
)

__all__ = [
    "FixedSizeSampling",
    "Gaussian",
    "LawCheck",
    "MatrixFactorisation",
    "Mechanism",
    "PoissonSampling",
    "PrivateSum",
    "Spent",
    "epsilon_of_loss",
    "loss_of_epsilon",
    "make_private",
    "spent",
]
