"""FedAU: weights that estimate 1 / p_n online, from how long each client stays away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms._participation_intervals import (
    DecayedMeanInterval,
    IntervalStatistics,
    MeanInterval,
    PooledMeanInterval,
)
from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates, RoundInfo
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.validation import positive


@dataclass(frozen=True)
class FedAUState(WeightedSumState):
    """The state of FedAU.

    Args:
        history: when each client was last seen and which intervals it has closed.
    """

    history: IntervalStatistics


@dataclass(frozen=True)
class FedAU(WeightedSum):
    """Federated averaging with adaptive weights for unknown participation (paper 001).

        x ← x + η / N Σ_{n in S_t} ω_t^n Δ_n                                   (Algorithm 1)

    ω_t^n is the mean length of the intervals that client n has closed before round t, 1 while it
    has closed none; an interval is closed by taking part or after K rounds without (Algorithm 2).
    An interval counts the round that closes it, so a client that is always there has ω = 1. For
    independent participation with rate p_n, ω approaches (1 - (1 - p_n)^K) / p_n: with K = ∞ the
    wanted 1 / p_n, with K = 1 averaging over all. The authors' program keeps lists of intervals
    and sets "K = ∞" to 100,000; the weights are the same.

    A round costs O(cohort) whatever N is, and each client 8 bytes of memory.

    Args:
        server_lr: η > 0.
        cutoff: K >= 1; None is ∞. Small K: less variance, more bias for rare clients.
        average: "mean", or β in (0, 1): ω ← β ω + (1 - β) length, which follows rates that change
            (not in the paper).
        groups: a group id (any labels) per client, shape (N,): the members of a group share one
            history, the mean over all of their intervals, for clients known to come equally often;
            None: each client has its own.

    Raises:
        InvalidInputError: η not positive, K < 1, an average that is neither, groups of another number than
            N, or groups together with β.

    >>> import torch
    >>> method = FedAU(cutoff=3)
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for cohort in [[], [], [0], [], [0, 1]]:
    ...     ids = torch.tensor(cohort, dtype=torch.int64)
    ...     reports = ClientUpdates(ids, torch.ones(len(ids)), torch.ones(len(ids), 1), 0.1, ids)
    ...     state, info = method.step(method.absorb(state, reports), lr=0.1)
    >>> method.weights_of(state, torch.tensor([0, 1]))  # client 0: 3, 2; client 1: 3 (cut off), 2
    tensor([2.5000, 2.5000], dtype=torch.float64)
    """

    server_lr: float = 1.0
    cutoff: int | None = 50
    average: Literal["mean"] | float = "mean"
    groups: Sequence[int | str] | None = None

    def __post_init__(self) -> None:
        positive("server_lr", self.server_lr)
        if self.cutoff is not None and self.cutoff < 1:
            raise InvalidInputError(
                f"cutoff: {self.cutoff} is not at least 1; leave it empty for ∞"
            )
        if isinstance(self.average, str):
            if self.average != "mean":
                raise InvalidInputError(
                    f"average: unknown {self.average!r}; use 'mean' or a decay between 0 and 1"
                )
        elif not 0 < self.average < 1:
            raise InvalidInputError(f"average: the decay {self.average} is not between 0 and 1")
        elif self.groups is not None:
            raise InvalidInputError("average: groups share a plain mean; use 'mean' with groups")

    def init(self, model: Tensor, population: Population) -> FedAUState:
        """Return the state before round 0, with nobody seen."""
        history = self._history(population.clients, model.device)
        state: FedAUState = FedAUState.initial(model, population, history=history)
        return state

    def client_weights(
        self, state: FedAUState, reports: ClientUpdates
    ) -> tuple[FedAUState, Tensor]:
        """Return ω_t^n, which depends on the rounds before t only."""
        return state, self.weights_of(state, reports.clients)

    def normaliser(self, state: FedAUState) -> float:
        """Return N."""
        return float(state.population)

    def step(self, state: FedAUState, lr: float) -> tuple[FedAUState, RoundInfo]:
        """Move the model and note who took part."""
        history = state.history.record(state.round, state.clients)
        return super().step(replace(state, history=history), lr)

    def weights_of(self, state: FedAUState, clients: Tensor) -> Tensor:
        """Return the ω that these clients, shape (S,), would have in the round to come, (S,)."""
        return state.history.mean_interval(state.round, clients)

    def _history(self, clients: int, device: torch.device) -> IntervalStatistics:
        cutoff = self.cutoff or 0
        if self.groups is not None:
            if len(self.groups) != clients:
                raise InvalidInputError(
                    f"groups: {len(self.groups)} group ids for {clients} clients"
                )
            ids = np.unique(np.asarray(self.groups), return_inverse=True)[1]
            return PooledMeanInterval.empty(torch.as_tensor(ids, device=device), cutoff)
        if isinstance(self.average, float):
            return DecayedMeanInterval.empty(clients, cutoff, device, self.average)
        return MeanInterval.empty(clients, cutoff, device)
