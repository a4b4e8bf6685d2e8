"""Two quadratics, the methods, and who takes part in which round: for the apps and the tests."""

import numpy as np

from fedtide import algorithms as A

CLIENTS, ROUNDS, STEPS, LR = 2, 3, 3, 0.1
PRESENT = np.array([[1, 0], [0, 0], [1, 1]], dtype=bool)
METHODS = {
    "fedau": A.FedAU(cutoff=2),
    "mifa": A.MIFA(),
    "amplified-scaffold": A.AmplifiedScaffold(period=2, factor=1.3),
}


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices (N, d, d) and the centers (N, d) of F_n = (x - e)' A (x - e) / 2."""
    draws = np.random.default_rng(7)
    roots = draws.normal(size=(CLIENTS, 3, 3))
    matrices = roots @ roots.transpose(0, 2, 1) / 3 + 0.5 * np.eye(3)
    return matrices, draws.normal(size=(CLIENTS, 3)) * 3


def update_of(client: int, x: np.ndarray, correction: np.ndarray | float = 0.0) -> np.ndarray:
    """Return Δ of a client's local steps from x."""
    matrices, centers = problem()
    y = x
    for _ in range(STEPS):
        y = y - LR * (matrices[client] @ (y - centers[client]) + correction)
    return y - x
