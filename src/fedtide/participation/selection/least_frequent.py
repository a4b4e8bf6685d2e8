"""Selection of the clients that were selected least often recently."""

from __future__ import annotations

import numpy as np

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
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

    size: int
    beta: float = 0.01

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)
        if not 0 < self.beta <= 1:
            raise InvalidInputError(f"beta: {self.beta} is not within (0, 1]; 0.01 is usual")

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
