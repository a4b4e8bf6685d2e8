"""Schedules: participation weights and known rates."""

from typing import Any

import numpy as np
import pytest

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    AvailabilityStream,
    AvailableClients,
    Bernoulli,
    Full,
    LongestAbsent,
    NoDropout,
    RandomDropout,
    Schedule,
    ScheduleStream,
    SelectionStream,
    Table,
    UniformOf,
)
from fedtide.population import Population


def test_weights_come_from_the_process_or_are_one_over_the_number_reported() -> None:
    population = Population(clients=3)
    table = Table([[0.2, 0.0, 0.7], [0.1, 0.5, 0.4]])
    running = Schedule(table, LongestAbsent(1)).start(population, seed=0)
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
    assert Schedule(Bernoulli(0.5), UniformOf(1)).known_rates(population, 0) is None


class Gives(AvailabilityStream, SelectionStream):
    """A process or a selection of the user's own that gives the same in every round."""

    stateful = False

    def __init__(self, found: Any) -> None:
        self.found = found

    def round(self, t: int) -> Any:
        return self.found

    def select(self, t: int, available: AvailableClients) -> Any:
        return self.found


IDS = [
    ([2, 0], "not sorted"),
    ([1, 1], "at most once"),
    ([0, 4], "client 4"),
    ([-1], "client -1"),
    ([0.0, 1.0], "int64"),
    ([[0]], "int64"),
    ({0, 1}, "int64"),
    (None, "int64"),
]


@pytest.mark.parametrize(("ids", "complaint"), IDS, ids=str)
def test_ids_of_a_process_or_a_selection_of_ones_own_are_checked(ids: Any, complaint: str) -> None:
    given = np.array(ids) if isinstance(ids, list) else ids
    for process, selection in (
        (Gives(AvailableClients(given)), Gives(np.array([], dtype=np.int64))),
        (Gives(AvailableClients(np.arange(4))), Gives(given)),
    ):
        running = ScheduleStream(process, selection, NoDropout(), seed=0, clients=4)
        with pytest.raises(
            InvalidInputError, match=f"^(participation|selection): in round 3 .*{complaint}"
        ):
            running.round(3)


@pytest.mark.parametrize("weights", [[0.5], [0.5, -0.1], [0.5, np.nan], ["a", "b"], 0.5], ids=str)
def test_weights_of_a_process_of_ones_own_are_checked(weights: Any) -> None:
    process = Gives(AvailableClients(np.array([0, 2]), np.array(weights)))
    running = ScheduleStream(process, Gives(np.array([2])), NoDropout(), seed=0, clients=4)
    with pytest.raises(InvalidInputError, match=r"^participation: in round 0 its weights"):
        running.round(0)


def test_a_process_and_a_selection_of_ones_own_may_give_any_sorted_ids() -> None:
    process = Gives(AvailableClients(np.array([0, 2], dtype=np.uint8), np.array([1, 3])))
    running = ScheduleStream(process, Gives([2]), NoDropout(), seed=0, clients=4)
    found = running.round(0)
    assert (found.reported.tolist(), found.weights.tolist()) == ([2], [3.0])
    for wrong, complaint in ((np.arange(2), "AvailableClients"), (None, "AvailableClients")):
        running = ScheduleStream(Gives(wrong), Gives([2]), NoDropout(), seed=0, clients=4)
        with pytest.raises(InvalidInputError, match=complaint):
            running.round(0)
    absent = ScheduleStream(
        Gives(AvailableClients(np.array([0, 2]))), Gives([1]), NoDropout(), 0, 4
    )
    with pytest.raises(InvalidInputError, match="client 1, which is not available"):
        absent.round(0)
