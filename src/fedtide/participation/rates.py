"""Participation rates: one number, one for each client, or correlated with the clients' data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.client_values import Name, order_by_id
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.spec import Positive, Unit, spec
from fedtide.validation import (
    require_nonnegative,
    require_one_per_client,
    require_probabilities,
)


class RateLaw(ABC):
    """A law that derives each client's rate from the classes of its samples.

    Attributes:
        seed: of its draws; None, or no such attribute: the seed of the run.
    """

    seed: int | None

    @abstractmethod
    def rates_of(self, class_shares: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
        """Return the rates of clients with these class shares (N, C), shape (N,)."""


@spec
class Correlated(RateLaw):
    """Rates that depend on each client's classes, as in FedAU's experiments (section 6).

    Resolved with the population's class shares; see `correlated_rates` for the formula.

    Args:
        alpha: concentration of the Dirichlet draw of the classes' preferences q; the smaller, the
            fewer classes determine the rates.
        mean: the expected rate before floor and cap.
        floor: the smallest rate.
        seed: of the draw of q; None: the seed of the run.

    Raises:
        InvalidInputError: alpha not above 0, or mean or floor outside [0, 1].
    """

    alpha: Annotated[float, Positive] = 0.1
    mean: Annotated[float, Unit] = 0.1
    floor: Annotated[float, Unit] = 0.0
    seed: int | None = None

    def rates_of(self, class_shares: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
        return correlated_rates(class_shares, self.alpha, self.mean, self.floor, seed)


@spec
class UniformByClass(RateLaw):
    """Rates that mix one random number per class, as in FedAWE's experiments (appendix J.3).

        p_n = ⟨κ_n, φ⟩,        φ_c uniform on [0, first) for the first half of the classes,
                               [0, second) for the others

    with κ_n the class shares of client n, and one draw of φ for all clients.

    Args:
        first: of the classes 0..⌊C/2⌋−1, in [0, 1].
        second: of the other classes, in [0, 1].
        seed: of the draw of φ; None: the seed of the run.

    Raises:
        InvalidInputError: first or second outside [0, 1].

    >>> UniformByClass(first=0.0).rates_of(np.array([[1.0, 0.0]]), seed=1)
    array([0.])
    """

    first: Annotated[float, Unit] = 1.0
    second: Annotated[float, Unit] = 0.5
    seed: int | None = None

    def rates_of(self, class_shares: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
        classes = class_shares.shape[1]
        high = np.where(np.arange(classes) < classes // 2, self.first, self.second)
        mixed = class_shares @ (high * generator(seed, "uniform-by-class").random(classes))
        return np.asarray(np.minimum(mixed, 1.0))  # shares sum to 1 but for rounding


Rates = Annotated[
    float | Sequence[float] | NDArray[np.float64] | Mapping[Name, float] | RateLaw, Unit
]
"""One number for all clients, one for each (a list, or by name), or a law."""


def correlated_rates(
    class_shares: ArrayLike,
    alpha: float = 0.1,
    mean: float = 0.1,
    floor: float = 0.0,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Return rates that depend on which classes a client holds, shape (N,).

    With C classes, shares κ_n (N, C) and one draw q ~ Dir(alpha · 1_C) for all clients,

        p_n = min(1, max(floor, C · mean · ⟨κ_n, q⟩)),

    as in FedAU's experiments (Wang & Ji 2024, section 6). Rates are not rescaled: a floor raises
    their mean. The authors' program has no cap at 1 (it is never reached with C · mean <= 1).

    Args:
        class_shares: κ, rows summing to 1.
        alpha: concentration of q, above 0.
        mean: the expected rate before floor and cap.
        floor: the smallest rate.
        seed: of the draw of q.

    Raises:
        InvalidInputError: alpha not above 0, mean or floor outside [0, 1], shares not of shape
            (N, C) or not summing to 1.

    >>> correlated_rates([[0.5, 0.5], [0.5, 0.5]], mean=0.2)
    array([0.2, 0.2])
    """
    Correlated(alpha, mean, floor)  # checks them
    shares = require_nonnegative("class_shares", class_shares, dimensions=2)
    if not np.allclose(shares.sum(axis=1), 1, atol=1e-6):
        raise InvalidInputError("class_shares: a row does not sum to 1; divide each row by its sum")
    classes = shares.shape[1]
    preference = generator(seed, "correlated-rates").dirichlet(np.full(classes, alpha))
    return np.asarray(np.clip(classes * mean * (shares @ preference), floor, 1.0))


def resolve_rates(
    rates: Rates, population: Population, seed: int, field: str = "rates"
) -> NDArray[np.float64]:
    """Return the rate p_n of each client, shape (N,); `field` is what an error names.

    Raises:
        InvalidInputError: a rate outside [0, 1] or not finite, not one rate for each client, or
            a law for clients without class shares.

    >>> resolve_rates(0.25, Population(clients=2), seed=0)
    array([0.25, 0.25])
    """
    if isinstance(rates, RateLaw):
        if population.class_shares is None:
            raise InvalidInputError(
                f"{field}: these clients have no class shares to correlate with; give numbers"
            )
        own = getattr(rates, "seed", None)
        given = rates.rates_of(population.class_shares, seed if own is None else own)
    else:
        given = order_by_id(field, rates, population)
    array = require_probabilities(field, given)
    if not isinstance(rates, Mapping | RateLaw) and np.ndim(rates) == 0:
        return np.full(population.clients, array[0])
    require_one_per_client(field, array, population.clients)
    return array
