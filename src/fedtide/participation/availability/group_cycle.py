"""Groups of clients that are available in turn, as with day and night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.client_values import Name, in_any_order, order_by_id
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
    IndependentStream,
)
from fedtide.population import Population
from fedtide.randomness import generator, uniforms
from fedtide.spec import AtLeast, Unit, spec
from fedtide.validation import require_one_per_client, require_whole_number


@spec
class GroupCycle(Availability):
    """K groups take turns: with turns of g rounds, round t is that of group ⌊(t + o)/g⌋ mod K.

    With unequal turns g_0, ..., g_{K−1}, laid end to end, round t is that of the group k in whose
    turn (t + o) mod (g_0 + ... + g_{K−1}) falls. (Wang & Ji 2022, section 6; Crawshaw & Liu 2024;
    two groups with turns E and αE: Yan et al.'s FedLaAvg.)

    Args:
        groups: the group of each client, numbered from 0 or as a string such as "north", (N,) or by
            name of the client; or K: equal blocks of consecutive clients, block k ending before
            client round((k+1) N / K). Groups given as strings take their turns in sorted order;
            strings of digits are read as numbers, so write "zip-90210" for such a name.
        rounds: g, the length of a turn: one number, or one for each group in the order of turns.
        offset: o; "random": drawn once, uniform on 0..g_0 − 1, so group 0 comes first and its first
            turn may be cut short (as in the authors' programs).
        on: the probability that a client is available in a round of its group's turn, independent
            over rounds and clients.
        off: the same outside its group's turn.

    Raises:
        InvalidInputError: a turn below 1 round, a negative or unknown offset, on or off outside
            [0, 1], groups that do not fit `rounds` or (in `begin`) the population.

    >>> running = GroupCycle(groups=2, rounds=[2, 1], offset=0).begin(Population(clients=4), seed=0)
    >>> [running.round(t).clients.tolist() for t in range(4)]
    [[0, 1], [0, 1], [2, 3], [0, 1]]
    >>> running = GroupCycle(groups=["north", "east", "north"], rounds=1, offset=0).begin(
    ...     Population(clients=3), seed=0
    ... )
    >>> [running.round(t).clients.tolist() for t in range(2)]
    [[1], [0, 2]]
    """

    groups: (
        int
        | Sequence[int]
        | Sequence[str]
        | NDArray[np.integer | np.str_]
        | Mapping[Name, int]
        | Mapping[Name, str]
    )
    rounds: Annotated[int | Sequence[int], AtLeast(1)]
    offset: Annotated[Literal["random"] | int, AtLeast(0)] = "random"
    on: Annotated[float, Unit] = 1.0
    off: Annotated[float, Unit] = 0.0

    def __post_init__(self) -> None:
        self._turns()

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        turns, labels, offset = self._turns(), self._labels(population), self.offset
        if offset == "random":
            offset = int(turns[0] * uniforms(seed, "group-cycle-offset"))
        # in order of group, so that the group whose turn it is forms one slice
        order = np.argsort(labels, kind="stable").astype(np.int32)
        bounds = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=len(turns)))])
        ends = np.cumsum(turns)

        def draw(t: int) -> AvailableClients:
            position = (t + offset) % int(ends[-1])
            group = int(np.searchsorted(ends, position, side="right"))
            low, high = bounds[group : group + 2].tolist()
            random = generator(seed, "group-cycle", t)
            inside = low + _thin(random, high - low, self.on)
            outside = _thin(random, len(order) - (high - low), self.off)
            outside = np.where(outside < low, outside, outside + high - low)
            places = np.concatenate([inside, outside])
            return AvailableClients(np.sort(order[places]).astype(np.int64))

        return IndependentStream(draw)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return on · s + off · (1 − s), with s the share of rounds that are its group's turn."""
        turns = self._turns()
        share = (turns / turns.sum())[self._labels(population)]
        return np.asarray(self.on * share + self.off * (1 - share))

    def _turns(self) -> NDArray[np.int64]:
        """Return the length of each group's turn, (K,)."""
        if isinstance(self.groups, int):
            require_whole_number("groups", self.groups)
            count = int(self.groups)
        else:
            count = int(_number_groups(in_any_order(self.groups)).max()) + 1
        turns = np.asarray(self.rounds, dtype=np.int64)
        if turns.ndim == 0:
            turns = np.full(count, turns)
        if len(turns) < count or (isinstance(self.groups, int) and len(turns) != count):
            raise InvalidInputError(
                f"rounds: {quantify(len(turns), 'turn')} for {quantify(count, 'group')}; "
                "give one for each"
            )
        return turns

    def _labels(self, population: Population) -> NDArray[np.int32]:
        """Return the group of each client, (N,)."""
        clients = population.clients
        if not isinstance(self.groups, int):
            labels = _number_groups(order_by_id("groups", self.groups, population))
            require_one_per_client("groups", labels, clients)
            return labels.astype(np.int32)
        if self.groups > clients:
            raise InvalidInputError(
                f"groups: {self.groups} groups of {quantify(clients, 'client')}; give at most "
                f"{clients}"
            )
        ends = np.rint(np.arange(1, self.groups + 1) * clients / self.groups).astype(np.int64)
        return np.searchsorted(ends, np.arange(clients), side="right").astype(np.int32)


def _number_groups(given: Any) -> NDArray[np.integer]:
    """Return the number of each group that is given by number or by name.

    >>> _number_groups(["north", "east", "north"]), _number_groups(["10", "2"])
    (array([1, 0, 1]), array([10,  2]))
    """
    labels = np.asarray(given)
    if labels.dtype.kind == "U":
        is_number = np.char.isdecimal(labels).all()  # as quoted in a file
        labels = labels.astype(np.int64) if is_number else np.unique(labels, return_inverse=True)[1]
    if labels.ndim != 1 or not labels.size or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise InvalidInputError(
            "groups: neither numbers nor names of groups; give a number of groups, or for each "
            "client a group 0, 1, ..., or a text such as 'north'"
        )
    return labels


def _thin(random: np.random.Generator, count: int, probability: float) -> Ids:
    """Return 0..count−1, each kept independently with the given probability; O(number kept)."""
    if probability == 0:
        return np.empty(0, dtype=np.int64)
    if probability == 1:
        return np.arange(count)
    kept = random.binomial(count, probability)
    return random.choice(count, kept, replace=False, shuffle=False)
