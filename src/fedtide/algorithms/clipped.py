"""Clipping: the norm of every update is bounded before the inner method weights it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo, Traits
from fedtide.algorithms.fedavg import FedAvg
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import Positive, Within, spec

_LEAST, _MOST = sys.float_info.min, sys.float_info.max


@dataclass(frozen=True)
class ClippedState(WrapperState):
    """The state of Clipped.

    Args:
        bound: C_t.
        norms: ‖Δ_n‖ of this round's updates so far, before clipping, shape (S,), on the model's
            device.
    """

    bound: float
    norms: Tensor


@spec
class Clipped(Wrapper[ClippedState]):
    """Any method, given updates whose Euclidean norm is at most C.

        Δ_n ← Δ_n · min(1, C_t / ‖Δ_n‖)

    with C_t = `bound` (as the aggregation of Sun et al., "Can You Really Backdoor Federated
    Learning?", 2019), or with a bound that tracks the `quantile` of the norms of recent updates
    (Andrew et al., "Differentially Private Learning with Adaptive Clipping", 2021, without its
    noise): with b_t the share of a round's updates whose norm is at most C_t,

        C_0 = bound,        C_{t+1} = C_t · exp(-rate · (b_t - quantile))

    An empty round keeps C_t. However large its update is, a client changes the bound by at most a
    factor exp(rate / |S_t|).

    **Updates are clipped before they are weighted.** With FedAU a single update still moves the
    model by up to η ω C / N with ω ≤ K, and a client that stays away keeps this weight for many
    rounds after its return, unless FedAU's `average` decays. Clipping ω Δ instead would undo
    exactly the weight that FedAU gives to rare clients. Clipping Δ affects them, too: their
    updates, from a model that others have moved in their absence, are often the longest (see
    docs/hostile-clients.md).

    Clipping does not protect if clients themselves report their weight, as on Flower with
    FedAvg(weights="data"), nor against several clients that together send small wrong updates; for
    the latter see `TrimmedMean`, which can be `inner`.

    Args:
        bound: C, or C_0 with a quantile; positive, in units of the parameters.
        quantile: the share of the updates that should remain unclipped, in (0, 1); None: C is
            fixed.
        rate: η_C in (0, 1], how fast the bound follows the quantile; 0.2 is that of Andrew et al.
        inner: the method that gets the updates; not one that keeps gradients of clients (Scaffold,
            AmplifiedScaffold, FOCUS, WaitForAll with gradients), ClientSideMemory or CentralSGD.

    Raises:
        InvalidInputError: a bound that is not positive, a quantile or rate out of range, or another
            `inner`.

    >>> method = Clipped(bound=1.0)
    >>> state = method.init(torch.zeros(2), Population(2))
    >>> updates = ClientUpdates(torch.tensor([0, 1]), torch.ones(2),
    ...                         torch.tensor([[0.5, 0.0], [30.0, 40.0]]), 0.1, torch.ones(2))
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model  # the mean of (0.5, 0) and (0.6, 0.8)
    tensor([0.5500, 0.4000])
    """

    bound: Annotated[float, Positive]
    quantile: Annotated[float, Within(0, 1, "()")] | None = None
    rate: Annotated[float, Within(0, 1, "(]", "0.2 is usual")] = 0.2
    inner: Algorithm[Any] = field(default_factory=FedAvg)

    def __post_init__(self) -> None:
        inner = self.inner.traits
        if inner.centralised or inner.client_form or inner.keeps_gradients:
            raise InvalidInputError(
                "inner: it uses more of its clients than the clipped updates (their data, "
                "memory or gradients); give a method such as fedau, mifa or fedadam"
            )

    @property
    def traits(self) -> Traits:
        """Those of `inner`, but weights depend on norms."""
        return replace(super().traits, weights_follow_updates=True)

    def init(self, model: Tensor, population: Population) -> ClippedState:
        inner = self.inner.init(model, population)
        return ClippedState(inner, float(self.bound), model.new_zeros(0, dtype=torch.float64))

    def absorb(self, state: ClippedState, updates: ClientUpdates) -> ClippedState:
        """Pass the clipped updates on."""
        norms = torch.linalg.vector_norm(updates.deltas, dim=1, dtype=torch.float64)
        factors = _factors(norms, state.bound).to(updates.deltas.dtype)
        clipped = replace(updates, deltas=updates.deltas * factors.unsqueeze(1))
        inner = self.inner.absorb(state.inner, clipped)
        return ClippedState(inner, state.bound, torch.cat([state.norms, norms]))

    def step(self, state: ClippedState, lr: float) -> tuple[ClippedState, RoundInfo]:
        """Step as the inner method does, and move the bound."""
        inner, info = self.inner.step(state.inner, lr)
        bound, norms = state.bound, state.norms.cpu()
        factors = _factors(norms, bound).to(state.model.dtype)
        info = replace(info, weights=info.weights * factors)
        if self.quantile is not None and len(norms):
            share = float((norms <= bound).double().mean())
            bound *= math.exp(-self.rate * (share - self.quantile))
            bound = min(max(bound, _LEAST), _MOST)  # from 0 or infinity it would not come back
        return ClippedState(inner, bound, state.norms.new_zeros(0)), info


def _factors(norms: Tensor, bound: float) -> Tensor:
    """Return min(1, C_t / ‖Δ_n‖), shape (S,)."""
    return torch.where(norms > bound, bound / norms, 1.0)
