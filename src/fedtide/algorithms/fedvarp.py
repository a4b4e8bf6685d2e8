"""FedVARP: averaging over the cohort, with the variance of who came taken out by memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdatesState
from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo
from fedtide.population import Population
from fedtide.validation import one_of, positive

EmptyRounds = Literal["skip", "memory"]


@dataclass(frozen=True)
class FedVARP(Algorithm):
    """Federated variance reduction for partial participation (Jhunjhunwala et al., 2022).

        x ← x + η [ 1/N Σ_n y_n + 1/|S_t| Σ_{n in S_t} (Δ_n - y_n) ],
        then y_n ← Δ_n  for n in S_t,        y_n = 0 at first

    The paper assumes cohorts of a fixed size drawn uniformly; under uneven participation the
    second term is biased towards whoever comes. In rounds in which nobody reports, paper 001's
    program leaves x where it is ("skip"); "memory" still makes the step η/N Σ y_n. The published
    method divides Δ_n by γ I and multiplies the step by it, which is the same for constant γ, I.

    Args:
        server_lr: η > 0.
        empty_rounds: what happens in rounds without reports.
        memory_folder: where a file for the memory lies; None keeps it in RAM.

    Raises:
        InvalidInputError: η not positive, an unknown `empty_rounds`, or a folder that cannot be written.

    >>> import torch
    >>> method = FedVARP()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for client in [0, 1]:
    ...     reports = ClientUpdates(torch.tensor([client]), torch.ones(1), torch.ones(1, 1), 0.1,
    ...                       torch.ones(1))
    ...     state, info = method.step(method.absorb(state, reports), lr=0.1)
    >>> info.direction  # 1/2 of client 0's memory + (1 - 0) of client 1
    tensor([1.5000])
    """

    server_lr: float = 1.0
    empty_rounds: EmptyRounds = "skip"
    memory_folder: str | None = None

    def __post_init__(self) -> None:
        positive("server_lr", self.server_lr)
        one_of("empty_rounds", self.empty_rounds, EmptyRounds)

    def init(self, model: Tensor, population: Population) -> LatestUpdatesState:
        """Return the state before round 0, with all memories zero."""
        return LatestUpdatesState.initial(model, population, self.memory_folder)

    def absorb(self, state: LatestUpdatesState, reports: ClientUpdates) -> LatestUpdatesState:
        """Put these updates in the place of the clients' memories."""
        return state.store(reports.clients, reports.updates)

    def step(self, state: LatestUpdatesState, lr: float) -> tuple[LatestUpdatesState, RoundInfo]:
        """Move the model by the mean memory from before this round and the cohort's news."""
        cohort = len(state.clients)
        if cohort == 0 and self.empty_rounds == "skip":
            return state.finish_round(torch.zeros_like(state.total), 0.0)
        memory = self.server_lr / state.population
        news = self.server_lr / max(cohort, 1)
        return state.finish_round(memory * state.total + news * state.change, news)
