"""Schedules: participation weights and known rates."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedtide.client_values import order_by_id
from fedtide.errors import InvalidInputError
from fedtide.participation import (
    All,
    Availability,
    AvailabilityStream,
    AvailableClients,
    Bernoulli,
    Dropout,
    Full,
    LongestAbsent,
    NoDropout,
    RandomDropout,
    Replay,
    Schedule,
    ScheduleStream,
    Selection,
    SelectionStream,
    SubsetLaw,
    Table,
    UniformOf,
    participation_weights,
)
from fedtide.participation.round_checks import check_available, check_selected
from fedtide.population import Population
from fedtide.randomness import uniforms


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
    assert Schedule(Bernoulli(0.5), UniformOf(3)).known_rates(population, 0) is None
    everybody = Schedule(Bernoulli(0.5), UniformOf(4)).known_rates(population, 0)
    np.testing.assert_array_equal(everybody, [0.5] * 4)


def test_a_log_is_not_read_for_rates_that_a_selection_changes() -> None:
    schedule = Schedule(Replay("missing.csv"), UniformOf(3))
    assert schedule.known_rates(Population(clients=4), 0) is None
    with pytest.raises(InvalidInputError, match="no file"):
        Schedule(Replay("missing.csv")).known_rates(Population(clients=4), 0)


def test_rates_are_unknown_with_a_selection_derived_from_all() -> None:
    class Half(All):
        def start(self, population: Population, seed: int) -> SelectionStream:
            return UniformOf(2).start(population, seed)

    assert Schedule(Full(), Half()).known_rates(Population(clients=4), seed=0) is None


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


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("ids", [[2, 0, 2], [3, 1], [1, 1]], ids=str)
def test_unsigned_ids_are_checked_like_others(ids: list[int], dtype: Any) -> None:
    """The difference 0 − 2 of unsigned numbers is large, so that these seemed to be sorted."""
    with pytest.raises(InvalidInputError, match="not sorted, each at most once"):
        check_selected(np.array(ids, dtype=dtype), 0, np.arange(4))
    with pytest.raises(InvalidInputError, match="not sorted, each at most once"):
        check_available(AvailableClients(np.array(ids, dtype=dtype)), 0, clients=4)
    with pytest.raises(InvalidInputError, match="client 18446744073709551615"):
        check_selected(np.array([2**64 - 1], dtype=np.uint64), 0, np.arange(4))


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
    np.array([1.0, 0.0, 1.0, 0.0]),
    np.array([True]),
    np.ones((4, 1), dtype=bool),
    True,
    None,
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_masks_of_a_dropout_model_of_ones_own_are_checked(mask: Any) -> None:
    """Numbers would be read as positions: 1, 0, 1, 0 as clients 1 and 0, twice each."""
    running = Schedule(Full(), dropout=Own(mask)).start(Population(clients=4), seed=0)
    with pytest.raises(
        InvalidInputError, match=r"^dropout: in round 3 its mask .* each selected client, 4 in all"
    ):
        running.round(3)


@pytest.mark.parametrize("mask", [np.array([True, False, True, False]), [True, False, True, False]])
def test_a_dropout_model_of_ones_own_says_who_reports(mask: Any) -> None:
    running = Schedule(Full(), dropout=Own(mask)).start(Population(clients=4), seed=0)
    assert running.round(0).reported.tolist() == [0, 2]


def test_a_dropout_model_of_ones_own_may_be_asked_about_nobody() -> None:
    nobody = Own(Gives(np.zeros(0, dtype=np.int64)))
    running = Schedule(Full(), nobody, Own([])).start(Population(clients=4), seed=0)
    assert running.round(0).reported.tolist() == []


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
    schedule = Schedule(Bernoulli(0.5), dropout=Slow((0.9, 0.5, 0.1)))
    with pytest.raises(InvalidInputError, match=r"^dropout\.reporting_probability: 3 "):
        schedule.known_rates(Population(clients=4), seed=0)


class Global(AvailabilityStream):
    """Draws from a generator that every stream shares."""

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.flatnonzero(np.random.rand(40) < 0.5))  # noqa: NPY002


class Sequential(AvailabilityStream):
    """Draws from one generator for all rounds, so that a skipped round changes the next."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.flatnonzero(self.generator.random(40) < 0.5))


class Weather(AvailabilityStream):
    """All clients come until the weather changes, in its tenth step, which is not round 9."""

    def __init__(self) -> None:
        self.steps = 0

    def round(self, t: int) -> AvailableClients:
        self.steps += 1
        return AvailableClients(np.arange(40 if self.steps < 10 else 4))


class Forgetful(SelectionStream):
    """Takes turns by counting its calls, but says that it need not be asked for every round."""

    stateful = False

    def __init__(self) -> None:
        self.calls = 0

    def select(self, t: int, available: AvailableClients) -> Any:
        self.calls += 1
        return available.clients[[self.calls]]


class Turns(Forgetful):
    stateful = True


class Coins(Own):
    def draw_mask(self, seed: int, t: int, clients: Any) -> Any:
        return np.random.rand(len(clients)) < 0.5  # noqa: NPY002


@dataclass(frozen=True)
class Streams(Availability, Selection):
    """A process or a selection of the user's own with streams of this class."""

    stream: Any

    def begin(self, population: Population, seed: int) -> Any:
        return self.stream()

    def start(self, population: Population, seed: int) -> Any:
        return self.stream()


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (Schedule(Streams(Global)), "participation"),
        (Schedule(Streams(Sequential)), "participation"),
        (Schedule(Full(), Streams(Forgetful)), "selection"),
        (Schedule(Full(), dropout=Coins()), "dropout"),
    ],
)
def test_rounds_that_a_resumed_run_would_not_repeat_are_refused(
    schedule: Schedule, field: str
) -> None:
    complaint = f"^{field}: started twice with the same seed, .* in round 3; let a round follow"
    with pytest.raises(InvalidInputError, match=complaint):
        schedule.start(Population(clients=40), seed=0)


def test_a_state_that_rarely_changes_shows_in_a_later_round() -> None:
    with pytest.raises(InvalidInputError, match=r"^participation: started twice .* in round 15;"):
        Schedule(Streams(Weather)).start(Population(clients=40), seed=0)


def test_a_selection_that_counts_its_calls_may_be_stateful() -> None:
    running = Schedule(Full(), Streams(Turns)).start(Population(clients=40), seed=0)
    assert running.round(4).selected.tolist() == [5]


class OwnStream(Selection, SelectionStream):
    """A selection that is its own stream; starting it begins again."""

    stateful = True

    def start(self, population: Population, seed: int) -> SelectionStream:
        self.generator = np.random.default_rng(seed)
        return self

    def select(self, t: int, available: AvailableClients) -> Any:
        return self.generator.choice(available.clients, 1)


def test_a_selection_may_be_its_own_stream() -> None:
    """It is tried out before the run, whose rounds are as if it had not been."""
    running = Schedule(Full(), OwnStream()).start(Population(clients=40), seed=3)
    generator = np.random.default_rng(3)
    expected = [generator.choice(np.arange(40), 1).tolist() for _ in range(6)]
    assert [running.round(t).selected.tolist() for t in range(6)] == expected


class Warns(AvailabilityStream):
    def __init__(self) -> None:
        logging.getLogger("fedtide").warning("half of the clients are in no trace")

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.arange(3))


def test_what_the_trial_logs_is_not_said_again(caplog: pytest.LogCaptureFixture) -> None:
    Schedule(Streams(Warns)).start(Population(clients=40), seed=0)
    assert len(caplog.records) == 1


class Ends(AvailabilityStream):
    """Covers three rounds without saying so."""

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.array([[0], [1], [2]][t]))


def test_rounds_that_a_run_does_not_need_are_not_asked_for_in_vain() -> None:
    running = Schedule(Streams(Ends)).start(Population(clients=40), seed=0)
    assert running.round(2).reported.tolist() == [2]


class InPlace(SelectionStream):
    """A selection of the user's own that shuffles, or a dropout model that marks, in place."""

    def select(self, t: int, available: AvailableClients) -> Any:
        np.random.default_rng(t).shuffle(available.clients)
        return np.sort(available.clients[:2])


class Marks(Own):
    def draw_mask(self, seed: int, t: int, clients: Any) -> Any:
        clients[:] = -1
        return clients < 0


@pytest.mark.parametrize(
    "process", [Full(), SubsetLaw([[0, 1, 3]], [1.0]), Table([[1, 1, 0, 1]])], ids=repr
)
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


def test_ones_own_selection_may_copy_and_shuffle() -> None:
    class Copies(InPlace):
        def select(self, t: int, available: AvailableClients) -> Any:
            return super().select(t, AvailableClients(available.clients.copy()))

    running = Schedule(Full(), Own(Copies())).start(Population(clients=4), seed=0)
    for t in range(9):
        found = running.round(t)
        assert found.available.tolist() == [0, 1, 2, 3]
        assert len(found.reported) == 2
        assert found.selected.flags.writeable


@pytest.mark.parametrize("probability", [1.7, -0.1, np.nan, "half", [0.5, 0.5]], ids=repr)
def test_the_probability_of_a_dropout_model_of_ones_own_is_checked(probability: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^dropout\.reporting_probability: .*; give"):
        Schedule(Full(), dropout=Own(probability)).known_rates(Population(clients=4), seed=0)


RATES = [
    (np.full(4, -3.0), "-3 is not within"),
    (np.full(4, 1.5), "1.5 is not within"),
    (np.full(4, np.nan), "nan is not finite"),
    (np.full(3, 0.5), "3 entries for 4 clients"),
    (0.5, "1 entry for 4 clients"),
    ("half", "not an array of numbers"),
    (np.full((4, 2), 0.5), "2 dimensions"),
]


@pytest.mark.parametrize(("rates", "complaint"), RATES, ids=repr)
@pytest.mark.parametrize("selection", [UniformOf(1), UniformOf(4)], ids=repr)
def test_rates_of_a_process_of_ones_own_are_checked(
    rates: Any, complaint: str, selection: Selection
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^known_rates: {complaint}.*; give"):
        Schedule(Own(rates), selection).known_rates(Population(clients=4), seed=0)


def test_rates_of_a_process_of_ones_own_may_be_a_list() -> None:
    known = Schedule(Own([0.5, 1, 0, 0.25]), dropout=RandomDropout(0.5)).known_rates(
        Population(clients=4), seed=0
    )
    np.testing.assert_array_equal(known, [0.25, 0.5, 0.0, 0.125])


def test_a_process_or_selection_of_ones_own_must_give_a_stream() -> None:
    for schedule, name in (
        (Schedule(Own()), r"participation\.begin: .* AvailabilityStream"),
        (Schedule(Full(), Own()), r"selection\.start: .* SelectionStream"),
    ):
        with pytest.raises(InvalidInputError, match=f"^{name}"):
            schedule.start(Population(clients=4), seed=0)


def test_weights_in_the_objective_of_averaging_are_computed_from_checked_rounds() -> None:
    """A client that is listed twice would count twice in |S| and once in the sum."""
    process = Own(Gives(AvailableClients(np.array([0, 0, 1]))))
    with pytest.raises(InvalidInputError, match="at most once"):
        participation_weights(process, Population(clients=2), rounds=3)


@dataclass(frozen=True)
class Begins(Availability):
    """A process of the user's own that begins one of fedtide's."""

    clients: int

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        return Full().begin(Population(self.clients), seed)


def test_the_clients_of_a_process_of_ones_own_are_checked_whoever_wrote_its_stream() -> None:
    """The largest id was an IndexError in the middle of training."""
    running = Schedule(Begins(4)).start(Population(3), seed=0)
    with pytest.raises(InvalidInputError, match=r"^participation: in round 0 .*client 3"):
        running.round(0)


class Lasts(AvailabilityStream):
    """A stream of the user's own with a length."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def round(self, t: int) -> AvailableClients:
        return AvailableClients(np.array([0]))


@dataclass(frozen=True)
class OfLength(Availability):
    """A process of the user's own that lasts as long as a test says."""

    length: Any

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        return Lasts(self.length)


@pytest.mark.parametrize("length", [0, -1, 20.5, "7"])
def test_a_stream_of_ones_own_has_a_number_of_rounds_as_its_length(length: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^participation\.length: .* give at least 1"):
        Schedule(OfLength(length)).start(Population(1), seed=0)


@pytest.mark.parametrize("length", [1, np.int64(7), None])
def test_any_positive_length_and_none_are_accepted(length: Any) -> None:
    assert Schedule(OfLength(length)).start(Population(1), seed=0).length == length


@pytest.mark.parametrize("field", ["samples", "class_shares", "rates", "names"])
def test_the_arrays_of_a_population_cannot_be_written_to(field: str) -> None:
    """A process that scaled them in place changed those of all later runs of the problem."""
    arrays: dict[str, Any] = {
        "samples": np.array([4, 6]),
        "class_shares": np.array([[1.0, 0.0], [0.5, 0.5]]),
        "rates": np.array([0.5, 0.25]),
        "names": np.array(["ann", "bob"]),
    }
    before = arrays[field].copy()
    seen = []

    class Changes(Availability):
        def begin(self, population: Population, seed: int) -> AvailabilityStream:
            array = getattr(population, field)
            array[:] = array[::-1]
            raise AssertionError

    class Checks(RandomDropout):
        def for_population(self, population: Population) -> Dropout:
            seen.append(getattr(population, field).flags.writeable)
            return self

    population = Population(2, **arrays)
    with pytest.raises(ValueError, match="read-only"):
        Schedule(Changes()).start(population, seed=0)
    np.testing.assert_array_equal(arrays[field], before)
    Schedule(Full(), dropout=Checks(0.5)).start(population, seed=0)
    assert not any(seen)
    arrays[field][:] = before[::-1]  # whoever made an array may still change it
