"""What the checks of processes, selections and dropout models find."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedtide.participation import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Dropout,
    Selection,
    SelectionStream,
)
from fedtide.population import Population
from fedtide.testing import check_dropout, check_process, check_selection

CLIENTS = 24


class Global(AvailabilityStream):
    """Draws from a generator that every stream shares."""

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.flatnonzero(np.random.rand(CLIENTS) < 0.5))  # noqa: NPY002


class Sequential(AvailabilityStream):
    """Draws from one generator for all rounds, so that a skipped round changes the next."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.flatnonzero(self.generator.random(CLIENTS) < 0.5))


class Weather(AvailabilityStream):
    """All clients come until the weather changes, in its fortieth step, which is not round 39."""

    def __init__(self) -> None:
        self.steps = 0

    def round(self, t: int) -> AvailableClients:
        self.steps += 1
        return AvailableClients(np.arange(CLIENTS if self.steps < 40 else 4))


class Reused(AvailabilityStream):
    """Returns one array, which it changes in every round."""

    def __init__(self) -> None:
        self.ids = np.zeros(1, dtype=np.int64)

    def round(self, t: int) -> AvailableClients:
        self.ids[0] = t % CLIENTS
        return AvailableClients(self.ids)


class Unsorted(AvailabilityStream):
    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.array([2, 1]))


class Weights(AvailabilityStream):
    """The same clients in every stream, with weights that count the streams."""

    made = 0

    def __init__(self) -> None:
        Weights.made += 1

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.array([1]), np.array([float(self.made)]))


class Forgetful(SelectionStream):
    """Takes turns by counting its calls, but says that it need not be asked for every round."""

    stateful = False

    def __init__(self) -> None:
        self.calls = 0

    def select(self, t: int, available: AvailableClients) -> Any:
        self.calls += 1
        return available.clients[self.calls % 3 :][:1]


class Turns(Forgetful):
    """The same, asked for every round."""

    stateful = True


class Absent(SelectionStream):
    def select(self, t: int, available: AvailableClients) -> Any:
        return np.arange(CLIENTS)


class NeverEmpty(SelectionStream):
    def select(self, t: int, available: AvailableClients) -> Any:
        return available.clients[[0]]


@dataclass(frozen=True)
class Streams(Availability, Selection):
    """A process or a selection with streams of this class."""

    stream: Callable[[], Any]
    size: int = 1
    rates: Any = None

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        return self.stream()

    def start(self, population: Population, seed: int) -> SelectionStream:
        return self.stream()

    def known_rates(self, population: Population, seed: int) -> Any:
        return self.rates


class Everyone(AvailabilityStream):
    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.arange(CLIENTS))


@dataclass(frozen=True)
class Itself(Availability, AvailabilityStream):
    """A process that is its own stream, and whose second start restarts the first."""

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        object.__setattr__(self, "generator", np.random.default_rng(seed))
        return self

    def round(self, t: int) -> AvailableClients:
        draws: Any = self.generator  # type: ignore[attr-defined]
        return AvailableClients(np.flatnonzero(draws.random(CLIENTS) < 0.5))


@pytest.mark.parametrize(
    ("process", "sentence"),
    [
        (Streams(Global), "the process draws from a global random generator"),
        (Streams(Sequential), "started twice with the same seed, the clients available"),
        (Streams(Weather), "started twice with the same seed"),
        (Streams(Reused), "the clients available in round 0 changed in a later round"),
        (Streams(Unsorted), r"participation: in round 0 its clients are \[2 1\]"),
        (Streams(Weights), "the weights of the clients in round"),
        (Itself(), "started twice with the same seed"),
        (Streams(Everyone, rates=[1.2] * CLIENTS), "known_rates: 1.2 is not within"),
        (Streams(Everyone, rates=[0.5]), "known_rates: 1 entry for 24 clients"),
    ],
)
def test_what_a_resumed_run_would_not_repeat_is_found(process: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_process(process)


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        (Streams(Forgetful), "started twice with the same seed, the clients selected"),
        (Streams(Absent, size=CLIENTS), "which is not available"),
        (Streams(Turns, size=0), r"selects 1 clients, but most\(24\) is 0"),
    ],
)
def test_selections_that_break_their_contract_are_found(selection: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_selection(selection)


def test_a_selection_is_asked_in_a_round_in_which_nobody_is_available() -> None:
    with pytest.raises(IndexError):
        check_selection(Streams(NeverEmpty))


def test_a_selection_that_counts_its_calls_may_be_stateful() -> None:
    check_selection(Streams(Turns))


@dataclass(frozen=True)
class Model(Dropout):
    """A dropout model with this mask and this probability."""

    mask: Callable[[int, int], Any]
    reporting_probability: Any = None

    def draw_mask(self, seed: int, t: int, clients: Any) -> Any:
        return self.mask(t, len(clients))


@pytest.mark.parametrize(
    ("dropout", "sentence"),
    [
        (Model(lambda t, n: np.random.rand(n) < 0.5), "the dropout model draws from a global"),  # noqa: NPY002
        (Model(lambda t, n: np.ones(n, dtype=int)), "dropout: in round 0 its mask"),
        (Model(lambda t, n: np.ones(n, dtype=bool), 1.5), "1.5 is not within"),
    ],
)
def test_dropout_models_that_break_their_contract_are_found(
    dropout: Dropout, sentence: str
) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_dropout(dropout)


def test_global_generators_are_found_even_where_the_clients_are_the_same() -> None:
    def drawing() -> AvailabilityStream:
        np.random.rand()  # noqa: NPY002
        return Everyone()

    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    with pytest.raises(AssertionError, match="the process draws from a global random generator"):
        check_process(Streams(drawing))
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002
