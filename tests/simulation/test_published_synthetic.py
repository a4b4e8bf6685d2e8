"""Paper 002's synthetic experiment through the whole simulator, without noise.

Those of its methods that need 4712 and 4800 rounds are tested in tests/algorithms only.
"""

import polars as pl
import pytest

import fedtide as ft

PERIOD = 480


def rounds_to_target(algorithm, lr, logged, most):
    """Return after how many rounds the logged objective is at most 0.2; None: not within `most`."""
    result = ft.simulate(
        problem=ft.problems.LowerBound4D(noise=0.0, logged=logged),
        participation=ft.participation.GroupCycle(groups=2, rounds=PERIOD // 2, offset=0),
        algorithm=algorithm,
        local=ft.LocalTraining(steps=10, lr=lr),
        rounds=most,
        dtype="float64",
        trainer="stacked",
        evaluation={"every": 1},
    )
    return result.metrics.filter(pl.col("loss") <= 0.2)["round"].min()


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("algorithm", "lr", "published"),
    [
        (ft.algorithms.Scaffold(), 1e-4, 1872),
        (ft.algorithms.AmplifiedScaffold(PERIOD, 1.5), 1e-4 / 1.5, 736),
    ],
)
def test_the_target_is_reached_when_the_published_run_reaches_it(algorithm, lr, published):
    assert rounds_to_target(algorithm, lr, "published", most=published) == published
