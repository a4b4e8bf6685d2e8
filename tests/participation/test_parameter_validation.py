"""Invalid parameters: the error names the field and gives a hint."""

import re
from collections.abc import Callable

import polars as pl
import pytest

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    Availability,
    Bernoulli,
    Correlated,
    Drifting,
    GroupCycle,
    LeastFrequent,
    LongestAbsent,
    Markov,
    PermutationOf,
    Replay,
    Sessions,
    SubsetLaw,
    Table,
    Uniform,
    UniformOf,
    Weighted,
    correlated_rates,
)
from fedtide.population import Population

FOUR = Population(clients=4)


def assert_rejected(call: Callable[[], object], start: str) -> None:
    """Assert that `call` raises an InvalidInputError that begins with the field and the value."""
    with pytest.raises(InvalidInputError, match=rf"^{re.escape(start)}"):
        call()


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (lambda: Bernoulli([0.1, -0.2]), "rates: -0.2"),
        (lambda: Markov(0.5, max_on=0), "max_on: 0"),
        (lambda: Sessions(0.5, law="log-normal", shape=4), "shape: 4"),
        (lambda: GroupCycle([0, -1], 5), "groups: "),
        (lambda: GroupCycle(2, [5, 1, 2]), "rounds: 3 turns for 2 groups"),
        (lambda: Uniform(True), "size: True"),
        (lambda: Weighted(2, [1, 0, 0]), "weights: fewer are positive (1)"),
        (lambda: SubsetLaw([[0], [1]], [1.0]), "probabilities: 1 for 2 subsets"),
        (lambda: SubsetLaw([[0], [1]], [0.5, 0.4]), "probabilities: the sum is 0.9"),
        (lambda: SubsetLaw([[0], [1]], [1.5, -0.5]), "probabilities: -0.5"),
        (lambda: Table([[0.5, -0.5]]), "weights: -0.5"),
        (lambda: Table([[0.5, float("nan")]]), "weights: nan"),
        (lambda: Table([0.5, 0.5]), "weights: 1 dimensions"),
        (lambda: Replay("log.csv", stage="use"), "stage: unknown 'use'"),
        (lambda: correlated_rates([[0.5, 0.4]]), "class_shares: a row"),
    ],
)
def test_invalid_parameters_are_rejected(make: Callable[[], object], start: str) -> None:
    assert_rejected(make, start)


@pytest.mark.parametrize(
    ("process", "start"),
    [
        (Bernoulli([0.1, 0.2]), "rates: 2 entries for 4 clients"),
        (Bernoulli(["a"]), "rates: not an array of numbers"),
        (Bernoulli(Correlated()), "rates: these clients have no class shares"),
        (Drifting(0.1, [0.1], rounds=2), "final: 1 entry for 4 clients"),
        (GroupCycle([0, 1], 5), "groups: 2 entries for 4 clients"),
        (GroupCycle(5, 5), "groups: 5 groups of 4 clients"),
        (Uniform(5), "size: 5 of 4 clients"),
        (Weighted(1, [1, 2]), "weights: 2 entries for 4 clients"),
        (SubsetLaw([[1], [4, 2]], [0.5, 0.5]), "subsets[1]: client 4"),
        (Table([[1, 2, 3]]), "weights: 3 columns for 4 clients"),
        (Replay(pl.DataFrame({"round": [0], "client": [4]})), "log: client 4"),
    ],
)
def test_parameters_that_do_not_fit_the_population_are_rejected(
    process: Availability, start: str
) -> None:
    assert_rejected(lambda: process.begin(FOUR, seed=0), start)
    assert_rejected(lambda: process.known_rates(FOUR, seed=0), start)


def test_selections_larger_than_the_population_are_rejected() -> None:
    for selection in (UniformOf(5), PermutationOf(5), LongestAbsent(5), LeastFrequent(5)):
        with pytest.raises(InvalidInputError, match=r"^size: 5 of 4 clients"):
            selection.start(FOUR, seed=0)
