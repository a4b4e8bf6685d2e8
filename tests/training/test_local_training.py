"""What a client does locally: parameters, schedules and feasible sets against closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtide.algorithms import FedAvg, Scaffold
from fedtide.errors import InvalidInputError
from fedtide.simulation.local_round import require_plain_sgd
from fedtide.training import (
    Ball,
    Box,
    LearningRateSchedule,
    LocalTraining,
    Piecewise,
    StepDecay,
)

NUMBERS = st.floats(-100, 100)
POINTS = st.lists(NUMBERS, min_size=3, max_size=3).map(
    lambda p: torch.tensor(p, dtype=torch.float64)
)


# Schedules


def test_paper_001_halves_at_most_ten_times():
    """CIFAR-100: halved in round 10,001 and then every 1000 rounds, at most 10 times."""
    local = LocalTraining(
        steps=5, lr=0.1, schedule=StepDecay(decay=0.5, start=10_001, every=1000, times=10)
    )
    rates = {0: 0.1, 10_000: 0.1, 10_001: 0.05, 11_000: 0.05, 11_001: 0.025}
    rates |= {19_000: 0.1 / 2**9, 19_001: 0.1 / 2**10, 50_000: 0.1 / 2**10}
    for t, rate in rates.items():
        assert local.rate(t) == pytest.approx(rate, rel=1e-12)


@given(st.integers(0, 10**5))
def test_paper_003_decays_every_round(t):
    assert StepDecay(decay=0.9999, start=1).factor(t) == pytest.approx(0.9999**t, rel=1e-9)


def test_piecewise():
    schedule = Piecewise(starts=[0, 3, 5], factors=[2.0, 1.0, 0.5])
    assert [schedule.factor(t) for t in range(7)] == [2, 2, 2, 1, 1, 0.5, 0.5]


class FactorByRound(LearningRateSchedule):
    def factor(self, t):
        return [1.0, np.float32(0.5), 0.0, -1.0, float("nan"), float("inf")][t]


def test_a_rate_is_never_negative():
    local = LocalTraining(steps=1, lr=0.1, schedule=FactorByRound())
    assert [local.rate(t) for t in range(3)] == [0.1, 0.05, 0.0]
    for t in range(3, 6):
        with pytest.raises(InvalidInputError, match=f"schedule: its factor in round {t} is"):
            local.rate(t)


# Feasible sets


@given(POINTS, POINTS, st.floats(0.1, 50))
def test_a_ball_gives_the_nearest_point(y, center, radius):
    """The nearest point is y itself inside, and else on the ray from the centre, at r."""
    found = Ball(radius=radius, center=center.tolist())(y)
    distance = torch.linalg.vector_norm(y - center)
    if distance <= radius:
        assert torch.allclose(found, y, rtol=0, atol=1e-12)
    else:
        assert torch.linalg.vector_norm(found - center) == pytest.approx(radius)
        assert torch.linalg.vector_norm(y - found) == pytest.approx(float(distance - radius))


@given(POINTS, NUMBERS, st.floats(0.1, 50))
def test_a_box_cuts_every_coordinate(y, low, width):
    found = Box(low=low, high=low + width)(y)
    assert found.tolist() == [min(max(c, low), low + width) for c in y.tolist()]


@pytest.mark.parametrize("projection", [Ball(radius=2.0), Ball(1.0, [1, 2, 3]), Box(-1.0, 1.0)])
def test_projections_take_stacked_models_and_change_nothing_twice(projection):
    y = 5 * torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = projection(y)
    assert torch.allclose(projection(found), found, atol=1e-12)
    for i in range(4):
        for j in range(6):
            assert torch.allclose(projection(y[i, j]), found[i, j], atol=1e-12)


# Bad input: the field and the value


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LocalTraining(), "steps: "),
        (lambda: LocalTraining(steps=1, epochs=1), "steps: "),
        (lambda: LocalTraining(steps=1, lr=float("nan")), "lr: nan"),
        (lambda: LocalTraining(steps=1, optimizer="adam", momentum=0.5), "momentum: "),
        (lambda: LocalTraining(steps=1, betas=(0.9, 1)), "betas: (0.9, 1)"),
        (lambda: Ball(radius=1, center=[float("inf")]), "center: "),
        (lambda: Ball(radius=1, center=[0, 0]).check(3), "center: 2 numbers for a model of 3"),
        (lambda: Box(low=float("nan"), high=1), "low: nan"),
        (lambda: Piecewise([1], []), "factors: "),
        (lambda: Piecewise([2, 1], [1, 1]), "starts: "),
        (lambda: Piecewise([1], [-1]), "factors: -1"),
    ],
)
def test_bad_input(make, sentence):
    with pytest.raises(InvalidInputError) as error:
        make()
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_methods_that_recover_gradients_refuse_adam(optimizer):
    local = LocalTraining(steps=1, optimizer=optimizer)
    assert not local.is_plain_sgd
    with pytest.raises(InvalidInputError, match=r"^local.optimizer: .* plain local SGD; remove it"):
        require_plain_sgd(Scaffold(), local)
    require_plain_sgd(FedAvg(), local)
