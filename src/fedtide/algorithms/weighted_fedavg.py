"""Averaging weighted by participation, the counterpart of agnostic averaging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum
from fedtide.algorithms.base import ClientUpdates, RoundInfo, Traits
from fedtide.algorithms.known_rates import KnownRatesState, order_rates
from fedtide.client_values import Name
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import spec


@spec
class WeightedFedAvg(WeightedSum[KnownRatesState]):
    """Models averaged with the participation weights p_n (Rahimi & Kalogerias 2025, (10)).

        normalise:  x ← Σ_{n in S_t} p_n (x + Δ_n) / Σ_{n in S_t} p_n    (the authors' notebook)
        otherwise:  x ← N / |S_t| Σ_{n in S_t} p_n (x + Δ_n)             (the equation as printed)

    An empty round leaves x where it is. As printed, the weights of a cohort do not sum to 1, and x
    diverges under skewed participation. Averaging over the cohort already minimises Σ p_n F_n
    (equation 3 of the paper); weighting by p_n counts participation twice.

    Args:
        rates: p_n, (N,) or by name, up to a common factor, such as probabilities of taking part;
            None: those of the participation process.
        normalise: whether the weights of a cohort are divided by their sum.

    Raises:
        InvalidInputError: rates outside [0, 1], not N of them, all 0, or unknown.

    >>> method = WeightedFedAvg(rates=[0.3, 0.1])
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> updates = ClientUpdates(torch.tensor([0, 1]), torch.ones(2), torch.tensor([[1.0], [5.0]]),
    ...                         lr=0.1, steps=torch.tensor([1, 1]))
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model
    tensor([2.])
    """

    rates: Sequence[float] | Mapping[Name, float] | None = None
    normalise: bool = True

    server_lr = 1.0

    @property
    def traits(self) -> Traits:
        """As printed, the weights of a cohort do not sum to 1, so the step scales x as well."""
        return Traits(averages_updates=self.normalise)

    def init(self, model: Tensor, population: Population) -> KnownRatesState:
        """Return the state before round 0, with rates that sum to 1."""
        rates = torch.as_tensor(order_rates(self.rates, population), dtype=torch.float64)
        if not rates.any():
            raise InvalidInputError("rates: all are 0; give clients that take part positive ones")
        return KnownRatesState.initial(model, population, rates=rates / rates.sum())

    def client_weights(self, state: KnownRatesState, updates: ClientUpdates) -> Tensor:
        return state.rates[updates.clients]

    def normaliser(self, state: KnownRatesState) -> Tensor | float:
        """Return Σ p_n over the cohort (∞ where that is 0: no step), or |S| / N."""
        if not self.normalise:
            return len(state.clients) / state.population
        total = state.weights.sum()
        return torch.where(total > 0, total, torch.inf)

    def step(self, state: KnownRatesState, lr: float) -> tuple[KnownRatesState, RoundInfo]:
        """Move the model; as printed, x itself is scaled by the sum of the weights."""
        start, reported = state.model, len(state.clients) > 0
        state, info = super().step(state, lr)
        if self.normalise or not reported:
            return state, info
        surplus = (info.weights.sum() - 1.0) * start
        info = replace(info, direction=info.direction + surplus)
        return replace(state, model=start + info.direction), info
