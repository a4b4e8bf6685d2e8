"""F3AST: averaging with rates smoothed online, for selections that follow availability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates
from fedtide.population import Population
from fedtide.spec import Positive, Share, spec


@dataclass(frozen=True)
class F3ASTState(WeightedSumState):
    """The state of F3AST.

    Args:
        rates: r_n after the round in which each client last took part, shape (N,), float64.
        last: that round, -1: never, shape (N,), int32.
    """

    rates: Tensor
    last: Tensor


@spec
class F3AST(WeightedSum[F3ASTState]):
    """Federated averaging aided by an adaptive sampling technique (Ribero et al., 2022).

        r_n ← (1 - β) r_n + β 1{n in S_t}        for all clients, r_n = 1/N at first
        x ← x + η / N Σ_{n in S_t} Δ_n / r_n     with the new r_n

    r_n is how often client n has taken part recently: an average over about 1/β rounds, so it
    follows changing rates. A client's first update has a weight of up to 1 / (β N), so a small β
    needs a small η.

    The authors' selection trains the K available clients that reduce the variance of the step most,
    those with the largest (1/N)² / r_n²: that is `LeastFrequent(size=K, beta=β)`. Without it the
    method only weights the clients that take part.

    Written from the authors' program (github.com/mriberodiaz/f3ast at 27b4e33); of the paper only
    the abstract was read. The program has β = 0.01 and r_n = p_n (the client's share of the
    samples) or 1/N at first, and divides the step by K once more. The program of FedPBC, which
    compares with this method, does not divide and begins with r_n = 1.

    A round costs O(cohort): between a client's rounds its r_n only shrinks, by (1 - β) each.

    Args:
        server_lr: η > 0.
        beta: β in (0, 1].
        initial: r_n at first, in (0, 1]; None: 1/N.

    Raises:
        InvalidInputError: η not positive, β or the first rate outside (0, 1].

    >>> method = F3AST(beta=0.5, initial=1.0)
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([1]), one, one[:, None], lr=0.1, steps=one)
    >>> for _ in range(2):
    ...     state, info = method.step(state, lr=0.1)
    >>> method.rate(state, torch.tensor([1]))  # 1/2 · 1/4 + 1/2 if it takes part now
    tensor([0.6250], dtype=torch.float64)
    """

    server_lr: Annotated[float, Positive] = 1.0
    beta: Annotated[float, Share] = 0.01
    initial: Annotated[float, Share] | None = None

    def init(self, model: Tensor, population: Population) -> F3ASTState:
        clients = population.clients
        first = 1 / clients if self.initial is None else self.initial
        return F3ASTState.initial(
            model,
            population,
            rates=torch.full((clients,), first, dtype=torch.float64),
            last=torch.full((clients,), -1, dtype=torch.int32),
        )

    def client_weights(self, state: F3ASTState, updates: ClientUpdates) -> Tensor:
        return 1.0 / self.rate(state, updates.clients)

    def normaliser(self, state: F3ASTState) -> float:
        return float(state.population)

    def record_cohort(self, state: F3ASTState) -> F3ASTState:
        """Update the rates of the clients that took part."""
        state.rates[state.clients] = self.rate(state, state.clients)
        state.last[state.clients] = state.round
        return state

    def add_clients(self, state: F3ASTState, first: int) -> F3ASTState:
        """Let the rates of new clients shrink from this round on."""
        state.last[first:] = state.round - 1
        return state

    def rate(self, state: F3ASTState, clients: Tensor) -> Tensor:
        """Return the r_n that these clients, shape (S,), have if they take part now, (S,)."""
        rounds = (state.round - state.last[clients]).double()
        return (1 - self.beta) ** rounds * state.rates[clients] + self.beta
