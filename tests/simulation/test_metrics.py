"""What a run remembers, against literal NumPy."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtide as ft
from fedtide.problems import Evaluation
from fedtide.simulation.metrics import ParticipationTally, metrics_row, spread

FIGURES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(FIGURES, st.sampled_from(["loss", "accuracy"]))
def test_spread(values, figure):
    found = spread(figure, np.array(values))
    count = max(1, len(values) // 10)
    worst = sorted(values, reverse=figure == "loss")[:count]
    assert found["worst_tenth"] == pytest.approx(sum(worst) / count, rel=1e-9, abs=1e-6)
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    assert found["std"] == pytest.approx(variance**0.5, rel=1e-6, abs=1e-3)
    for name, quantile in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
        place = quantile * (len(values) - 1)
        low, ordered = int(place), sorted(values)
        high = min(low + 1, len(values) - 1)
        expected = ordered[low] + (place - low) * (ordered[high] - ordered[low])
        assert found[name] == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_participation_loss_weighs_clients_by_how_they_came():
    """Σ p_n F_n with p_n the mean of 1[n in S] / |S| over the rounds with anybody."""
    tally = ParticipationTally(3)
    for cohort in ([0], [0, 1], [], [0, 1, 2]):
        tally.add(np.array(cohort, dtype=np.int64), np.full(len(cohort), 0.5))
    p = np.array([1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3]) / 3
    assert p.sum() == pytest.approx(1)
    assert np.allclose(tally.participation_weights(), p)
    losses = np.array([1.0, 2.0, 6.0])
    row = metrics_row(4, Evaluation({"loss": 3.0}, {"loss": losses}), tally)
    assert row["participation_loss"] == pytest.approx(p @ losses)
    assert (row["round"], row["loss"]) == (4, 3.0)
    assert tally.used.tolist() == [3, 2, 1]


def test_participation_loss_has_the_weights_of_the_objective_too():
    """Clients minimise N a_n F_n, so averaging minimises Σ p_n a_n F_n over its weights' sum."""
    tally, a, losses = ParticipationTally(3), np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 6.0])
    evaluation = Evaluation({"loss": float(a @ losses)}, {"loss": losses})
    tally.add(np.arange(3), np.full(3, 1 / 3))
    even = metrics_row(1, evaluation, tally, a)
    assert even["participation_loss"] == pytest.approx(even["loss"])
    tally.add(np.array([0]), np.ones(1))
    p = np.array([1 / 3 + 1, 1 / 3, 1 / 3]) / 2
    found = metrics_row(2, evaluation, tally, a)["participation_loss"]
    assert found == pytest.approx(p * a @ losses / (p @ a))
    away = metrics_row(2, evaluation, tally, np.array([0.0, 0.0, 1.0]))
    assert away["participation_loss"] == 6.0
    alone = ParticipationTally(3)
    alone.add(np.array([0]), np.ones(1))
    none = metrics_row(1, evaluation, alone, np.array([0.0, 0.0, 1.0]))
    assert none["participation_loss"] is None, "nobody who counts took part"


@pytest.fixture(scope="module")
def run():
    """Return a run with known rates on quadratics, its A_n and e_n."""
    draw = np.random.default_rng(0)
    a = [np.diag(draw.uniform(0.5, 2, size=2)) for _ in range(12)]
    e = draw.normal(size=(12, 2))
    rates = draw.uniform(0.2, 0.9, size=12)
    result = ft.simulate(
        problem=ft.problems.Quadratic(matrices=a, centers=e),
        participation=ft.participation.Bernoulli(rates=rates),
        algorithm=ft.algorithms.KnownRates(),
        local=ft.LocalTraining(steps=2, lr=0.1),
        rounds=40,
        evaluation={"every": 8},
        dtype="float64",
        record_iterates=True,
        trainer="reference",
    )
    return result, np.array(a), e, rates


def test_metrics_are_those_of_the_iterates(run):
    result, a, e, _ = run
    log = result.participation
    for row in result.metrics.iter_rows(named=True):
        offset = result.iterates[row["round"]] - e
        losses = 0.5 * np.einsum("ni,nij,nj->n", offset, a, offset)
        assert row["loss"] == pytest.approx(losses.mean())
        assert row["client_loss_std"] == pytest.approx(losses.std())
        assert row["client_loss_worst_tenth"] == pytest.approx(losses.max())
        shares, cohorts = np.zeros(12), 0
        for _, cohort in log.filter(pl.col("round") < row["round"]).group_by("round"):
            shares[cohort["client"].to_numpy()] += 1 / len(cohort)
            cohorts += 1
        if cohorts:
            assert row["participation_loss"] == pytest.approx(shares @ losses / cohorts)
        else:
            assert row["participation_loss"] is None


def test_clients(run):
    result, a, e, rates = run
    table = result.clients
    came = result.participation.group_by("client").len().sort("client")
    expected = np.zeros(12)
    expected[came["client"].to_numpy()] = came["len"].to_numpy() / 40
    assert table["participation"].to_list() == expected.tolist()
    assert table["client"].to_list() == list(range(12))
    assert np.allclose(table["rate"].to_numpy(), rates)
    assert np.allclose(table["weight"].to_numpy(), 1 / rates)  # what makes up for participation
    offset = result.model - e
    assert np.allclose(table["loss"].to_numpy(), 0.5 * np.einsum("ni,nij,nj->n", offset, a, offset))


@pytest.mark.parametrize(
    ("rounds", "local", "evaluation", "every"),
    [
        # 1,797 samples are evaluated, 1 is trained on: a tenth as many is out of reach
        (240, {"steps": 1, "batch_size": 1}, {}, 24),
        # all 1,797 are trained on six times: a round of training is worth an evaluation
        (20, {"epochs": 6, "batch_size": None}, {}, 10),
    ],
)
def test_an_evaluation_by_default_waits_for_as_much_training(rounds, local, evaluation, every):
    result = ft.simulate(
        problem={"type": "classification", "dataset": "digits", "clients": 3, "partition": "iid"},
        participation={"type": "uniform", "size": 1},
        algorithm="fedavg",
        local={"lr": 0.01, **local},
        rounds=rounds,
        evaluation=evaluation,
        trainer="reference",
    )
    assert result.metrics["round"].to_list() == list(range(0, rounds + 1, every))
