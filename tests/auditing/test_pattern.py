"""The pattern found in logs of known processes; seeds are fixed."""

import re
from typing import Any

import numpy as np
import pytest
from tests.auditing.logs import from_cohorts, simulate_log, uneven_rates

from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.participation import (
    Availability,
    Bernoulli,
    Cyclic,
    GroupCycle,
    Markov,
    Permutation,
    Schedule,
    Uniform,
)


@pytest.mark.parametrize(
    ("process", "family", "period"),
    [
        (Bernoulli, "independent", None),
        (lambda rates: Uniform(4), "independent", None),
        (Markov, "persistent", None),
        (lambda rates: Cyclic(rates, period=100), "cyclic", 100),
        (lambda rates: Cyclic(rates, period=24), "cyclic", 24),
        (lambda rates: GroupCycle(3, 20, on=0.5, off=0.05), "cyclic", 60),
        (lambda rates: Permutation(4), "regularized", None),
    ],
    ids=["bernoulli", "uniform", "markov", "cyclic", "short cycle", "group cycle", "permutation"],
)
def test_family_and_period_are_recognised(process: Any, family: str, period: int | None) -> None:
    availability: Availability = process(uneven_rates(40, 3))
    found = find_pattern(simulate_log(Schedule(availability), 40, 500, 3))
    assert (found.family, found.period) == (family, period)
    assert found.reason == ""
    low, high = found.memory.interval
    assert (low < 1 < high) == (family == "independent") or period is not None


def test_changing_rates_are_drift() -> None:
    random = np.random.default_rng(0)
    cohorts = [
        np.flatnonzero(random.random(30) < (0.1 if t < 250 else 0.3)).tolist() for t in range(500)
    ]
    assert find_pattern(from_cohorts(cohorts, 30)).family == "drifting"


@pytest.mark.parametrize(("rounds", "family"), [(15, "undecided"), (20, "always")])
def test_constant_presence_is_always_if_the_log_is_long_enough(rounds: int, family: str) -> None:
    found = find_pattern(from_cohorts([[0, 1]] * rounds, 3))
    assert found.family == family


@pytest.mark.parametrize("rounds", [15, 19, 20_000])
def test_rates_are_excluded_up_to_a_bound_that_holds(rounds: int) -> None:
    """A client with the stated rate is there in each of T rounds with probability 0.05 at most."""
    found = find_pattern(from_cohorts([[0, 1]] * rounds, 2))
    (stated,) = re.findall(r"excludes rates below ([\d.]+)", found.reason)
    assert float(stated) ** rounds <= 0.05
    assert 0.05 ** (1 / rounds) - float(stated) < 0.1 * (1 - float(stated))


def test_short_log_is_undecided() -> None:
    random = np.random.default_rng(1)
    cohorts = [np.flatnonzero(random.random(4) < 0.5).tolist() for _ in range(20)]
    assert find_pattern(from_cohorts(cohorts, 4)).family == "undecided"
