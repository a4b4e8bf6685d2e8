"""Averaging with known participation rates, which FedAU estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates
from fedtide.client_values import Name, order_by_id
from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.validation import require_positive


@dataclass(frozen=True)
class KnownRatesState(WeightedSumState):
    """The state of KnownRates.

    Args:
        rates: p_n, shape (N,).
    """

    rates: Tensor


@configurable
class KnownRates(WeightedSum[KnownRatesState]):
    """Averaging in which each update is divided by its client's participation rate.

        x ← x + η / N Σ_{n in S_t} Δ_n / p_n

    The step is unbiased for the average over all clients (paper 001, Theorem 1 with ω_n = 1 / p_n:
    "known participation statistics" of its Table 1). 1 / p_n is not capped, as in the authors'
    program, so rare clients make large steps.

    Args:
        server_lr: η > 0.
        rates: p_n in (0, 1], (N,) or by name; None: those of the participation process.

    Raises:
        InvalidInputError: η not positive; rates outside [0, 1], not N of them, or unknown.

    >>> import torch
    >>> method = KnownRates(rates=[0.5, 0.25])
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> updates = ClientUpdates(torch.tensor([1]), torch.tensor([1.0]), torch.tensor([[1.0]]),
    ...                         lr=0.1, steps=torch.tensor([1]))
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model
    tensor([2.])
    """

    server_lr: float = 1.0
    rates: Sequence[float] | Mapping[Name, float] | None = None

    def __post_init__(self) -> None:
        require_positive("server_lr", self.server_lr)

    def init(self, model: Tensor, population: Population) -> KnownRatesState:
        """Return the state before round 0, with the rates given or those of the population."""
        given = population.rates if self.rates is None else self.rates
        if given is None:
            raise InvalidInputError(
                "rates: this participation process does not know its rates; give one per client"
            )
        rates = np.asarray(order_by_id("rates", given, population), dtype=np.float64)
        if rates.shape != (population.clients,):
            raise InvalidInputError(
                f"rates: {rates.size} rates for {population.clients} clients; give one for each"
            )
        if not ((rates >= 0) & (rates <= 1)).all():
            raise InvalidInputError("rates: a rate is not within [0, 1]; give probabilities")
        tensor = torch.as_tensor(rates, dtype=torch.float64, device=model.device)
        return KnownRatesState.initial(model, population, rates=tensor)

    def weight_bound(self, state: KnownRatesState) -> float | None:
        """Return max 1 / p_n over the clients that can take part."""
        positive = state.rates[state.rates > 0]
        return float(1.0 / positive.min()) if len(positive) else None

    def client_weights(self, state: KnownRatesState, updates: ClientUpdates) -> Tensor:
        """Return a_n = 1 / p_n; a client with rate 0 must not take part."""
        rates = state.rates[updates.clients]
        if bool((rates == 0).any()):
            client = int(updates.clients[rates == 0][0])
            raise InvalidInputError(
                f"rates: client {client} took part although its rate is 0; correct the rate"
            )
        return 1.0 / rates

    def normaliser(self, state: KnownRatesState) -> float:
        return float(state.population)
