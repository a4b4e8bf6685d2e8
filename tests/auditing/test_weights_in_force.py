"""What the audit reports for logs with sample counts or weights is what the server averages.

Logs and expected numbers are from NumPy alone; seeds are fixed.
"""

import json
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from tests.auditing.logs import Present, draw_chains, draw_cohorts

import fedtide as ft
from fedtide.auditing import Audit, ParticipationLog
from fedtide.auditing.output.html_page import render_page
from fedtide.auditing.statistics.coverage import measure_coverage
from fedtide.auditing.statistics.group_influence import GroupInfluence, measure_group_influence
from fedtide.auditing.statistics.influence import ObjectiveComparison, compare_objectives
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.variance import VarianceModel

Floats = NDArray[np.float64]
ROUNDS, CLIENTS, SIZE = 400, 40, 8


def share(present: Present, counts: Floats) -> Floats:
    """Return each client's share of the samples of each round, (T, N)."""
    samples = present * counts
    return samples / samples.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Log:
    """A log with sample counts: who took part, who has how many, and the audit."""

    present: Present
    counts: Floats
    small: Present
    result: Audit


@pytest.fixture(scope="module")
def sampled() -> Log:
    """Uniform cohorts of 8 of 40 clients, whose sample counts are uneven."""
    random = np.random.default_rng(1)
    counts = np.round(np.exp(random.normal(5, 1.2, CLIENTS))) + 1
    present = draw_cohorts(random, np.ones((ROUNDS, CLIENTS), dtype=bool), SIZE)
    rounds, clients = np.nonzero(present)
    frame = pl.DataFrame(
        {"round": rounds, "client": clients, "num_examples": counts[clients].astype(int)}
    )
    small = counts < np.median(counts)
    roster = pl.DataFrame({"client": range(CLIENTS), "size": np.where(small, "small", "large")})
    return Log(present, counts, small, ft.audit(frame, roster=roster))


def expect(log: Log) -> tuple[Floats, Floats]:
    """Return the influence of each client, and times its share, (N,)."""
    weights = share(log.present, log.counts).mean(axis=0)
    return weights, weights / (log.counts / log.counts.sum())


def print_summary(result: Audit) -> str:
    return " ".join(str(result.summary()).replace("│", " ").split())


def test_clients_have_the_influence_of_the_averaging_in_force(sampled: Log) -> None:
    weights, ratios = expect(sampled)
    table = sampled.result.clients()
    np.testing.assert_allclose(table["weight"], weights, rtol=1e-5)
    np.testing.assert_allclose(table["times_its_share"], ratios, rtol=1e-5)
    assert (table["weight_low"] < weights).all()
    assert (table["weight_high"] > weights).all()
    assert 1.2 < ratios.max() < 2


def test_document_has_the_objective_in_force_on_top(sampled: Log) -> None:
    weights, _ = expect(sampled)
    document = json.loads(json.dumps(sampled.result.to_dict()))["objective"]
    skew = float(np.abs(weights - sampled.counts / sampled.counts.sum()).sum())
    assert document["l1_skew"] == pytest.approx(skew, rel=1e-4)
    assert document["total_variation"] == pytest.approx(skew / 2, rel=1e-4)
    np.testing.assert_allclose(list(document["weights"].values()), weights, rtol=1e-5)
    for key in ("weights", "l1_skew", "l1_skew_interval"):
        assert document[key] == document["given"][key]
    plain = sampled.present.mean(axis=0) / SIZE
    np.testing.assert_allclose(list(document["plain"]["weights"].values()), plain)


@dataclass(frozen=True)
class Staged:
    """A log with stages and sample counts, of which some are only known for used clients."""

    available: Present
    counts: Floats
    rows: pl.DataFrame
    result: Audit


@pytest.fixture(scope="module")
def staged() -> Staged:
    """Half of 40 clients are available, equally often, and 8 of them drawn uniformly."""
    random = np.random.default_rng(2)
    counts = np.round(np.exp(random.normal(5, 1.2, CLIENTS))) + 1
    available = random.random((ROUNDS, CLIENTS)) < 0.5
    used = draw_cohorts(random, available, SIZE)
    rounds, clients = np.nonzero(available)
    of_used = used[rounds, clients]
    rows = pl.DataFrame(
        {
            "round": rounds,
            "client": clients,
            "stage": np.where(of_used, "used", "available"),
            "samples": pl.Series(counts[clients]).set(pl.Series(~of_used), None),
        }
    )
    return Staged(available, counts, rows, ft.audit(rows, clients=CLIENTS))


def test_stages_are_weighted_by_samples(staged: Staged) -> None:
    result, counts = staged.result, staged.counts
    assert result.availability is not None
    expected = share(staged.available, counts).mean(axis=0)
    np.testing.assert_allclose(result.availability.objective.weights, expected, rtol=1e-5)
    skew = float(np.abs(expected - counts / counts.sum()).sum())
    assert result.availability.objective.l1_skew == pytest.approx(skew, rel=1e-4)
    low, high = result.availability.objective.interval
    assert low < skew < high < 0.3
    summary = print_summary(result)
    assert (
        f"averaging over all available clients, weighted by samples: L1 skew "
        f"{result.availability.objective.skew.corrected:.2f}" in summary.lower().replace("l1", "L1")
    )
    assert "L1 skew, weighted by samples" in render_page(result).replace("\n", " ")
    document = result.to_dict()
    assert document["availability"]["l1_skew"] == pytest.approx(skew, rel=1e-4)
    assert document["selection"]["weighted_by_samples"] is True


def test_a_log_with_as_many_rows_as_rounds_has_the_interval_of_its_weights() -> None:
    """Half of each cycle has two of 12 clients, uniformly drawn, and the other half has none.

    Their weights are the shares of counts (n + 1)². The true skew is a mean over all pairs. With
    equal weights it would be 0, so an interval that holds 0 is not that of these weights.
    """
    random, counts = np.random.default_rng(0), np.arange(1.0, 13.0) ** 2
    active = np.arange(480) % 24 < 12
    present = draw_cohorts(random, np.tile(active[:, None], (1, 12)), 2)
    rounds, clients = np.nonzero(present)
    assert len(rounds) == len(active)
    weights = share(present[active], counts).ravel()
    frame = pl.DataFrame(
        {
            "round": [*rounds, 479],
            "client": [*clients, 0],
            "stage": [*["used"] * 480, "available"],
            "weight": [*weights[weights > 0], 0.0],
        }
    )
    result = ft.audit(frame, clients=12, wanted="equal")
    pairs = np.array([[n in pair for n in range(12)] for pair in combinations(range(12), 2)])
    truth = np.abs(share(pairs, counts).mean(axis=0) - 1 / 12).sum()
    assert (result.log.length, result.pattern.period) == (480, 24)
    low, high = result.objectives.in_force.interval
    assert truth / 2 < low < truth < high < 2 * truth


@pytest.mark.statistical
@pytest.mark.parametrize("bursts", [False, True])
def test_intervals_of_weighted_influence_cover(bursts: bool) -> None:
    """The true weights of 40 clients and of 2 groups, in 60 logs.

    Of intervals that hold with probability 0.95, fewer than 51 of 60 hold with probability 0.0008
    (binomial). At least 0.92 of all those of clients shall hold: 1200 independent ones of
    probability 0.95 miss this with a probability below 1e-5.
    """
    random = np.random.default_rng(6)
    counts = np.round(np.exp(random.normal(5, 1.2, CLIENTS))) + 1
    rates = np.clip(random.gamma(1.0, 0.15, CLIENTS), 0.03, 0.9)

    def present(rounds: int) -> Present:
        if bursts:
            found = draw_chains(random, rates, rounds, 0.2)
            return found[found.any(axis=1)]
        return draw_cohorts(random, np.ones((rounds, CLIENTS), dtype=bool), SIZE)

    truth = share(present(100_000), counts).mean(axis=0)
    groups = np.where(counts < np.median(counts), "small", "large")
    of_groups = np.array([truth[groups == name].sum() for name in ("large", "small")])
    clients, pairs = [], []
    for _ in range(60):
        comparison, group = compare(present(ROUNDS), counts, groups)
        clients.append((comparison.low <= truth) & (truth <= comparison.high))
        pairs.append((group.low <= of_groups) & (of_groups <= group.high))
    assert np.mean(clients) >= 0.92
    assert (np.sum(pairs, axis=0) >= 51).all()


def compare(
    present: Present, counts: Floats, groups: NDArray[np.str_]
) -> tuple[ObjectiveComparison, GroupInfluence]:
    """Return the influence of clients and groups, without the rest of an audit."""
    rounds, clients = np.nonzero(present)
    log = ParticipationLog.from_entries(
        pl.Series(range(CLIENTS)),
        rounds,
        clients.astype(np.int32),
        weights=share(present, counts)[rounds, clients].astype(np.float32),
    )
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    variances = VarianceModel(log, pattern, rates)
    comparison = compare_objectives(log, variances, counts / counts.sum())
    coverage = measure_coverage(log)
    of_groups = measure_group_influence(
        "size", pl.Series(groups), log, coverage, rates, comparison, variances
    )
    return comparison, of_groups
