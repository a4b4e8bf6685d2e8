"""Coordinate-wise trimming: what the trimmed mean and the median have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo
from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.population import Population

_BLOCK = 2**18  # numbers sorted at a time, few enough that all copies stay in the cache


@dataclass(frozen=True)
class Rows:
    """The updates of a round, in the chunks in which they arrived.

    Args:
        chunks: of shape (S, d) each.
    """

    chunks: tuple[Tensor, ...] = ()

    def to_tensors(self) -> Mapping[str, Tensor]:
        """Return all rows in one tensor; none between two rounds."""
        return {"rows": torch.cat(self.chunks)} if self.chunks else {}

    def from_tensors(self, stored: Mapping[str, Tensor]) -> Self:
        """Return the stored rows."""
        return replace(self, chunks=tuple(stored.values()))


@dataclass(frozen=True)
class TrimmedState(WrapperState):
    """The state of a coordinate-wise trimmed average.

    Args:
        updates: Δ_n of this round's clients so far.
    """

    updates: Rows


class CoordinatewiseTrimmed(Wrapper[TrimmedState]):
    """x_j ← x_j + W · Σ_{n in T_j} a_n Δ_nj / Σ_{n in T_j} a_n in each coordinate j.

    a_n are the weights of the inner method's step Σ a_n Δ_n and W is their sum over the cohort S_t;
    T_j are the clients that remain without the b largest and the b smallest Δ_nj. A method defines
    b (`trimmed`).
    """

    inner: Algorithm[Any]

    def __post_init__(self) -> None:
        if self.inner.centralised or not self.inner.averages_updates:
            raise InvalidInputError(
                "inner: its step is not a weighted average of the round's updates; give fedavg, "
                "fedprox, fedau, f3ast, known-rates, weighted-fedavg, auto with preconditioned: "
                "false and without control variates, or a method of your own with averages_updates "
                "True, and put other wrappers around this one"
            )
        if self.inner.scales_coordinates:
            raise InvalidInputError(
                "inner: it scales its steps by all updates, also those left out here; "
                "give auto with preconditioned: false, or fedau"
            )

    @property
    def weights_follow_updates(self) -> bool:
        return True

    @abstractmethod
    def trimmed(self, size: int) -> int:
        """Return b, how many of S values are left out at each end."""

    def init(self, model: Tensor, population: Population) -> TrimmedState:
        return TrimmedState(self.inner.init(model, population), Rows())

    def absorb(self, state: TrimmedState, updates: ClientUpdates) -> TrimmedState:
        """Pass the updates on, and keep them until the end of the round."""
        rows = Rows((*state.updates.chunks, updates.deltas))
        return TrimmedState(self.inner.absorb(state.inner, updates), rows)

    def step(self, state: TrimmedState, lr: float) -> tuple[TrimmedState, RoundInfo]:
        """Step as the inner method does, with trimmed averages instead of its own."""
        start = state.model
        inner, info = self.inner.step(state.inner, lr)
        if b := self.trimmed(len(info.clients)):
            info = _trim(info, state.updates.chunks, b)
            inner = self.inner.with_step(state.inner, inner, start + info.direction)
        return TrimmedState(inner, Rows()), info


def _trim(info: RoundInfo, chunks: tuple[Tensor, ...], b: int) -> RoundInfo:
    """Return the direction without the b largest and smallest values of each coordinate.

    The weight of a client is the mean of its weights in all coordinates.
    """
    weights = to_device_of(info.weights, info.direction)
    width = max(1, _BLOCK // len(info.clients))
    direction, shares = torch.empty_like(info.direction), torch.zeros_like(weights).double()
    for first in range(0, len(direction), width):
        block = torch.cat([chunk[:, first : first + width] for chunk in chunks]).T.contiguous()
        kept = _kept(block, b) * weights
        total = kept.sum(dim=1, keepdim=True)
        kept *= torch.where(total > 0, weights.sum() / total, 0.0)
        direction[first : first + width] = (kept * block).sum(dim=1)
        shares += kept.sum(dim=0, dtype=torch.float64)
    return RoundInfo(info.clients, (shares / len(direction)).to(info.weights), direction)


def _kept(values: Tensor, b: int) -> Tensor:
    """Return the part of each value, (k, S), that remains without a row's b largest and smallest.

    Equal values share what remains of them equally, so that the order of arrival does not matter.

    >>> _kept(torch.tensor([[3.0, 1.0, 2.0, 2.0, 9.0]]), 1)
    tensor([[1., 0., 1., 1., 0.]])
    >>> _kept(torch.tensor([[1.0, 1.0, 2.0, 2.0]]), 1)
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    if values.device.type == "cpu":  # NumPy sorts short rows ten times as fast as PyTorch
        ordered = torch.from_numpy(np.sort(values.numpy(force=True), axis=1))
    else:
        ordered = values.sort(dim=1).values
    middle = ordered[:, b : values.shape[1] - b]
    within = (values >= middle[:, :1]) & (values <= middle[:, -1:])
    # at least this many in each row: no ties at the ends; on a GPU, looking would mean waiting
    if values.device.type == "cpu" and int(within.sum()) == middle.numel():
        return within.to(values.dtype)
    kept = ((values > middle[:, :1]) & (values < middle[:, -1:])).to(values.dtype)
    for end in (middle[:, :1], middle[:, -1:]):
        equal = (values == end).to(values.dtype)
        remaining = (middle == end).to(values.dtype).sum(dim=1, keepdim=True)
        share = remaining / equal.sum(dim=1, keepdim=True)
        kept = torch.where(equal > 0, share, kept)
    return kept
