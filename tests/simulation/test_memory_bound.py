"""A cohort that trains in parts gives the result of one that trains together."""

import numpy as np
import pytest

import fedtide as ft


@pytest.mark.parametrize(
    "algorithm",
    [
        ft.algorithms.FedAU(cutoff=5),
        ft.algorithms.Scaffold(option=1),
        ft.algorithms.WaitForAll(period=3, mode="gradient"),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_parts_make_no_difference(algorithm):
    draw = np.random.default_rng(0)
    curvature = draw.uniform(0.5, 2.0, size=(9, 2))
    result = [
        ft.simulate(
            problem=ft.problems.Quadratic(
                matrices=curvature[:, :, None] * np.eye(2), centers=draw_centers()
            ),
            participation=ft.participation.Bernoulli(rates=0.7),
            algorithm=algorithm,
            local=ft.LocalTraining(steps=2, lr=0.1),
            rounds=12,
            dtype="float64",
            trainer="stacked",
            max_stack_bytes=bound,
        ).model
        for bound in (1, 2 * 2 * 8, 2**28)  # one client at a time, two, all
    ]
    assert np.allclose(result[0], result[2], rtol=1e-12, atol=1e-12)
    assert np.allclose(result[1], result[2], rtol=1e-12, atol=1e-12)


def draw_centers():
    return np.random.default_rng(1).normal(size=(9, 2))
