"""FedVARP: averaging over the cohort, with memory as a control variate for client sampling."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdates, LatestUpdatesState
from fedtide.algorithms.base import ClientUpdates, RoundInfo
from fedtide.population import Population
from fedtide.spec import Positive, spec

EmptyRounds = Literal["skip", "memory"]


@spec
class FedVARP(LatestUpdates[LatestUpdatesState]):
    """Federated variance reduction for partial participation (Jhunjhunwala et al., 2022).

        x ← x + η [ 1/N Σ_n h_n + 1/|S_t| Σ_{n in S_t} (Δ_n - h_n) ],
        then h_n ← Δ_n  for n in S_t,        h_n = 0 at first

    The paper assumes cohorts of a fixed size drawn uniformly; under uneven participation the
    second term is biased towards the clients that take part most. In empty rounds, the program of
    Wang & Ji 2024 (FedAU) leaves x where it is ("skip"); "memory" still makes the step η/N Σ h_n.
    The published method divides Δ_n by γ I and multiplies the step by it, which is the same for
    constant γ and I.

    Args:
        server_lr: η > 0.
        empty_rounds: what happens in rounds without updates.
        memory_folder: folder for a file with the memory; None: in RAM.

    Raises:
        InvalidInputError: η not positive, an unknown `empty_rounds`, or a folder that cannot be
            written.

    >>> import torch
    >>> from fedtide.population import Population
    >>> method = FedVARP()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for client in [0, 1]:
    ...     updates = ClientUpdates(torch.tensor([client]), torch.ones(1), torch.ones(1, 1), 0.1,
    ...                             torch.ones(1))
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> info.direction  # 1/2 of client 0's memory + (1 - 0) of client 1
    tensor([1.5000])
    """

    server_lr: Annotated[float, Positive] = 1.0
    empty_rounds: EmptyRounds = "skip"
    memory_folder: str | None = None

    def init(self, model: Tensor, population: Population) -> LatestUpdatesState:
        return LatestUpdatesState.initial(model, population, self.memory_folder)

    def absorb(self, state: LatestUpdatesState, updates: ClientUpdates) -> LatestUpdatesState:
        return state.store(updates.clients, updates.deltas)

    def step(self, state: LatestUpdatesState, lr: float) -> tuple[LatestUpdatesState, RoundInfo]:
        """Move the model by the mean memory before this round and the cohort's change."""
        cohort = len(state.clients)
        if cohort == 0 and self.empty_rounds == "skip":
            return state.finish_round(torch.zeros_like(state.total), 0.0)
        memory = self.server_lr / state.population
        news = self.server_lr / max(cohort, 1)
        return state.finish_round(memory * state.total + news * state.change, news)
