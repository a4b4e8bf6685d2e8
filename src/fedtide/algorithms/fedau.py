"""FedAU: weights that estimate 1 / p_n online, from how long each client stays away.

A client's rounds are cut into intervals. An interval ends in the round in which the client takes
part, or after K rounds (the cutoff), whichever comes first. Algorithm 2 of Wang & Ji (2024) counts
them client by client and round by round. Absent clients need no work, though: if client n was last
seen in round s, the intervals that the cutoff closed before round t are

    c = floor((t - 1 - s) / K)

of length K each, and if the client takes part in round t, it closes one more of length
t - s - c K. "Never seen" is s = -1. Everything below follows from this closed form, so a round
costs O(cohort), whatever N is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates
from fedtide.client_values import Name, order_by_id
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import Positive, spec
from fedtide.validation import require_one_per_client


@dataclass(frozen=True)
class IntervalStatistics(ABC):
    """Statistics of the closed intervals of N clients. `record` may reuse the object's memory.

    Args:
        cutoff: K >= 1; 0 stands for no cutoff.
        last_seen: s, the round in which each client was last seen, -1: never, shape (N,), int32.
    """

    cutoff: int
    last_seen: Tensor

    @abstractmethod
    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return ω_t^n, the mean interval that each client closed before round t.

        1 for a client that has closed none; shape (S,), float64.
        """

    @abstractmethod
    def record(self, t: int, clients: Tensor) -> Self:
        """Return the statistics after round t, in which exactly these clients took part."""

    def add_clients(self, first: int, t: int) -> Self:
        """Return the statistics in which the clients from `first` on begin with round t."""
        self.last_seen[first:] = t - 1
        return self

    def cut_intervals(self, t: int, clients: Tensor) -> Tensor:
        """Return c, how many intervals the cutoff closed since each client was last seen, (S,)."""
        if not self.cutoff:
            return torch.zeros_like(clients)
        return (t - 1 - self.last_seen[clients].to(torch.int64)) // self.cutoff

    def open_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return t - s - c K, the length of the interval that round t closes, shape (S,)."""
        since = t - self.last_seen[clients].to(torch.int64)
        return since - self.cut_intervals(t, clients) * self.cutoff


@dataclass(frozen=True)
class MeanInterval(IntervalStatistics):
    """The plain mean of each client's closed intervals (Wang & Ji 2024, Algorithm 2).

    Args:
        closed: how many intervals each client had closed when it was last seen, (N,), int32.
        length: their total length, shape (N,), int32.
    """

    closed: Tensor
    length: Tensor

    @classmethod
    def empty(cls, clients: int, cutoff: int) -> MeanInterval:
        """Return the statistics of N clients before round 0."""
        zeros = torch.zeros(clients, dtype=torch.int32)
        return cls(cutoff, _never(clients), zeros, zeros.clone())

    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return (length + c K) / (closed + c)."""
        cut = self.cut_intervals(t, clients)
        length = self.length[clients] + cut * self.cutoff
        count = self.closed[clients] + cut
        return torch.where(count > 0, length.double() / count.clamp(min=1), 1.0)

    def record(self, t: int, clients: Tensor) -> MeanInterval:
        """Count the intervals that the cutoff closed, and the one that round t closes."""
        closed = (self.cut_intervals(t, clients) + 1).to(torch.int32)
        self.closed.index_add_(0, clients, closed)
        self.length.index_add_(0, clients, t - self.last_seen[clients])
        self.last_seen[clients] = t
        return self


@dataclass(frozen=True)
class DecayedMeanInterval(IntervalStatistics):
    """An exponentially weighted mean: ω ← β ω + (1 - β) length, starting at the first length.

    c intervals of length K in a row take ω to K + β^c (ω - K).

    Args:
        decay: β in (0, 1), the weight of the past.
        mean: ω of each client when it was last seen, 0: none closed, shape (N,), float64.
    """

    decay: float
    mean: Tensor

    @classmethod
    def empty(cls, clients: int, cutoff: int, decay: float) -> Self:
        """Return the statistics of N clients before round 0."""
        mean = torch.zeros(clients, dtype=torch.float64)
        return cls(cutoff, _never(clients), decay, mean)

    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return ω after the intervals that the cutoff closed before round t."""
        mean = self._after_cuts(t, clients)
        return torch.where(mean > 0, mean, 1.0)

    def record(self, t: int, clients: Tensor) -> DecayedMeanInterval:
        """Fold in the intervals that the cutoff closed, then the one that round t closes."""
        length = self.open_interval(t, clients).double()
        mean = self._after_cuts(t, clients)
        blended = self.decay * mean + (1 - self.decay) * length
        self.mean[clients] = torch.where(mean > 0, blended, length)
        self.last_seen[clients] = t
        return self

    def _after_cuts(self, t: int, clients: Tensor) -> Tensor:
        cut, mean = self.cut_intervals(t, clients), self.mean[clients]
        faded = self.cutoff + self.decay ** cut.double() * (mean - self.cutoff)
        faded = torch.where(mean > 0, faded, float(self.cutoff))
        return torch.where(cut > 0, faded, mean)


@dataclass(frozen=True)
class PooledMeanInterval(IntervalStatistics):
    """One mean for each group of clients, over the closed intervals of all its members.

    The cutoff closes an interval of a member last seen in round s in the rounds s + K, s + 2K, ...
    A count of members by s mod K therefore says how many intervals the cutoff closes in round t:
    O(groups) per round.

    Args:
        group: the group of each client, shape (N,), int64, 0..G-1.
        length: the total length of each group's closed intervals, shape (G,), int64.
        closed: their number, shape (G,), int64.
        phases: how many members were last seen in a round ≡ k mod K, shape (G, K), int64.
    """

    group: Tensor
    length: Tensor
    closed: Tensor
    phases: Tensor

    @classmethod
    def empty(cls, group: Tensor, cutoff: int) -> PooledMeanInterval:
        """Return the statistics before round 0 of clients with these group ids, shape (N,)."""
        groups = int(group.max()) + 1
        phases = torch.zeros(groups, max(cutoff, 1), dtype=torch.int64)
        phases[:, -1] = torch.bincount(group, minlength=groups)
        zeros = torch.zeros(groups, dtype=torch.int64)
        return cls(cutoff, _never(len(group)), group, zeros, zeros.clone(), phases)

    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return the mean over the group of each client."""
        group = self.group[clients]
        length, count = self.length[group], self.closed[group]
        return torch.where(count > 0, length.double() / count.clamp(min=1), 1.0)

    def record(self, t: int, clients: Tensor) -> PooledMeanInterval:
        """Count the intervals that these clients close, and those that the cutoff closes."""
        group, last = self.group[clients], self.last_seen[clients].to(torch.int64)
        one = torch.ones_like(group)
        self.length.index_add_(0, group, self.open_interval(t, clients))
        self.closed.index_add_(0, group, one)
        if self.cutoff:
            phase = t % self.cutoff
            self.phases.index_put_((group, last % self.cutoff), -one, accumulate=True)
            self.length.add_(self.cutoff * self.phases[:, phase])
            self.closed.add_(self.phases[:, phase])
            self.phases.index_put_((group, one * phase), one, accumulate=True)
        self.last_seen[clients] = t
        return self


def _never(clients: int) -> Tensor:
    return torch.full((clients,), -1, dtype=torch.int32)


@dataclass(frozen=True)
class FedAUState(WeightedSumState):
    """The state of FedAU.

    Args:
        intervals: when each client was last seen, and the intervals that it has closed.
    """

    intervals: IntervalStatistics


@spec
class FedAU(WeightedSum[FedAUState]):
    """Federated averaging with adaptive weights for unknown participation (Wang & Ji 2024).

        x ← x + η / N Σ_{n in S_t} ω_t^n Δ_n                                   (Algorithm 1)

    ω_t^n is the mean length of the intervals that client n closed before round t, 1 while it has
    closed none (Algorithm 2). An interval counts the round that closes it, so a client that always
    takes part has ω = 1. For independent participation with rate p_n, ω approaches
    (1 - (1 - p_n)^K) / p_n: the unbiased 1 / p_n for K = ∞, and averaging over all clients for
    K = 1. The authors' program keeps lists of intervals and sets "K = ∞" to 100,000; the weights
    are the same.

    A round costs O(cohort) whatever N is, and each client takes 12 bytes of memory.

    Args:
        server_lr: η > 0.
        cutoff: K >= 1; None is ∞. A small K means less variance, but more bias for rare clients.
        average: "mean", or β in (0, 1): ω ← β ω + (1 - β) length, which follows rates that change
            (not in the paper).
        groups: a group id (any label) per client, (N,) or by name: the members of a group share one
            mean over all of their intervals, for clients known to take part equally often; None:
            each client has its own.

    Raises:
        InvalidInputError: η not positive, K < 1, an average that is neither, a number of groups
            other than N, or groups together with β.

    >>> import torch
    >>> method = FedAU(cutoff=3)
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for cohort in [[], [], [0], [], [0, 1]]:
    ...     ids = torch.tensor(cohort, dtype=torch.int64)
    ...     updates = ClientUpdates(ids, torch.ones(len(ids)), torch.ones(len(ids), 1), 0.1, ids)
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> method.omega(state, torch.tensor([0, 1]))  # client 0: 3, 2; client 1: 3 (cut off), 2
    tensor([2.5000, 2.5000], dtype=torch.float64)
    """

    server_lr: Annotated[float, Positive] = 1.0
    cutoff: int | None = 50
    average: Literal["mean"] | float = "mean"
    groups: Sequence[int | str] | Mapping[Name, int | str] | None = None

    def __post_init__(self) -> None:
        if self.cutoff is not None and self.cutoff < 1:
            raise InvalidInputError(
                f"cutoff: {self.cutoff} is below 1; give null (in Python: None) for ∞"
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
        """Return the state before round 0, in which no client has been seen."""
        intervals = self._initial_intervals(population)
        return FedAUState.initial(model, population, intervals=intervals)

    def weight_bound(self, state: FedAUState) -> float | None:
        """Return K: a mean of intervals that K cuts off; None without a cutoff."""
        return None if self.cutoff is None else float(self.cutoff)

    def least_weights(self, state: FedAUState) -> Tensor | float:
        """Return ω, which grows as the cutoff closes intervals."""
        return self.omega(state, torch.arange(state.population))

    def client_weights(self, state: FedAUState, updates: ClientUpdates) -> Tensor:
        """Return ω_t^n, which depends only on the rounds before t."""
        return self.omega(state, updates.clients)

    def normaliser(self, state: FedAUState) -> float:
        return float(state.population)

    def record_cohort(self, state: FedAUState) -> FedAUState:
        """Close the intervals of those who took part."""
        return replace(state, intervals=state.intervals.record(state.round, state.clients))

    def add_clients(self, state: FedAUState, first: int) -> FedAUState:
        """Count the intervals of new clients from this round on."""
        intervals = state.intervals.add_clients(first, state.round)
        return replace(state, intervals=intervals)

    def omega(self, state: FedAUState, clients: Tensor) -> Tensor:
        """Return the ω that these clients, shape (S,), would have in the next round, (S,)."""
        return state.intervals.mean_interval(state.round, clients)

    def _initial_intervals(self, population: Population) -> IntervalStatistics:
        clients, cutoff = population.clients, self.cutoff or 0
        if self.groups is not None:
            groups = np.asarray(order_by_id("groups", self.groups, population))
            require_one_per_client("groups", groups, clients)
            ids = np.unique(groups, return_inverse=True)[1]
            return PooledMeanInterval.empty(torch.as_tensor(ids), cutoff)
        if not isinstance(self.average, str):
            return DecayedMeanInterval.empty(clients, cutoff, self.average)
        return MeanInterval.empty(clients, cutoff)
