"""Every parameter that cannot be used is named, with the mend."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    Availability,
    Bernoulli,
    Correlated,
    Cyclic,
    GroupCycle,
    LeastServed,
    LongestAbsent,
    Markov,
    Permutation,
    PermutationOf,
    RandomDropout,
    Replay,
    Selection,
    SubsetLaw,
    Table,
    Uniform,
    UniformOf,
    Weighted,
    correlated_rates,
    participation_weights,
)
from fedtide.population import Population

FOUR = Population(clients=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bernoulli(1.5), "rates: 1.5 is not within"),
        (lambda: Bernoulli(float("nan")), "rates: nan is not finite"),
        (lambda: Bernoulli([0.1, -0.2]), "rates: -0.2 is not within"),
        (lambda: Bernoulli([[0.1], [0.2]]), "rates: 2 dimensions; give an array of 1"),
        (lambda: Bernoulli(["a"]), "rates: not an array of numbers"),
        (lambda: Markov(0.5, max_on=0), "max_on: 0 lets nobody come back"),
        (lambda: Markov(0.5, max_on=2), "max_on: 2 is not within"),
        (lambda: Cyclic(0.5, period=1), "period: 1 is not a whole number"),
        (lambda: Cyclic(0.5, period=2.5), "period: 2.5 is not a whole number"),
        (lambda: Cyclic(0.5, start="of"), "start: 'of' is no way to start; did you mean 'off'"),
        (lambda: GroupCycle(0, 5), "groups: 0 is not a whole number"),
        (lambda: GroupCycle([0, -1], 5), "groups: give a number of groups, or"),
        (lambda: GroupCycle([0.5, 1], 5), "groups: give a number of groups, or"),
        (lambda: GroupCycle(2, 0), "rounds: 0 is not a whole number"),
        (lambda: GroupCycle(2, [5, -1]), "rounds: -1 is not a whole number"),
        (lambda: GroupCycle(2, [5, 1, 2]), "rounds: 3 turns for 2 groups"),
        (lambda: GroupCycle([0, 1, 2], [5, 1]), "rounds: 2 turns for 3 groups"),
        (lambda: GroupCycle(2, 5, offset="rndm"), "offset: 'rndm' is unknown"),
        (lambda: GroupCycle(2, 5, offset=-1), "offset: -1 is not a whole number"),
        (lambda: GroupCycle(2, 5, on=1.1), "on: 1.1 is not within"),
        (lambda: GroupCycle(2, 5, off=-1), "off: -1 is not within"),
        (lambda: Uniform(0), "size: 0 is not a whole number; give one of at least 1"),
        (lambda: Uniform(True), "size: True is not a whole number"),
        (lambda: Permutation(-3), "size: -3 is not a whole number"),
        (lambda: Weighted(0, [1]), "size: 0 is not a whole number"),
        (lambda: Weighted(1, [1, -1]), "weights: -1 is negative"),
        (lambda: Weighted(1, [1, float("inf")]), "weights: inf is not finite"),
        (lambda: Weighted(2, [1, 0, 0]), "weights: 1 are positive; give at least size = 2"),
        (lambda: SubsetLaw([[0], [1]], [1.0]), "probabilities: 1 for 2 subsets"),
        (lambda: SubsetLaw([[0], [1]], [0.5, 0.4]), "probabilities: they sum to 0.9"),
        (lambda: SubsetLaw([[0], [1]], [1.5, -0.5]), "probabilities: 1.5 is not within"),
        (lambda: SubsetLaw([[0, 0]], [1.0]), "subsets: a client is twice in subset 0"),
        (lambda: SubsetLaw([[-1]], [1.0]), "subsets: subset 0 is not a list of client ids"),
        (lambda: Table([[0.5, -0.5]]), "weights: -0.5 is negative"),
        (lambda: Table([[0.5, float("nan")]]), "weights: nan is not finite"),
        (lambda: Table([0.5, 0.5]), "weights: 1 dimensions; give an array of 2"),
        (lambda: Replay("log.csv", stage="use"), "stage: 'use' is unknown; did you mean 'used'"),
        (lambda: RandomDropout(1.2), "probability: 1.2 is not within"),
        (lambda: UniformOf(0), "size: 0 is not"),
        (lambda: PermutationOf(0), "size: 0 is not"),
        (lambda: LongestAbsent(0), "size: 0 is not"),
        (lambda: LeastServed(0, 3), "size: 0 is not"),
        (lambda: LeastServed(3, 0), "period: 0 is not"),
        (lambda: Correlated(alpha=0), "alpha: 0 is not above 0"),
        (lambda: Correlated(mean=1.5), "mean: 1.5 is not within"),
        (lambda: Correlated(floor=-0.1), "floor: -0.1 is not within"),
        (lambda: correlated_rates([[0.5, 0.4]]), "class_shares: a row does not sum to 1"),
        (lambda: correlated_rates([0.5, 0.5]), "class_shares: 1 dimensions"),
    ],
)
def test_parameters_alone(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (Bernoulli([0.1, 0.2]), "rates: 2 entries for 4 clients; give one for each"),
        (Markov([0.1]), "rates: 1 entries for 4 clients"),
        (Cyclic([0.1] * 5), "rates: 5 entries for 4 clients"),
        (Bernoulli(Correlated()), "rates: these clients hold no classes"),
        (GroupCycle([0, 1], 5), "groups: 2 entries for 4 clients"),
        (GroupCycle(5, 5), "groups: 5 groups of 4 clients"),
        (Uniform(5), "size: 5 of 4 clients; give at most 4"),
        (Permutation(5), "size: 5 of 4 clients"),
        (Weighted(1, [1, 2]), "weights: 2 entries for 4 clients"),
        (SubsetLaw([[1], [4, 2]], [0.5, 0.5]), "subsets: subset 1 has client 4"),
        (Table([[1, 2, 3]]), "weights: 3 columns for 4 clients"),
        (Replay(pl.DataFrame({"round": [0], "client": [4]})), "log: client 4 is not one of the 4"),
    ],
)
def test_parameters_that_do_not_fit_the_clients(process: Availability, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        process.begin(FOUR, seed=0)
    with pytest.raises(InvalidInputError, match=message):
        process.known_rates(FOUR, seed=0)


@pytest.mark.parametrize(
    "selection", [UniformOf(5), PermutationOf(5), LongestAbsent(5), LeastServed(5, 2)]
)
def test_selections_larger_than_the_population(selection: Selection) -> None:
    with pytest.raises(InvalidInputError, match="size: 5 of 4 clients"):
        selection.start(FOUR, seed=0)


def test_table_files(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("round,client\n0,1\n")
    with pytest.raises(InvalidInputError, match=r"weights: '.*table.csv' lacks weights"):
        Table(path).begin(FOUR, seed=0)
    path.write_text("round,client,weight\n0,4,1\n")
    with pytest.raises(InvalidInputError, match="weights: client 4 is not one of the 4 clients"):
        Table(path).begin(FOUR, seed=0)


def test_weights_of_nobody() -> None:
    with pytest.raises(InvalidInputError, match="participation: nobody ever takes part"):
        participation_weights(Bernoulli(np.zeros(4)), FOUR, rounds=10)
