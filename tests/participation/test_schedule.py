"""Schedules: participation weights, known rates, and what the parts return."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedtide.client_values import order_by_id
from fedtide.errors import InvalidInputError
from fedtide.participation import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Bernoulli,
    Dropout,
    Full,
    LongestAbsent,
    NoDropout,
    RandomDropout,
    Schedule,
    ScheduleStream,
    Selection,
    SelectionStream,
    SubsetLaw,
    Table,
    UniformOf,
)
from fedtide.population import Population
from fedtide.randomness import uniforms


def test_weights_come_from_the_process_or_are_one_over_the_number_reported() -> None:
    population = Population(clients=3)
    table = Table([[0.2, 0.0, 0.7], [0.1, 0.5, 0.4]])
    running = Schedule(table, LongestAbsent(1, ties="id")).start(population, seed=0)
    first, second = running.round(0), running.round(1)
    assert (first.reported.tolist(), first.weights.tolist()) == ([0], [0.2])
    assert (second.reported.tolist(), second.weights.tolist()) == ([1], [0.5])
    who = Schedule(Full(), dropout=RandomDropout(0.5)).start(population, seed=1).round(0)
    np.testing.assert_allclose(who.weights, np.full(len(who.reported), 1 / len(who.reported)))
    empty = Schedule(Full(), dropout=RandomDropout(1.0)).start(population, seed=1).round(0)
    assert empty.weights.shape == (0,)


def test_a_schedule_knows_its_rates_without_a_selection() -> None:
    population = Population(clients=4)
    np.testing.assert_allclose(
        Schedule(Bernoulli(0.5), dropout=RandomDropout(0.2)).known_rates(population, 0), 0.4
    )
    assert Schedule(Bernoulli(0.5), UniformOf(3)).known_rates(population, 0) is None
    everybody = Schedule(Bernoulli(0.5), UniformOf(4)).known_rates(population, 0)
    np.testing.assert_array_equal(everybody, [0.5] * 4)


class Gives(AvailabilityStream, SelectionStream):
    """A process or a selection of the user's own that gives the same in every round."""

    stateful = False

    def __init__(self, found: Any) -> None:
        self.found = found

    def round(self, t: int) -> Any:
        return self.found

    def select(self, t: int, available: AvailableClients) -> Any:
        return self.found


IDS = [[2, 0], [1, 1], [0, 4], None]


@pytest.mark.parametrize("ids", IDS, ids=str)
def test_ids_of_a_process_or_a_selection_are_checked(ids: Any) -> None:
    for process, selection in (
        (Gives(AvailableClients(np.array(ids))), Gives(np.array([], dtype=np.int64))),
        (Gives(AvailableClients(np.arange(4))), Gives(ids)),
    ):
        running = ScheduleStream(process, selection, NoDropout(), seed=0, clients=4)
        with pytest.raises(InvalidInputError, match=r"^(participation|selection): in round 3 its"):
            running.round(3)


@pytest.mark.parametrize("weights", [[0.5], [0.5, -0.1], [0.5, np.nan], 0.5], ids=str)
def test_weights_of_a_process_are_checked(weights: Any) -> None:
    process = Gives(AvailableClients(np.array([0, 2]), np.array(weights)))
    running = ScheduleStream(process, Gives(np.array([2])), NoDropout(), seed=0, clients=4)
    with pytest.raises(InvalidInputError, match=r"^participation: in round 0 its weights"):
        running.round(0)


@dataclass(frozen=True)
class Own(Availability, Selection, Dropout):
    """A process, selection or dropout model of the user's own that gives what a test says."""

    given: Any = None

    def begin(self, population: Population, seed: int) -> Any:
        return self.given

    def start(self, population: Population, seed: int) -> Any:
        return self.given

    def known_rates(self, population: Population, seed: int) -> Any:
        return self.given

    def draw_mask(self, seed: int, t: int, clients: Any) -> Any:
        return self.given

    @property
    def reporting_probability(self) -> Any:
        return self.given


MASKS = [
    np.array([1, 0, 1, 0]),
    np.array([0, 2]),
    np.array([True]),
    None,
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_masks_of_a_dropout_model_are_checked(mask: Any) -> None:
    """Numbers would be read as positions: 1, 0, 1, 0 as clients 1 and 0, twice each."""
    running = Schedule(Full(), dropout=Own(mask)).start(Population(clients=4), seed=0)
    with pytest.raises(
        InvalidInputError, match=r"^dropout: in round 3 its mask .* each selected client, 4 in all"
    ):
        running.round(3)


@dataclass(frozen=True)
class Slow(Dropout):
    """Client n reports in a share of the rounds of its own."""

    shares: tuple[float, ...] | Mapping[int, float]

    def for_population(self, population: Population) -> Dropout:
        return Slow(tuple(order_by_id("shares", self.shares, population)))

    def draw_mask(self, seed: int, t: int, clients: Any) -> Any:
        return uniforms(seed, "slow", t, clients) < np.array(self.shares)[clients]

    @property
    def reporting_probability(self) -> Any:
        return np.array(self.shares)


@pytest.mark.parametrize("shares", [(0.9, 0.5, 0.1), {2: 0.1, 0: 0.9, 1: 0.5}])
def test_known_rates_follow_the_clients_probabilities_of_reporting(shares: Any) -> None:
    """With their mean, known rates would give the fast clients too much weight."""
    rounds, population = 4000, Population(clients=3)
    schedule = Schedule(Bernoulli(0.5), dropout=Slow(shares))
    running = schedule.start(population, seed=0)
    reported = np.zeros(3)
    for t in range(rounds):
        reported[running.round(t).reported] += 1
    rates = schedule.known_rates(population, seed=0)
    np.testing.assert_allclose(rates, [0.45, 0.25, 0.05])
    np.testing.assert_allclose(reported / rounds, rates, atol=0.03)
    assert schedule.reporting_probability(population) == pytest.approx(0.5)


class InPlace(SelectionStream):
    """A selection of the user's own that shuffles, or a dropout model that marks, in place."""

    def select(self, t: int, available: AvailableClients) -> Any:
        np.random.default_rng(t).shuffle(available.clients)
        return np.sort(available.clients[:2])


class Marks(Own):
    def draw_mask(self, seed: int, t: int, clients: Any) -> Any:
        clients[:] = -1
        return clients < 0


@pytest.mark.parametrize("process", [Full(), SubsetLaw([[0, 1, 3]], [1.0])], ids=repr)
@pytest.mark.parametrize(
    "parts", [{"selection": Own(InPlace())}, {"dropout": Marks()}], ids=["selection", "dropout"]
)
def test_the_clients_that_ones_own_code_is_shown_cannot_be_changed(
    process: Availability, parts: dict[str, Any]
) -> None:
    """A shuffle in place changed who was available, in Full and SubsetLaw in all later rounds."""
    population = Population(clients=4)
    before = process.begin(population, seed=0).round(0).clients.tolist()
    running = Schedule(process, **parts).start(population, seed=0)
    with pytest.raises(ValueError, match="read-only"):
        running.round(0)
    assert process.begin(population, seed=0).round(0).clients.tolist() == before
