"""Availability of clients that arrive late or leave for good."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability._renewal import NEVER, RenewalStream, draw_geometric
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import require_whole_number


@configurable
class Churn(Availability):
    """Client n arrives in round A_n and leaves for good before round A_n + L_n.

    In between it is available with probability p_n, independently. A_n is uniform on 0..R
    (`arrivals`) and L_n geometric with mean `stay`, P(L > k) = (1 - 1/stay)^k, so

        P(available in round t) = p_n / (R + 1) · Σ_{a=0}^{min(t, R)} (1 - 1/stay)^{t-a}

    Long-run rates are known (p_n) if nobody leaves. A round costs O(S) for S available clients.

    Args:
        rates: p_n: one number, one for each client, or a law.
        arrivals: R, the last round in which a client may arrive; 0: all are there from the start.
        stay: the mean number of rounds between arrival and departure, at least 1; None: nobody
            leaves.

    Raises:
        InvalidInputError: rates outside [0, 1], arrivals out of range, or a stay below 1;
            in `begin`, not one rate for each client.

    >>> running = Churn(rates=1.0, stay=1.0).begin(Population(clients=3), seed=0)
    >>> [len(running.round(t).clients) for t in range(3)]
    [3, 0, 0]
    """

    rates: Rates
    arrivals: int = 0
    stay: float | None = None

    def __post_init__(self) -> None:
        check_rates(self.rates)
        require_whole_number("arrivals", self.arrivals, low=0)
        if self.arrivals >= NEVER:
            raise InvalidInputError(
                f"arrivals: {self.arrivals} rounds are too many; give fewer than {NEVER}"
            )
        if self.stay is not None and not self.stay >= 1:
            raise InvalidInputError(f"stay: {self.stay} is below 1 round; give None for no end")

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)
        random = generator(seed, "churn-first")
        arrival = random.integers(self.arrivals + 1, size=len(p))
        departure = np.full(len(p), NEVER, dtype=np.int64)
        if self.stay is not None:
            departure = arrival + draw_geometric(random, np.full(len(p), 1 / self.stay))

        def until_departure(due: NDArray[np.int64], leaves: NDArray[np.int64]) -> Ids:
            return np.where(due < leaves, due, NEVER)

        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            due = t + draw_geometric(generator(seed, "churn", t), p[ids])
            return until_departure(due, departure[ids]) - t

        first = arrival + draw_geometric(random, p) - 1
        return RenewalStream(until_departure(first, departure), draw_gaps)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return p_n; None if clients leave, as all are gone in the long run."""
        return resolve_rates(self.rates, population, seed) if self.stay is None else None
