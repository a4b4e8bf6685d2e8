"""Selections: which of the available clients are asked to train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import numpy as np

from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.population import Population
from fedtide.randomness import generator, random_words
from fedtide.spec import AtLeast, Share, spec
from fedtide.validation import require_cohort_size


class SelectionStream(ABC):
    """A started selection.

    Attributes:
        stateful: whether a round depends on earlier ones; if so, every round is asked for in order,
            and a resumed run replays the past rounds.
    """

    stateful: bool = True

    @abstractmethod
    def select(self, t: int, available: AvailableClients) -> Ids:
        """Return which of the available clients are selected in round t, sorted.

        The arrays of `available` cannot be written to: copy them to shuffle or sort in place.
        """


class Selection(ABC):
    """A selection: a value (a frozen dataclass), started for a population."""

    @abstractmethod
    def start(self, population: Population, seed: int) -> SelectionStream:
        """Start the selection for these clients.

        Raises:
            InvalidInputError: a parameter does not fit the population.
        """

    def most(self, clients: int) -> int:
        """Return the largest number of clients selected in a round, for estimates of costs.

        By default `size` or, if that is larger or there is none, all `clients`.
        """
        return min(clients, getattr(self, "size", clients))


@spec
class All(Selection):
    """All available clients."""

    def start(self, population: Population, seed: int) -> SelectionStream:
        return _AllStream()


@spec
class UniformOf(Selection):
    """S of the available clients, uniformly without replacement; all if fewer are available.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `start`, above N.

    >>> running = UniformOf(size=1).start(Population(clients=9), seed=0)
    >>> running.select(0, AvailableClients(np.array([4])))
    array([4])
    """

    size: Annotated[int, AtLeast(1)]

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _UniformOfStream(self.size, seed)


class _AllStream(SelectionStream):
    stateful = False

    def select(self, t: int, available: AvailableClients) -> Ids:
        return available.clients


class _UniformOfStream(SelectionStream):
    stateful = False

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        if len(clients) <= self._size:
            return clients
        random = generator(self._seed, "uniform-of", t)
        return np.sort(random.choice(clients, self._size, replace=False, shuffle=False))


@spec
class PermutationOf(Selection):
    """The next S available clients of a random permutation of all N clients.

    A round continues where the last one ended. Clients that are unavailable, or already in the
    round, are skipped and lose their place in this permutation, as in the program of Wang & Ji 2022
    (section 6); when the permutation ends, a new one begins, even within a round. (That program may
    select one client twice in a round; this class never does, and selects all available clients if
    fewer than S are available.) If all clients are available and S divides N, every client takes
    part once in N/S rounds.

    The permutation is the order of random 63-bit words of (permutation, client), so nothing is
    stored per client and a round costs O(A log A) for A available clients.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `start`, above N.

    >>> running = PermutationOf(size=2).start(Population(clients=4), seed=0)
    >>> all_clients = AvailableClients(np.arange(4))
    >>> sorted(np.concatenate([running.select(t, all_clients) for t in range(2)]).tolist())
    [0, 1, 2, 3]
    """

    size: Annotated[int, AtLeast(1)]

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _PermutationOfStream(self.size, seed)


class _PermutationOfStream(SelectionStream):
    """Clients whose word in the current permutation is below `_position` are used up."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._permutation = 0
        self._position = 0

    def select(self, t: int, available: AvailableClients) -> Ids:
        size = min(self._size, len(available.clients))
        selected = self._take(available.clients, size)
        if len(selected) < size:
            self._permutation += 1
            self._position = 0
            others = np.setdiff1d(available.clients, selected, assume_unique=True)
            selected = np.concatenate([selected, self._take(others, size - len(selected))])
        return np.sort(selected)

    def _take(self, clients: Ids, count: int) -> Ids:
        """Return the next `count` of the clients and advance beyond them."""
        # 63 bits, so that the position after the last word is a word, too.
        words = random_words(self._seed, "permutation-of", self._permutation, clients)
        words >>= np.uint64(1)
        ahead = words >= np.uint64(self._position)
        clients, words = clients[ahead], words[ahead]
        order = np.argsort(words, kind="stable")[:count]
        if len(order):
            self._position = int(words[order[-1]]) + 1
        return clients[order]


@spec
class LongestAbsent(Selection):
    """The S available clients whose last selection was longest ago (Yan et al. 2020, FedLaAvg).

    Clients that were never selected come first. All available clients are selected if there are
    fewer than S. Stores 4 bytes per client.

    Args:
        size: S.
        ties: which clients are selected of those that have been absent equally long: random ones,
            or those with the lowest ids, as in the authors' program (the paper names no rule). If
            ids are in the order of the data, as in many partitions by class, cohorts by id are
            alike.

    Raises:
        InvalidInputError: a size below 1; in `start`, above N.

    >>> running = LongestAbsent(size=2, ties="id").start(Population(clients=3), seed=0)
    >>> [running.select(t, AvailableClients(np.arange(3))).tolist() for t in range(3)]
    [[0, 1], [0, 2], [0, 1]]
    """

    size: Annotated[int, AtLeast(1)]
    ties: Literal["random", "id"] = "random"

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _LongestAbsentStream(population.clients, self.size, self.ties == "random", seed)


class _LongestAbsentStream(SelectionStream):
    def __init__(self, clients: int, size: int, at_random: bool, seed: int) -> None:
        self._last = np.full(clients, -1, dtype=np.int32)
        self._size = size
        self._at_random = at_random
        self._seed = seed

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        draws = random_words(self._seed, "longest-absent", t, clients)
        order = np.lexsort((draws if self._at_random else clients, self._last[clients]))
        selected = np.sort(clients[order[: self._size]])
        self._last[selected] = t
        return selected


@spec
class LeastServed(Selection):
    """The S available clients with the least accumulated weight Σ q in the current window.

    Windows of P rounds begin in rounds 0, P, 2P, ...; the weight of a selected client is that of
    the availability process, or else 1 / number selected. Ties go to the client not selected for
    longest, then to the lower id. The window means q̄_n approach each other, which makes equation
    (15) of Wang & Ji 2022 small (their section 5). All available clients are selected if there are
    fewer than S. Stores 16 bytes per client.

    Args:
        size: S.
        period: P, in rounds.

    Raises:
        InvalidInputError: a size or period below 1; in `start`, a size above N.

    >>> running = LeastServed(size=1, period=2).start(Population(clients=2), seed=0)
    >>> [running.select(t, AvailableClients(np.arange(2))).tolist() for t in range(4)]
    [[0], [1], [0], [1]]
    """

    size: Annotated[int, AtLeast(1)]
    period: Annotated[int, AtLeast(1)]

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _LeastServedStream(population.clients, self.size, self.period)


class _LeastServedStream(SelectionStream):
    """Each sum is stored with its window, so that a new window need not reset N sums."""

    def __init__(self, clients: int, size: int, period: int) -> None:
        self._sum = np.zeros(clients)
        self._window = np.full(clients, -1, dtype=np.int32)
        self._last = np.full(clients, -1, dtype=np.int32)
        self._size = size
        self._period = period

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        window = t // self._period
        served = np.where(self._window[clients] == window, self._sum[clients], 0.0)
        order = np.lexsort((self._last[clients], served))
        positions = np.sort(order[: self._size])
        selected = clients[positions]
        self._sum[selected] = served[positions] + available.weights_of(selected)
        self._window[selected] = window
        self._last[selected] = t
        return selected


@spec
class LeastFrequent(Selection):
    """The S available clients with the smallest smoothed rate (Ribero et al. 2022, F3AST).

        r_n ← (1 - β) r_n + β 1{n selected}        in every round, r_n = 0 at first

    F3AST selects the clients that lower the variance Σ (1/N)² / r_n of the step most; with clients
    of equal weight these are the ones with the smallest r_n. The method `F3AST` weights their
    updates by 1 / r_n. Ties go to the lower id. All available clients are selected if there are
    fewer than S. Stores 12 bytes per client.

    Args:
        size: S.
        beta: β in (0, 1]; 1/β is roughly how many rounds count.

    Raises:
        InvalidInputError: a size below 1, or β outside (0, 1]; in `start`, a size above N.

    >>> running = LeastFrequent(size=1, beta=0.5).start(Population(clients=2), seed=0)
    >>> everyone, first = AvailableClients(np.arange(2)), AvailableClients(np.array([0]))
    >>> [running.select(t, clients).tolist() for t, clients in enumerate([everyone, first])]
    [[0], [0]]
    >>> [running.select(t, everyone).tolist() for t in (2, 3, 4)]
    [[1], [0], [1]]
    """

    size: Annotated[int, AtLeast(1)]
    beta: Annotated[float, Share] = 0.01

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _LeastFrequentStream(population.clients, self.size, self.beta)


class _LeastFrequentStream(SelectionStream):
    """Each rate is stored as of the client's last selection; since then it only shrank."""

    def __init__(self, clients: int, size: int, beta: float) -> None:
        self._rates = np.zeros(clients)
        self._last = np.full(clients, -1, dtype=np.int32)
        self._size, self._beta = size, beta

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        rates = self._rates[clients] * (1 - self._beta) ** (t - self._last[clients])
        positions = np.sort(np.argsort(rates, kind="stable")[: self._size])
        selected = clients[positions]
        self._rates[selected] = rates[positions] + self._beta
        self._last[selected] = t
        return selected


@spec
class MinSeparation(Selection):
    """S of the available clients that have rested, uniformly without replacement.

    A client that is selected in round t is not selected in rounds t + 1, ..., t + b. All rested
    clients are selected if fewer than S are available. This is the participation that matrix
    mechanisms of differential privacy assume (Choquette-Choo et al. 2023, "Amplified Banded Matrix
    Factorization", with minimum separation b + 1). Stores 4 bytes per client.

    Args:
        size: S.
        rounds: b, how many rounds a client rests; 0: none.

    Raises:
        InvalidInputError: a size below 1, rounds below 0; in `start`, S (b + 1) > N, in which case
            even N clients that are always available would not fill every round.

    >>> running = MinSeparation(size=2, rounds=1).start(Population(clients=4), seed=0)
    >>> everyone = AvailableClients(np.arange(4))
    >>> first, second, third = (running.select(t, everyone).tolist() for t in range(3))
    >>> sorted(first + second), third == first
    ([0, 1, 2, 3], True)
    """

    size: Annotated[int, AtLeast(1)]
    rounds: Annotated[int, AtLeast(0)]

    def start(self, population: Population, seed: int) -> SelectionStream:
        clients = population.clients
        require_cohort_size(self.size, clients)
        if self.size * (self.rounds + 1) > clients:
            raise InvalidInputError(
                f"rounds: {quantify(clients, 'client')} cannot fill cohorts of {self.size} if each "
                f"rests {quantify(self.rounds, 'round')}; rest at most "
                f"{quantify(clients // self.size - 1, 'round')}"
            )
        return _MinSeparationStream(clients, self.size, self.rounds, seed)


class _MinSeparationStream(SelectionStream):
    def __init__(self, clients: int, size: int, rounds: int, seed: int) -> None:
        self._free_from = np.zeros(clients, dtype=np.int32)
        self._size, self._rounds, self._seed = size, rounds, seed

    def select(self, t: int, available: AvailableClients) -> Ids:
        selected = available.clients[self._free_from[available.clients] <= t]
        if len(selected) > self._size:
            random = generator(self._seed, "min-separation", t)
            selected = np.sort(random.choice(selected, self._size, replace=False, shuffle=False))
        self._free_from[selected] = t + self._rounds + 1
        return selected
