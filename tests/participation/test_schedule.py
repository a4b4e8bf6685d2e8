"""Schedules: participation weights and known rates."""

import numpy as np

from fedtide.participation import (
    Bernoulli,
    Full,
    LongestAbsent,
    RandomDropout,
    Schedule,
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
