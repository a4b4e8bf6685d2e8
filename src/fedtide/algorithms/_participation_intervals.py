"""How long clients stay away, in O(cohort) per round: the bookkeeping behind FedAU's weights.

A client's rounds are cut into intervals: each ends in the round in which the client takes part, or
after K rounds (the cutoff), whichever comes first. Paper 001, Algorithm 2, counts this client by
client and round by round. Nothing needs to be touched for the absent, though: if a client was last
seen in round s, the intervals that the cutoff closed before round t are

    c = floor((t - 1 - s) / K)

of length K each, and if it takes part in round t it closes one more, of length t - s - c K. "Never
seen" is s = -1. Everything below follows from this closed form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class IntervalStatistics(ABC):
    """Closed intervals of N clients. `record` reuses the memory of the history that it is given.

    Args:
        cutoff: K >= 1; 0 stands for no cutoff.
        last: the round in which each client was last seen, -1 for never, shape (N,), int32.
    """

    cutoff: int
    last: Tensor

    @abstractmethod
    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return the mean interval closed before round t of each client, (S,), float64; 1: none."""

    @abstractmethod
    def record(self, t: int, clients: Tensor) -> Self:
        """Return the history after round t, in which exactly these clients took part."""

    def cut_off(self, t: int, clients: Tensor) -> Tensor:
        """Return c, how many intervals the cutoff closed since each client was last seen, (S,)."""
        if not self.cutoff:
            return torch.zeros_like(clients)
        return (t - 1 - self.last[clients].to(torch.int64)) // self.cutoff


@dataclass(frozen=True)
class MeanInterval(IntervalStatistics):
    """The plain mean of each client's closed intervals.

    All rounds up to the last closed interval lie in closed intervals, so their total length needs
    no memory: it is s + 1 + c K, and the mean is that over the number of intervals.

    Args:
        closed: how many intervals each client had closed when it was last seen, (N,), int32.
    """

    closed: Tensor

    @classmethod
    def empty(cls, clients: int, cutoff: int, device: torch.device) -> MeanInterval:
        """Return the history of N clients before round 0."""
        return cls(cutoff, _never(clients, device), _zeros(clients, device))

    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return (s + 1 + c K) / (closed + c)."""
        cut = self.cut_off(t, clients)
        length = self.last[clients].to(torch.int64) + 1 + cut * self.cutoff
        count = self.closed[clients] + cut
        return torch.where(count > 0, length.double() / count.clamp(min=1), 1.0)

    def record(self, t: int, clients: Tensor) -> MeanInterval:
        """Close the intervals that the cutoff closed, and one by taking part."""
        self.closed[clients] += (self.cut_off(t, clients) + 1).to(torch.int32)
        self.last[clients] = t
        return self


@dataclass(frozen=True)
class DecayedMeanInterval(IntervalStatistics):
    """An exponentially weighted mean: ω ← β ω + (1 - β) length, the first length taken whole.

    c intervals of length K in a row take ω to K + β^c (ω - K).

    Args:
        decay: β in (0, 1), the weight of what was known before.
        mean: ω of each client when it was last seen, 0 for none closed, shape (N,), float64.
    """

    decay: float
    mean: Tensor

    @classmethod
    def empty(
        cls, clients: int, cutoff: int, device: torch.device, decay: float
    ) -> DecayedMeanInterval:
        """Return the history of N clients before round 0."""
        mean = torch.zeros(clients, dtype=torch.float64, device=device)
        return cls(cutoff, _never(clients, device), decay, mean)

    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return ω after the intervals that the cutoff closed before round t."""
        mean = self._after_cut_offs(t, clients)
        return torch.where(mean > 0, mean, 1.0)

    def record(self, t: int, clients: Tensor) -> DecayedMeanInterval:
        """Fold in what the cutoff closed, then the interval closed by taking part."""
        length = (t - self.last[clients] - self.cut_off(t, clients) * self.cutoff).double()
        mean = self._after_cut_offs(t, clients)
        blended = self.decay * mean + (1 - self.decay) * length
        self.mean[clients] = torch.where(mean > 0, blended, length)
        self.last[clients] = t
        return self

    def _after_cut_offs(self, t: int, clients: Tensor) -> Tensor:
        cut, mean = self.cut_off(t, clients), self.mean[clients]
        faded = self.cutoff + self.decay ** cut.double() * (mean - self.cutoff)
        faded = torch.where(mean > 0, faded, float(self.cutoff))
        return torch.where(cut > 0, faded, mean)


@dataclass(frozen=True)
class PooledMeanInterval(IntervalStatistics):
    """One mean for each group of clients, over the closed intervals of all of its members.

    A member last seen in round s is cut off in the rounds s + K, s + 2K, ..., so a count of the
    members by s mod K says how many a group's cutoff closes in round t: O(groups) a round.

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
        """Return the history before round 0 of clients with these group ids, shape (N,)."""
        groups = int(group.max()) + 1
        phases = torch.zeros(groups, max(cutoff, 1), dtype=torch.int64, device=group.device)
        phases[:, -1] = torch.bincount(group, minlength=groups)
        zeros = torch.zeros(groups, dtype=torch.int64, device=group.device)
        return cls(cutoff, _never(len(group), group.device), group, zeros, zeros.clone(), phases)

    def mean_interval(self, t: int, clients: Tensor) -> Tensor:
        """Return the mean over the group of each client."""
        group = self.group[clients]
        length, count = self.length[group], self.closed[group]
        return torch.where(count > 0, length.double() / count.clamp(min=1), 1.0)

    def record(self, t: int, clients: Tensor) -> PooledMeanInterval:
        """Close by taking part for these clients, and by the cutoff for the absent."""
        group, last = self.group[clients], self.last[clients].to(torch.int64)
        length = t - last - self.cut_off(t, clients) * self.cutoff
        one = torch.ones_like(group)
        self.length.index_add_(0, group, length)
        self.closed.index_add_(0, group, one)
        if self.cutoff:
            phase = t % self.cutoff
            self.phases.index_put_((group, last % self.cutoff), -one, accumulate=True)
            self.length.add_(self.cutoff * self.phases[:, phase])
            self.closed.add_(self.phases[:, phase])
            self.phases.index_put_((group, one * phase), one, accumulate=True)
        self.last[clients] = t
        return self


def _never(clients: int, device: torch.device) -> Tensor:
    return torch.full((clients,), -1, dtype=torch.int32, device=device)


def _zeros(clients: int, device: torch.device) -> Tensor:
    return torch.zeros(clients, dtype=torch.int32, device=device)
