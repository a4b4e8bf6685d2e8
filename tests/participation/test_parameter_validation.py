"""Invalid parameters: the error names the field and gives a hint."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    Availability,
    Bernoulli,
    Churn,
    Correlated,
    Cyclic,
    DayNight,
    Drifting,
    Fluctuating,
    GroupCycle,
    LeastFrequent,
    LeastServed,
    LongestAbsent,
    Markov,
    MinSeparation,
    Permutation,
    PermutationOf,
    RandomDropout,
    Replay,
    Selection,
    Sessions,
    SubsetLaw,
    Table,
    Uniform,
    UniformByClass,
    UniformOf,
    Weighted,
    correlated_rates,
    participation_weights,
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
        (lambda: Bernoulli(1.5), "rates: 1.5"),
        (lambda: Bernoulli(float("nan")), "rates: nan"),
        (lambda: Bernoulli([0.1, -0.2]), "rates: -0.2"),
        (lambda: Markov(0.5, max_on=0), "max_on: 0"),
        (lambda: Markov(0.5, max_on=2), "max_on: 2"),
        (lambda: Cyclic(0.5, period=1), "period: 1"),
        (lambda: Cyclic(0.5, period=2.5), "period: 2.5"),
        (lambda: Cyclic(0.5, start="of"), "start: unknown 'of'"),
        (lambda: Fluctuating(1.5), "rates: 1.5"),
        (lambda: Fluctuating(0.5, "cosine"), "shape: unknown 'cosine'"),
        (lambda: Fluctuating(0.5, period=0), "period: 0"),
        (lambda: Fluctuating(0.5, gamma=0.6), "gamma: 0.6"),
        (lambda: Fluctuating(0.5, low=-1), "low: -1"),
        (lambda: Fluctuating(0.5, least=2), "least: 2"),
        (lambda: Drifting(0.5, 1.5, rounds=3), "final: 1.5"),
        (lambda: Drifting(0.5, 0.4, rounds=0), "rounds: 0"),
        (lambda: Drifting(0.5, 0.4, rounds=1, start=-1), "start: -1"),
        (lambda: DayNight(0.5, -0.1), "night: -0.1"),
        (lambda: DayNight(0.5, 0.1, period=1), "period: 1"),
        (lambda: DayNight(0.5, 0.1, spread=1.5), "spread: 1.5"),
        (lambda: Churn(0.5, arrivals=-1), "arrivals: -1"),
        (lambda: Churn(0.5, stay=0.5), "stay: 0.5"),
        (lambda: Churn(0.5, stay=float("nan")), "stay: nan"),
        (lambda: Sessions(0.5, length=0.5), "length: 0.5"),
        (lambda: Sessions(0.5, length=float("inf")), "length: inf"),
        (lambda: Sessions(0.5, law="normal"), "law: unknown 'normal'"),
        (lambda: Sessions(0.5, shape=0.1), "shape: 0.1"),
        (lambda: Sessions(0.5, law="log-normal", shape=4), "shape: 4"),
        (lambda: UniformByClass(first=1.5), "first: 1.5"),
        (lambda: GroupCycle(0, 5), "groups: 0"),
        (lambda: GroupCycle([0, -1], 5), "groups: "),
        (lambda: GroupCycle([0.5, 1], 5), "groups: "),
        (lambda: GroupCycle(2, 0), "rounds: 0"),
        (lambda: GroupCycle(2, [5, -1]), "rounds: -1"),
        (lambda: GroupCycle(2, [5, 1, 2]), "rounds: 3 turns for 2 groups"),
        (lambda: GroupCycle([0, 1, 2], [5, 1]), "rounds: 2 turns for 3 groups"),
        (lambda: GroupCycle(2, 5, offset="rndm"), "offset: unknown 'rndm'"),
        (lambda: GroupCycle(2, 5, offset=-1), "offset: -1"),
        (lambda: GroupCycle(2, 5, on=1.1), "on: 1.1"),
        (lambda: GroupCycle(2, 5, off=-1), "off: -1"),
        (lambda: Uniform(0), "size: 0"),
        (lambda: Uniform(True), "size: True"),
        (lambda: Uniform(2**63), "size: 9223372036854775808"),
        (lambda: Permutation(-3), "size: -3"),
        (lambda: Weighted(0, [1]), "size: 0"),
        (lambda: Weighted(1, [1, -1]), "weights: -1"),
        (lambda: Weighted(1, [1, float("inf")]), "weights: inf"),
        (lambda: Weighted(2, [1, 0, 0]), "weights: fewer are positive (1)"),
        (lambda: SubsetLaw([[0], [1]], [1.0]), "probabilities: 1 for 2 subsets"),
        (lambda: SubsetLaw([[0], [1]], [0.5, 0.4]), "probabilities: the sum is 0.9"),
        (lambda: SubsetLaw([[0], [1]], [1.5, -0.5]), "probabilities: -0.5"),
        (lambda: Table([[0.5, -0.5]]), "weights: -0.5"),
        (lambda: Table([[0.5, float("nan")]]), "weights: nan"),
        (lambda: Table([0.5, 0.5]), "weights: 1 dimensions"),
        (lambda: Replay("log.csv", stage="use"), "stage: unknown 'use'"),
        (lambda: RandomDropout(1.2), "probability: 1.2"),
        (lambda: UniformOf(0), "size: 0"),
        (lambda: PermutationOf(0), "size: 0"),
        (lambda: LongestAbsent(0), "size: 0"),
        (lambda: LeastServed(0, 3), "size: 0"),
        (lambda: LeastServed(3, 0), "period: 0"),
        (lambda: LeastFrequent(0), "size: 0"),
        (lambda: LeastFrequent(3, beta=0), "beta: 0"),
        (lambda: MinSeparation(0, 1), "size: 0"),
        (lambda: MinSeparation(2, -1), "rounds: -1"),
        (lambda: Correlated(alpha=0), "alpha: 0"),
        (lambda: Correlated(mean=1.5), "mean: 1.5"),
        (lambda: Correlated(floor=-0.1), "floor: -0.1"),
        (lambda: correlated_rates([[0.5, 0.4]]), "class_shares: a row"),
        (lambda: correlated_rates([0.5, 0.5]), "class_shares: 1 dimensions"),
    ],
)
def test_invalid_parameters_are_rejected(make: Callable[[], object], start: str) -> None:
    assert_rejected(make, start)


@pytest.mark.parametrize(
    ("process", "start"),
    [
        (Bernoulli([0.1, 0.2]), "rates: 2 entries for 4 clients"),
        (Bernoulli(["a"]), "rates: not an array of numbers"),
        (Markov([0.1]), "rates: 1 entry for 4 clients"),
        (Cyclic([0.1] * 5), "rates: 5 entries for 4 clients"),
        (Bernoulli(Correlated()), "rates: these clients have no class shares"),
        (Drifting(0.1, [0.1], rounds=2), "final: 1 entry for 4 clients"),
        (DayNight(0.5, UniformByClass()), "night: these clients have no class shares"),
        (Churn([0.1, 0.2]), "rates: 2 entries for 4 clients"),
        (Sessions([0.1, 0.2]), "rates: 2 entries for 4 clients"),
        (Fluctuating([0.1, 0.2]), "rates: 2 entries for 4 clients"),
        (GroupCycle([0, 1], 5), "groups: 2 entries for 4 clients"),
        (GroupCycle(5, 5), "groups: 5 groups of 4 clients"),
        (Uniform(5), "size: 5 of 4 clients"),
        (Permutation(5), "size: 5 of 4 clients"),
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


@pytest.mark.parametrize(
    "selection",
    [
        UniformOf(5),
        PermutationOf(5),
        LongestAbsent(5),
        LeastServed(5, 2),
        LeastFrequent(5),
        MinSeparation(5, 0),
    ],
)
def test_selections_larger_than_the_population_are_rejected(selection: Selection) -> None:
    assert_rejected(lambda: selection.start(FOUR, seed=0), "size: 5 of 4 clients")


def test_table_files_without_weights_or_with_unknown_clients_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("round,client\n0,1\n")
    assert_rejected(
        lambda: Table(path).begin(FOUR, seed=0), f"weights: {str(path)!r} lacks weights"
    )
    path.write_text("round,client,weight\n0,4,1\n")
    assert_rejected(lambda: Table(path).begin(FOUR, seed=0), "weights: client 4")


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (lambda: Population(2.5), "clients: 2.5"),  # type: ignore[arg-type]
        (lambda: Population(0), "clients: 0"),
        (lambda: participation_weights(Bernoulli(0.5), FOUR, rounds=2.5), "rounds: 2.5"),  # type: ignore[arg-type]
        (lambda: participation_weights(Bernoulli(0.5), FOUR, rounds=0), "rounds: 0"),
    ],
)
def test_numbers_and_parts_of_another_kind_are_rejected(
    make: Callable[[], object], start: str
) -> None:
    assert_rejected(make, start)


def test_weights_without_any_participation_are_rejected() -> None:
    never = Bernoulli(np.zeros(4))
    assert_rejected(lambda: participation_weights(never, FOUR, rounds=10), "participation: ")
