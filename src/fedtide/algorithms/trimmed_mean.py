"""The coordinate-wise trimmed mean and median of a round's updates."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.algorithms.auto import Auto, AutoState
from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo, Traits
from fedtide.algorithms.fedavg import FedAvg
from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import Within, spec

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
        inner = self.inner.traits
        if inner.centralised or not inner.averages_updates or inner.scales_coordinates:
            raise InvalidInputError(
                "inner: its step is not a weighted average of the round's updates; give fedavg, "
                "fedprox, fedau, f3ast, known-rates, weighted-fedavg, auto with preconditioned: "
                "false and without control variates, or a method of your own whose trait "
                "averages_updates is true, and put other wrappers around this one"
            )

    @property
    def traits(self) -> Traits:
        """Those of `inner`, but weights depend on which values are left out."""
        return replace(super().traits, weights_follow_updates=True)

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
            model = start + info.direction
            if isinstance(self.inner, Auto) and isinstance(state.inner, AutoState):
                # its mean contains the step that is replaced
                inner = self.inner.with_step(state.inner, inner, model)
            else:
                inner = self.inner.with_model(inner, model)
        return TrimmedState(inner, Rows()), info


@spec
class TrimmedMean(CoordinatewiseTrimmed):
    """The coordinate-wise trimmed mean (Yin et al., 2018, Definition 2 and Algorithm 1).

        b = min(⌈β S⌉, ⌊(S - 1) / 2⌋) for a cohort of S clients
        x_j ← x_j + W · Σ_{n in T_j} a_n Δ_nj / Σ_{n in T_j} a_n

    in each coordinate j, where T_j are the clients that remain without the b largest and the b
    smallest Δ_nj, a_n is the weight that the inner method gives an update (1 / S for FedAvg,
    ω_n / N for FedAU) and W = Σ_{n in S_t} a_n, so that the step keeps its length. As long as at
    most b clients of a cohort are hostile, every coordinate of x moves by W times a value between
    those of the honest clients. W sums the weights of all: clients that were long away make the
    step of FedAU longer, hostile or not.

    **Updates are trimmed before they are weighted**: a client counts once, whatever its weight. If
    trimming counted weights, a hostile client could become the median by staying away until FedAU
    gives it half of the weight. The cost is that a rare client whose values lie outside those of
    the others, so that nobody else represents it, is removed like an attacker (see
    docs/hostile-clients.md).

    There is no protection in rounds of one or two clients, where nothing can be trimmed; Clipped
    around this method bounds their updates. All updates of a round are kept until its end: S d
    numbers. Yin et al. assume that all clients take part in every round, and trim gradients where
    this trims updates.

    Args:
        trim: β in [0, 1/2), the share of the cohort that is left out at each end; 0 is the inner
            method.
        inner: a method whose step is a weighted average of the round's updates: FedAvg, FedProx,
            FedAU, F3AST, KnownRates, WeightedFedAvg, or Auto with `preconditioned=False`. Other
            wrappers go around this one.

    Raises:
        InvalidInputError: a share outside [0, 1/2), or another `inner`.

    >>> import torch
    >>> from fedtide.algorithms.base import ClientUpdates
    >>> from fedtide.population import Population
    >>> method = TrimmedMean(trim=0.25)
    >>> state = method.init(torch.zeros(1), Population(4))
    >>> updates = ClientUpdates(torch.arange(4), torch.ones(4),
    ...                         torch.tensor([[1.0], [2.0], [4.0], [-1e6]]), 0.1, torch.ones(4))
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model  # the mean of 1 and 2
    tensor([1.5000])
    """

    trim: Annotated[float, Within(0, 0.5, "[)", "give a share, or use the type median")] = 0.1
    inner: Algorithm[Any] = field(default_factory=FedAvg)

    def trimmed(self, size: int) -> int:
        """Return min(⌈β S⌉, ⌊(S - 1) / 2⌋)."""
        wanted = math.ceil(round(self.trim * size, 9))  # 0.1 · 30 is 3.0000000000000004
        return min(wanted, max(size - 1, 0) // 2)


@spec
class Median(CoordinatewiseTrimmed):
    """The coordinate-wise median (Yin et al., 2018, Definition 1 and Algorithm 1).

        x_j ← x_j + W · median_{n in S_t} Δ_nj        in each coordinate j

    with W = Σ_{n in S_t} a_n the sum of the weights that the inner method gives the updates: η for
    FedAvg, η/N Σ ω_n for FedAU. With an even number of clients, the median is the average of the
    two middle values with their weights a_n. It is the `TrimmedMean` that leaves out all but the
    middle, with the same properties in their strongest form: fewer than half of a cohort cannot
    take a coordinate of the step outside W times the range of the honest clients' values, **and
    fewer than half of the clients, such as the rare ones, are ignored when they differ**. FedAU's
    weights still decide how long the step is, but hardly its direction.

    Args:
        inner: as for `TrimmedMean`.

    Raises:
        InvalidInputError: another `inner`.

    >>> import torch
    >>> from fedtide.algorithms.base import ClientUpdates
    >>> from fedtide.population import Population
    >>> method = Median()
    >>> state = method.init(torch.zeros(1), Population(3))
    >>> updates = ClientUpdates(torch.arange(3), torch.ones(3),
    ...                         torch.tensor([[1.0], [2.0], [1e6]]), 0.1, torch.ones(3))
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model
    tensor([2.])
    """

    inner: Algorithm[Any] = field(default_factory=FedAvg)

    def trimmed(self, size: int) -> int:
        """Return ⌊(S - 1) / 2⌋."""
        return max(size - 1, 0) // 2


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
