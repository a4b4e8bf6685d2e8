"""Availability, selection and dropout, composed into the participants of each round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
    RoundOrder,
)
from fedtide.participation.dropout import Dropout, NoDropout
from fedtide.participation.selections import All, Selection, SelectionStream, UniformOf
from fedtide.population import Population, read_only
from fedtide.validation import Numbers


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

    >>> from fedtide.participation import Full
    >>> running = Schedule(Full()).start(Population(clients=2), seed=0)
    >>> running.round(5).weights
    array([0.5, 0.5])
    """

    process: Availability
    selection: Selection = field(default_factory=All)
    dropout: Dropout = field(default_factory=NoDropout)

    def start(self, population: Population, seed: int) -> ScheduleStream:
        """Start the availability process and the selection.

        Raises:
            InvalidInputError: a parameter does not fit the population.
        """
        with error_prefix("participation"):
            availability = self.process.begin(population, seed)
        selection, dropout = self.start_choices(population, seed)
        return ScheduleStream(availability, selection, dropout, seed, population.clients)

    def start_choices(self, population: Population, seed: int) -> tuple[SelectionStream, Dropout]:
        """Return the started selection, and the dropout model for these clients.

        Raises:
            InvalidInputError: a parameter does not fit the population.
        """
        with error_prefix("selection"):
            selection = self.selection.start(population, seed)
        return selection, self._dropout_of(population)

    def known_rates(self, population: Population, seed: int) -> Numbers | None:
        """Return each client's long-run probability of reporting, (N,); None: unknown.

        Known if the process knows its rates, every available client is selected, and the dropout
        model knows its probability of reporting.
        """
        if not self._selects_all(population.clients):  # a process may have to read a whole log
            return None
        rates = self.process.known_rates(population, seed)
        probabilities = self._reporting_probabilities(population)
        if rates is None or probabilities is None:
            return None
        return np.asarray(rates, dtype=np.float64) * probabilities

    def reporting_probability(self, population: Population) -> float | None:
        """The long-run probability that a selected client reports, on average over the clients.

        None: unknown.
        """
        probabilities = self._reporting_probabilities(population)
        return None if probabilities is None else float(probabilities.mean())

    def _dropout_of(self, population: Population) -> Dropout:
        """Return the dropout model for these clients."""
        with error_prefix("dropout"):
            return self.dropout.for_population(population)

    def _reporting_probabilities(self, population: Population) -> Numbers | None:
        """Return the dropout model's probabilities, shape (1,) or (N,); None: unknown."""
        given = self._dropout_of(population).reporting_probability
        return None if given is None else np.atleast_1d(np.asarray(given, dtype=np.float64))

    def _selects_all(self, clients: int) -> bool:
        """Return whether all available clients are selected, in a population of `clients`."""
        chosen = self.selection
        return type(chosen) is All or (type(chosen) is UniformOf and chosen.size >= clients)


class RoundStream(ABC):
    """The participants of a run, asked for rounds in increasing order; rounds may be skipped.

    Two streams started alike give the same round t, whichever rounds were asked for before. What
    the selection and the dropout model return is checked in every round: ids and masks. They get
    arrays that cannot be written to.

    Args:
        selection: which clients are selected.
        dropout: which of them report.
        seed: of all draws.
        clients: N.
    """

    def __init__(
        self, selection: SelectionStream, dropout: Dropout, seed: int, clients: int
    ) -> None:
        self._selection, self._dropout = selection, dropout
        self._seed, self._clients = seed, clients
        self._order = RoundOrder()

    @abstractmethod
    def round(self, t: int) -> Participants:
        """Return the participants of round t.

        Raises:
            ValueError: t is not larger than every round asked for before.
            InvalidInputError: the process, the selection or the dropout model returned something
                else than its contract says.
        """

    def _select(self, t: int, available: AvailableClients) -> Ids:
        clients, weights = read_only(available.clients), available.weights
        shown = AvailableClients(clients, None if weights is None else read_only(weights))
        found = self._selection.select(t, shown)
        if found is clients:
            return available.clients
        return require_selected(found, t, clients, self._clients)

    def _draw_mask(self, t: int, selected: Ids) -> NDArray[np.bool_]:
        """Return whether each selected client reports, as the dropout model says."""
        found: Any = self._dropout.draw_mask(self._seed, t, read_only(selected))
        mask = np.asarray(found)
        if mask.shape != selected.shape or (len(mask) and mask.dtype != np.bool_):
            raise InvalidInputError(  # numbers would be taken as positions
                f"dropout: in round {t} its mask is {found!r:.60}; return True or False for each "
                f"selected client, {len(selected)} in all"
            )
        return mask.astype(np.bool_)


class ScheduleStream(RoundStream):
    """A started schedule: who is available follows from the round.

    If the selection is stateful, it also goes through the skipped rounds. What the process returns
    is checked in every round, too: ids and weights.

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
    ) -> None:
        super().__init__(selection, dropout, seed, clients)
        self.length = availability.length
        self._availability = availability

    def round(self, t: int) -> Participants:
        skipped = self._order.advance(t)
        if self._selection.stateful:
            for earlier in skipped:
                self._select(earlier, self._available(earlier))
        available = self._available(t)
        selected = self._select(t, available)
        reported = selected[self._draw_mask(t, selected)]
        weights = available.weights_of(reported)
        return Participants(t, available.clients, selected, reported, weights)

    def _available(self, t: int) -> AvailableClients:
        found = self._availability.round(t)
        ids = _require_ids("participation", found.clients, t, self._clients)
        return AvailableClients(ids, _require_weights(found.weights, t, len(ids)))


def require_selected(found: Any, t: int, available: Ids, clients: int) -> Ids:
    """Return the clients that a selection selected in round t, of a population of `clients`.

    Raises:
        InvalidInputError: anything but sorted ids of available clients.
    """
    ids = _require_ids("selection", found, t, clients)
    absent = ids[~np.isin(ids, available, assume_unique=True)]
    if len(absent):
        raise InvalidInputError(
            f"selection: in round {t} it selected client {absent[0]}, which is not available; "
            "choose from available.clients"
        )
    return ids


def _require_ids(field: str, found: Any, t: int, clients: int) -> Ids:
    """Return ids as int64; raise InvalidInputError unless they are sorted and below `clients`."""
    ids = np.asarray(found)
    if ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids)):
        ids = ids.astype(np.int64, copy=False)
        if not len(ids) or (ids[0] >= 0 and ids[-1] < clients and (ids[1:] > ids[:-1]).all()):
            return ids
    raise InvalidInputError(
        f"{field}: in round {t} its clients are {found!s:.60}; return ids within 0 to "
        f"{clients - 1} in an array, sorted, each at most once, as np.unique(ids) does"
    )


def _require_weights(found: Any, t: int, count: int) -> NDArray[np.float64] | None:
    if found is None:
        return None
    weights = np.asarray(found, dtype=np.float64)
    if weights.shape != (count,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise InvalidInputError(
            f"participation: in round {t} its weights are {found!s:.60}; return a finite number "
            f"of at least 0 for each client, {count} in all"
        )
    return weights
