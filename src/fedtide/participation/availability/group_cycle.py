"""Groups of clients that take turns: nights around the globe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
)
from fedtide.population import Population
from fedtide.randomness import generator, uniforms
from fedtide.validation import one_each, probabilities, whole


@dataclass(frozen=True)
class GroupCycle(Availability):
    """K groups take turns: with turns of g rounds, round t is that of group ⌊(t + o)/g⌋ mod K.

    With unequal turns g_0, ..., g_{K−1}, round t is that of the group k in whose turn
    (t + o) mod (g_0 + ... + g_{K−1}) falls, the turns laid end to end. (Wang & Ji 2022, section 6;
    Crawshaw & Liu 2024; two groups with turns E and αE: Yan et al.'s FedLaAvg.)

    Args:
        groups: the group of each client, numbered from 0, shape (N,); or K: equal blocks of
            consecutive clients, block k ending before client round((k+1) N / K).
        rounds: g, how many rounds a turn lasts: one number, or one for each group.
        offset: o; "random": drawn once, uniform on 0..g_0 − 1, so that group 0 always comes first
            and its first turn is cut short (as in the authors' programs).
        on: the probability that a client is available, each round anew, in its group's turn.
        off: the same outside of its turn.

    Raises:
        InvalidInputError: a turn that is no positive number of rounds, a negative or unknown offset, on or
            off outside [0, 1], groups that do not fit `rounds` or (in `begin`) the population.

    >>> running = GroupCycle(groups=2, rounds=[2, 1], offset=0).begin(Population(clients=4), seed=0)
    >>> [running.round(t).clients.tolist() for t in range(4)]
    [[0, 1], [0, 1], [2, 3], [0, 1]]
    """

    groups: int | Sequence[int] | NDArray[np.integer]
    rounds: int | Sequence[int]
    offset: str | int = "random"
    on: float = 1.0
    off: float = 0.0

    def __post_init__(self) -> None:
        for turn in np.atleast_1d(np.asarray(self.rounds, dtype=object)):
            whole("rounds", turn)
        if isinstance(self.offset, str):
            if self.offset != "random":
                raise InvalidInputError(
                    f"offset: {self.offset!r} is unknown; give 'random' or a number"
                )
        else:
            whole("offset", self.offset, least=0)
        probabilities("on", self.on)
        probabilities("off", self.off)
        self._turns()

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        """Return the running process."""
        turns = self._turns()
        labels = self._labels(population.clients)
        offset = self.offset
        if isinstance(offset, str):
            offset = int(turns[0] * uniforms(seed, "group-cycle-offset"))
        return _Turns(labels, turns, offset, (self.on, self.off), seed)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return on · s + off · (1 − s), where s is the share of the rounds that a group has."""
        turns = self._turns()
        share = (turns / turns.sum())[self._labels(population.clients)]
        return np.asarray(self.on * share + self.off * (1 - share))

    def _turns(self) -> NDArray[np.int64]:
        """Return the length of each group's turn, (K,)."""
        known = self._check_labels()
        if np.ndim(self.rounds) == 0:
            return np.full(known, self.rounds, dtype=np.int64)
        turns = np.asarray(self.rounds, dtype=np.int64)
        if len(turns) < known or (np.ndim(self.groups) == 0 and len(turns) != known):
            raise InvalidInputError(
                f"rounds: {len(turns)} turns for {known} groups; give one for each"
            )
        return turns

    def _check_labels(self) -> int:
        """Return how many groups `groups` names."""
        if np.ndim(self.groups) == 0:
            whole("groups", self.groups)
            return int(self.groups)  # type: ignore[arg-type]
        labels = np.asarray(self.groups)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size or labels.min() < 0:
            raise InvalidInputError(
                "groups: give a number of groups, or a group 0, 1, ... for each client"
            )
        return int(labels.max()) + 1

    def _labels(self, clients: int) -> NDArray[np.int32]:
        """Return the group of each client, (N,)."""
        if np.ndim(self.groups) > 0:
            labels = np.asarray(self.groups, dtype=np.int32)
            one_each("groups", labels, clients)
            return labels
        count = self._check_labels()
        if count > clients:
            raise InvalidInputError(
                f"groups: {count} groups of {clients} clients; give at most {clients}"
            )
        ends = np.rint(np.arange(1, count + 1) * clients / count).astype(np.int64)
        return np.searchsorted(ends, np.arange(clients), side="right").astype(np.int32)


class _Turns(AvailabilityStream):
    """The clients lie ordered by group; whoever has its turn is one stretch of that order."""

    def __init__(
        self,
        labels: NDArray[np.int32],
        turns: NDArray[np.int64],
        offset: int,
        chances: tuple[float, float],
        seed: int,
    ) -> None:
        self._order = np.argsort(labels, kind="stable").astype(np.int32)
        self._bounds = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=len(turns)))])
        self._ends = np.cumsum(turns)
        self._offset = offset
        self._on, self._off = chances
        self._seed = seed

    def round(self, t: int) -> AvailableClients:
        position = (t + self._offset) % self._ends[-1]
        group = int(np.searchsorted(self._ends, position, side="right"))
        low, high = self._bounds[group : group + 2].tolist()
        draws = generator(self._seed, "group-cycle", t)
        inside = low + _thinned(draws, high - low, self._on)
        outside = _thinned(draws, len(self._order) - (high - low), self._off)
        places = np.concatenate([inside, np.where(outside < low, outside, outside + high - low)])
        return AvailableClients(np.sort(self._order[places]).astype(np.int64))


def _thinned(draws: np.random.Generator, count: int, chance: float) -> Ids:
    """Return the members of 0..count−1, each kept with probability `chance`; O(number kept)."""
    if chance == 0:
        return np.empty(0, dtype=np.int64)
    if chance == 1:
        return np.arange(count)
    kept = draws.binomial(count, chance)
    return draws.choice(count, kept, replace=False, shuffle=False)
