"""Auto: averaging that keeps an account of how much every client has moved the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates, RoundInfo
from fedtide.configurable import configurable
from fedtide.population import Population
from fedtide.validation import require_positive

_SHARE = (5**0.5 - 1) / 2
"""ρ, the share of its debt with which a client enters a round: the golden ratio (docs/auto.md)."""

_LARGEST_STEP = 2.0
"""The largest Σ a_n / N: beyond it, a round may take two models further apart (docs/auto.md)."""


@dataclass(frozen=True)
class AutoState(WeightedSumState):
    """The state of Auto.

    Args:
        paid: c_n, the weights that each client has had, less what it was forgiven of those beyond
            its due, shape (N,), float64.
        seen: M, how many updates were used so far.
        mean: (x_1 + 2 x_2 + ... + t x_t) / (1 + 2 + ... + t), shape (d,); x_0 before round 0.
    """

    paid: Tensor
    seen: int
    mean: Tensor


@configurable
class Auto(WeightedSum[AutoState]):
    """Federated averaging with nothing to choose: every client is owed one weight a round.

    In round t, with M updates so far, c_n = 0 at first, and ρ = (√5 - 1) / 2:

        owed = t + 1 + (N / ρ) max(t, 1) / max(M, 1)
        debt_n = max(0, owed - c_n)
        a_n = ρ debt_n min(1, 2 N / Σ_{m in S_t} ρ debt_m)
        c_n ← owed - debt_n + a_n                                                 for n in S_t
        x ← x + η / N Σ_{n in S_t} a_n Δ_n

    and the output is the mean of the iterates x_1, ..., x_t with the weights 1, ..., t.

    Nobody tells the method how often clients take part, and it estimates no rates: a client that
    was away has a debt, from which its next updates pay. So over any stretch of rounds every client
    moves the model as much as every other one, up to the change of its debt, whatever the pattern
    is: rates that differ, change or alternate, bursts, cycles. The last term of `owed` is a credit
    of 1/ρ mean intervals between a client's rounds, so that the first rounds have full steps. It is
    a guess at first, so a client that has had more than it is owed is forgiven the rest. The 2
    bounds a step by twice the mean update; what it cuts off remains a debt.

    Weights follow from the debts, averaging over rounds from the mean, and amplification, by at
    most 2, from the bound. See docs/auto.md for the derivation, and for what is proved.

    A round costs O(cohort), and each client takes 8 bytes of memory.

    Args:
        server_lr: η > 0.

    Raises:
        InvalidInputError: η not positive.

    >>> method = Auto()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for cohort in [[0], [0], [0], [0, 1]]:
    ...     ids = torch.tensor(cohort)
    ...     ones = torch.ones(len(ids))
    ...     state = method.absorb(state, ClientUpdates(ids, ones, ones[:, None], 0.1, ids))
    ...     state, info = method.step(state, lr=0.1)
    >>> info.weights * 2  # client 1 was away for three rounds
    tensor([0.7840, 3.2160])
    """

    server_lr: float = 1.0

    def __post_init__(self) -> None:
        require_positive("server_lr", self.server_lr)

    def init(self, model: Tensor, population: Population) -> AutoState:
        paid = torch.zeros(population.clients, dtype=torch.float64)
        return AutoState.initial(model, population, paid=paid, seen=0, mean=model.clone())

    def client_weights(self, state: AutoState, updates: ClientUpdates) -> Tensor:
        """Return ρ debt_n: `normaliser` bounds the sum of a round."""
        return _SHARE * self.debt(state, updates.clients)

    def normaliser(self, state: AutoState) -> Tensor:
        return (state.weights.sum() / _LARGEST_STEP).clamp(min=state.population)

    def debt(self, state: AutoState, clients: Tensor) -> Tensor:
        """Return the weights that these clients, shape (S,), are owed in this round, (S,)."""
        return (_owed(state) - state.paid[clients]).clamp(min=0)

    def step(self, state: AutoState, lr: float) -> tuple[AutoState, RoundInfo]:
        """Move the model, enter the weights into the accounts, and update the mean."""
        before = _owed(state) - self.debt(state, state.clients)
        moved, info = super().step(state, lr)
        weights = info.weights.to(torch.float64) * (state.population / self.server_lr)
        moved.paid[info.clients] = before + weights
        mean = state.mean.lerp(moved.model, 2 / (moved.round + 1))
        return replace(moved, seen=moved.seen + len(info.clients), mean=mean), info

    def with_model(self, state: AutoState, model: Tensor) -> AutoState:
        """Replace the last iterate, also in the mean."""
        share = 2 / (max(state.round, 1) + 1)
        mean = state.mean + share * (model - state.model)
        return replace(state, model=model, mean=mean)

    def output(self, state: AutoState) -> Tensor:
        """Return the weighted mean of the iterates."""
        return state.mean


def _owed(state: AutoState) -> float:
    """Return what every client has been owed up to this round, with its credit."""
    interval = state.population * max(state.round, 1) / max(state.seen, 1)
    return state.round + 1 + interval / _SHARE
