"""Availability, selection and dropout, composed into the participants of each round."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.import_paths import is_own
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
    RoundOrder,
)
from fedtide.participation.dropout import Dropout, NoDropout
from fedtide.participation.round_checks import (
    check_available,
    check_known_rates,
    check_length,
    check_repeatable,
    check_reported,
    check_selected,
    check_stream,
    silence,
)
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.participation.selection.uniform_of import All, UniformOf
from fedtide.population import Population, read_only
from fedtide.validation import require_one_per_client, require_probabilities

_REPORTING = "dropout.reporting_probability"


@dataclass(frozen=True)
class Participants:
    """The clients of one round: available ⊇ selected ⊇ reported, each sorted.

    Args:
        round: t.
        available: the clients that could have taken part.
        selected: the clients that were asked to train.
        reported: the clients that reported back.
        weights: q_t^n of each client that reported: the weight given by the availability process,
            or else 1 / number reported; shape of `reported`.
    """

    round: int
    available: Ids
    selected: Ids
    reported: Ids
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """The participants of each round: some are available, some of these selected, and some report.

    Args:
        process: the availability process.
        selection: which of the available clients are asked to train.
        dropout: which of the selected clients report back.

    Raises:
        InvalidInputError: one of them is not an instance of its base class, such as Selection.

    >>> from fedtide.participation import Full
    >>> running = Schedule(Full()).start(Population(clients=2), seed=0)
    >>> running.round(5).weights
    array([0.5, 0.5])
    """

    process: Availability
    selection: Selection = field(default_factory=All)
    dropout: Dropout = field(default_factory=NoDropout)

    def __post_init__(self) -> None:
        kinds = {"process": Availability, "selection": Selection, "dropout": Dropout}
        for name, kind in kinds.items():
            if not isinstance(part := getattr(self, name), kind):
                raise InvalidInputError(
                    f"{name}: {part!r:.60} is not an instance of {kind.__name__}; give an object "
                    "of a class derived from it"
                )

    def start(self, population: Population, seed: int) -> ScheduleStream:
        """Start the availability process and the selection.

        A user-defined process, selection or dropout model is first tried out, to see whether a
        round depends on which rounds were asked for before it.

        Raises:
            InvalidInputError: a parameter does not fit the population, or a user-defined process,
                selection or dropout model breaks its contract.
        """
        start = partial(self._start, population, seed)
        stream = start()
        if not stream.involves_own:
            return stream
        with silence():  # the first start has logged everything
            check_repeatable(stream, start)
            return start()  # again: a process may be its own stream, which the check has used

    def _start(self, population: Population, seed: int) -> ScheduleStream:
        with error_prefix("participation"):
            availability = self.process.begin(population, seed)
            check_stream("begin", availability, AvailabilityStream)
            if is_own(type(availability)):
                check_length(availability.length)
        with error_prefix("selection"):
            selection = self.selection.start(population, seed)
            check_stream("start", selection, SelectionStream)
        return ScheduleStream(
            availability,
            selection,
            self._dropout_of(population),
            seed,
            population.clients,
            checked=(_is_own(self.process, availability), _is_own(self.selection, selection)),
        )

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return each client's long-run probability of reporting, (N,); None: unknown.

        Known if the process knows its rates, every available client is selected, and the dropout
        model knows its probability of reporting.

        Raises:
            InvalidInputError: a user-defined process or dropout model gives values that are not
                probabilities.
        """
        own, all_selected = is_own(type(self.process)), self._selects_all(population.clients)
        if not (own or all_selected):  # a process may have to read a whole log
            return None
        rates = self.process.known_rates(population, seed)
        if rates is not None and own:
            rates = check_known_rates(rates, population.clients)
        if rates is None or not all_selected:
            return None
        probabilities = self._reporting_probabilities(population)
        if probabilities is None:
            return None
        if len(probabilities) > 1:
            require_one_per_client(_REPORTING, probabilities, population.clients)
        return rates * probabilities

    def reporting_probability(self, population: Population) -> float | None:
        """The long-run probability that a selected client reports, on average over the clients.

        None: unknown.

        Raises:
            InvalidInputError: a user-defined dropout model gives one outside [0, 1].
        """
        probabilities = self._reporting_probabilities(population)
        return None if probabilities is None else float(probabilities.mean())

    def _dropout_of(self, population: Population) -> Dropout:
        """Return the dropout model for these clients."""
        with error_prefix("dropout"):
            found = self.dropout.for_population(population)
            if not isinstance(found, Dropout):
                raise InvalidInputError(
                    f"for_population: it returned {found!r:.60}; return a dropout model"
                )
        return found

    def _reporting_probabilities(self, population: Population) -> NDArray[np.float64] | None:
        """Return the dropout model's probabilities, shape (1,) or (N,); None: unknown."""
        given = self._dropout_of(population).reporting_probability
        if given is None:
            return None
        found = require_probabilities(_REPORTING, given)
        if not len(found):
            raise InvalidInputError(
                f"{_REPORTING}: it is empty; give one number, or one per client"
            )
        return found

    def _selects_all(self, clients: int) -> bool:
        """Return whether all available clients are selected, in a population of `clients`."""
        chosen = self.selection
        if is_own(type(chosen)):  # such as a class derived from All
            return False
        return isinstance(chosen, All) or (isinstance(chosen, UniformOf) and chosen.size >= clients)


def _is_own(specification: object, stream: object) -> bool:
    """Return whether either is user-defined: such a process may start one of fedtide's streams."""
    return is_own(type(specification)) or is_own(type(stream))


class ScheduleStream:
    """A started schedule, asked for rounds in increasing order; rounds may be skipped.

    `checked` says whether the clients returned by the process and by the selection are checked.

    Two schedules started alike give the same round t, whichever rounds were asked for before: if
    the selection is stateful, it also goes through the skipped rounds.

    Attributes:
        length: the number of rounds that the process covers; None: unlimited.
    """

    def __init__(
        self,
        availability: AvailabilityStream,
        selection: SelectionStream,
        dropout: Dropout,
        seed: int,
        clients: int,
        checked: tuple[bool, bool] = (True, True),
    ) -> None:
        self.length = availability.length
        self._availability = availability
        self._selection = selection
        self._dropout = dropout
        self._seed, self._clients = seed, clients
        self._checks_available, self._checks_selected = checked
        self._order = RoundOrder()

    @property
    def involves_own(self) -> bool:
        """Whether the process, the selection or the dropout model is user-defined."""
        return self._checks_available or self._checks_selected or is_own(type(self._dropout))

    def round(self, t: int) -> Participants:
        """Return the participants of round t.

        Raises:
            ValueError: t is not larger than every round asked for before.
            InvalidInputError: a user-defined process, selection or dropout model breaks its
                contract.
        """
        skipped = self._order.advance(t)
        if self._selection.stateful:
            for earlier in skipped:
                self._select(earlier, self._available(earlier))
        available = self._available(t)
        selected = self._select(t, available)
        reported = self._report(t, selected)
        weights = available.weights_of(reported)
        return Participants(t, available.clients, selected, reported, weights)

    def _available(self, t: int) -> AvailableClients:
        found = self._availability.round(t)
        if self._checks_available:
            return check_available(found, t, self._clients)
        return found

    def _select(self, t: int, available: AvailableClients) -> Ids:
        if not self._checks_selected:
            return self._selection.select(t, available)
        # A selection that shuffled them in place would change the arrays of the stream.
        clients, weights = read_only(available.clients), available.weights
        shown = AvailableClients(clients, None if weights is None else read_only(weights))
        return check_selected(self._selection.select(t, shown), t, available.clients)

    def _report(self, t: int, selected: Ids) -> Ids:
        if not is_own(type(self._dropout)):
            return selected[self._dropout.draw_mask(self._seed, t, selected)]
        mask = self._dropout.draw_mask(self._seed, t, read_only(selected))
        return selected[check_reported(mask, t, len(selected))]
