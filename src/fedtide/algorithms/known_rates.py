"""Averaging with known participation rates, which FedAU estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates
from fedtide.client_values import Name, order_by_id
from fedtide.errors import InvalidInputError, quantify
from fedtide.population import Population
from fedtide.spec import Positive, spec


@dataclass(frozen=True)
class KnownRatesState(WeightedSumState):
    """The state of KnownRates.

    Args:
        rates: p_n, shape (N,).
    """

    rates: Tensor


@spec
class KnownRates(WeightedSum[KnownRatesState]):
    """Averaging in which each update is divided by its client's participation rate.

        x ← x + η / N Σ_{n in S_t} Δ_n / p_n

    The step is unbiased for the average over all clients (Wang & Ji 2024, Theorem 1 with
    ω_n = 1 / p_n: "known participation statistics" of its Table 1). As in the authors' program,
    1 / p_n is not capped, so rare clients make large steps.

    Args:
        server_lr: η > 0.
        rates: p_n in (0, 1], (N,) or by name; None: those of the participation process. 0 is only
            allowed for a client that never takes part under the process.

    Raises:
        InvalidInputError: η not positive; rates outside [0, 1], not N of them, or unknown; a rate
            of 0 for a client that may take part.

    >>> import torch
    >>> method = KnownRates(rates=[0.5, 0.25])
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> updates = ClientUpdates(torch.tensor([1]), torch.tensor([1.0]), torch.tensor([[1.0]]),
    ...                         lr=0.1, steps=torch.tensor([1]))
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model
    tensor([2.])
    """

    server_lr: Annotated[float, Positive] = 1.0
    rates: Sequence[float] | Mapping[Name, float] | None = None

    def init(self, model: Tensor, population: Population) -> KnownRatesState:
        """Return the state before round 0, with the rates given or those of the population."""
        rates = order_rates(self.rates, population)
        if self.rates is not None:
            _require_rates_of_participants(rates, population)
        tensor = torch.as_tensor(rates, dtype=torch.float64)
        return KnownRatesState.initial(model, population, rates=tensor)

    def weight_bound(self, state: KnownRatesState) -> float | None:
        """Return max 1 / p_n over the clients that can take part."""
        positive = state.rates[state.rates > 0]
        return float(1.0 / positive.min()) if len(positive) else None

    def least_weights(self, state: KnownRatesState) -> Tensor | float:
        """Return 1 / p_n, which never changes."""
        return 1.0 / state.rates

    def client_weights(self, state: KnownRatesState, updates: ClientUpdates) -> Tensor:
        """Return a_n = 1 / p_n."""
        return 1.0 / state.rates[updates.clients]

    def normaliser(self, state: KnownRatesState) -> float:
        return float(state.population)


def order_rates(
    rates: Sequence[float] | Mapping[Name, float] | None, population: Population
) -> NDArray[np.float64]:
    """Return p_n of all clients, (N,): those given, or else those of the population.

    Raises:
        InvalidInputError: rates outside [0, 1], not N of them, or unknown.
    """
    given = population.rates if rates is None else rates
    if given is None:
        raise InvalidInputError(
            "rates: unknown, as the participation process does not know them, a selection takes "
            "only some of the available clients, or some of these report late; give one per client"
        )
    resolved = np.array(order_by_id("rates", given, population), dtype=np.float64)
    if resolved.shape != (population.clients,):
        raise InvalidInputError(
            f"rates: {quantify(resolved.size, 'rate')} for "
            f"{quantify(population.clients, 'client')}; give one for each"
        )
    if not ((resolved >= 0) & (resolved <= 1)).all():
        raise InvalidInputError("rates: a rate is not within [0, 1]; give probabilities")
    return resolved


def _require_rates_of_participants(rates: NDArray[np.float64], population: Population) -> None:
    """Raise InvalidInputError if a client has rate 0 but may take part.

    Its first update could not be weighted, which would end the training in the middle of a run.
    """
    may_come = True if population.rates is None else population.rates > 0
    if (wrong := np.flatnonzero((rates == 0) & may_come)).size:
        name = "" if population.names is None else f" ({population.names[wrong[0]]})"
        raise InvalidInputError(
            f"rates: client {wrong[0]}{name} has the rate 0 and may take part: its updates would "
            "have no weight; give it a positive rate, or leave the client out"
        )
