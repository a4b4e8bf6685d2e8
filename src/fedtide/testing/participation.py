"""Checks of availability processes, selections and dropout models."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedtide.participation import (
    Availability,
    Dropout,
    Participants,
    Schedule,
    Selection,
    Table,
)
from fedtide.population import Population
from fedtide.testing._purity import assertions, fail, no_global_randomness
from fedtide.validation import require_one_per_client, require_probabilities

_ROUNDS = 64
_SEED = 3
_HINT = (
    "let a round follow from its number, the population and the seed alone, with numbers drawn "
    "from fedtide.randomness.uniforms(seed, purpose, t, ids)"
)


def check_process(process: Availability, population: Population | None = None) -> None:
    """Check an availability process: does a run that is resumed see the same clients?

    - Every round has sorted ids of clients, each at most once, with finite weights q >= 0 or none.
    - Round t is the same whichever rounds were asked for before, and beside other streams.
    - Arrays of an earlier round keep their values.
    - No number comes from a global generator.
    - `known_rates` are None, or a probability for each client.

    Args:
        process: what is checked.
        population: the clients; by default 24 with 4 classes, of 1 to 24 samples.

    Raises:
        AssertionError: it does not keep the contract of `Availability`.

    >>> from fedtide.participation import Markov
    >>> check_process(Markov(0.3))
    """
    population = population or _population()
    with assertions(), no_global_randomness("the process", _HINT):
        _check_repeatable(Schedule(process), population, "available")
        rates = process.known_rates(population, _SEED)
        if rates is not None:
            known = require_probabilities("known_rates", rates)
            require_one_per_client("known_rates", known, population.clients)


def check_selection(selection: Selection, population: Population | None = None) -> None:
    """Check a selection: does a run that is resumed ask the same clients?

    - Every round gives sorted ids of available clients, each at most once; none if nobody is there.
    - Round t is the same in a second stream. A stream that says `stateful = False` is asked for
      round t alone, any other for all rounds before it, too.
    - It leaves the arrays that it is given, and those that it returned, as they are.
    - At most `most(N)` clients are selected.
    - No number comes from a global generator.

    Args:
        selection: what is checked.
        population: the clients; by default 24 with 4 classes, of 1 to 24 samples.

    Raises:
        AssertionError: it does not keep the contract of `Selection`.

    >>> from fedtide.participation import LongestAbsent
    >>> check_selection(LongestAbsent(size=3))
    """
    population = population or _population()
    schedule = Schedule(_varied(population.clients), selection)
    with assertions(), no_global_randomness("the selection", _HINT):
        rounds = _check_repeatable(schedule, population, "selected")
    largest, most = max(len(r.selected) for r in rounds), selection.most(population.clients)
    if largest > most:
        fail(f"the selection selects {largest} clients, but most({population.clients}) is {most}")


def check_dropout(dropout: Dropout, population: Population | None = None) -> None:
    """Check a dropout model: does a run that is resumed hear from the same clients?

    - `draw_mask` gives True or False for each of the clients, also for none.
    - It is a function of (seed, t, clients) alone.
    - It leaves the arrays that it is given, and those that it returned, as they are.
    - `reporting_probability` is None, a probability, or one for each client.
    - No number comes from a global generator.

    Args:
        dropout: what is checked.
        population: the clients; by default 24 with 4 classes, of 1 to 24 samples.

    Raises:
        AssertionError: it does not keep the contract of `Dropout`.

    >>> from fedtide.participation import RandomDropout
    >>> check_dropout(RandomDropout(0.3))
    """
    population = population or _population()
    schedule = Schedule(_varied(population.clients), dropout=dropout)
    with assertions(), no_global_randomness("the dropout model", _HINT):
        _check_repeatable(schedule, population, "reported")
        given = dropout.for_population(population).reporting_probability
        if given is not None:
            require_probabilities("reporting_probability", given)


def _population() -> Population:
    shares = np.random.default_rng(0).dirichlet(np.ones(4), size=24)
    return Population(clients=24, samples=np.arange(1, 25), class_shares=shares)


def _varied(clients: int) -> Availability:
    """Return a process in which nobody, one, some and all clients come, with weights."""
    draws = np.random.default_rng(0).random((_ROUNDS, clients))
    shares = np.resize([0.5, 0.2, 1.0, 0.0, 1 / clients], _ROUNDS)
    return Table(np.where(draws < shares[:, None], draws + 0.1, 0.0))


def _check_repeatable(schedule: Schedule, population: Population, stage: str) -> list[Participants]:
    """Return the rounds of a schedule, which are the same in streams that skip some of them."""
    stream = schedule.start(population, _SEED)
    rounds, kept = [], []
    for t in range(min(stream.length or _ROUNDS, _ROUNDS)):
        rounds.append(stream.round(t))
        kept.append(getattr(rounds[t], stage).copy())
    for t, ids in enumerate(kept):
        if not np.array_equal(getattr(rounds[t], stage), ids):
            fail(f"the clients {stage} in round {t} changed in a later round; return a new array")
    for other in _skipping(schedule, population, len(rounds)):
        for field in (stage, "weights"):
            one, again = getattr(rounds[other.round], field), getattr(other, field)
            if not np.array_equal(one, again):
                what = f"clients {stage}" if field == stage else "weights of the clients"
                fail(
                    f"started twice with the same seed, the {what} in round {other.round} are "
                    f"{one!s:.60} and {again!s:.60}; {_HINT}"
                )
    return rounds


def _skipping(schedule: Schedule, population: Population, rounds: int) -> Iterator[Participants]:
    """Yield rounds of two streams that are asked in turn, each for rounds of its own."""
    streams = [schedule.start(population, _SEED) for _ in range(2)]
    for t in range(rounds):
        if t % 3 == 1:
            yield streams[0].round(t)
        if t >= rounds // 2:
            yield streams[1].round(t)
