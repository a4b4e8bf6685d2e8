"""Amplified SCAFFOLD: control variates and amplification over whole periods of availability."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.algorithms.amplified import Amplified
from fedtide.algorithms.base import ClientUpdates, Instructions, RoundInfo
from fedtide.algorithms.fedavg import FedAvg
from fedtide.algorithms.gradients import mean_descents
from fedtide.algorithms.scaffold import CohortWeights
from fedtide.population import Population
from fedtide.validation import one_of

_ROWS_AT_ONCE = 256  # control variates that are renewed together, to keep what is copied small


@dataclass(frozen=True)
class AmplifiedScaffoldState(WrapperState):
    """The state of AmplifiedScaffold.

    Args:
        control: G_n of every client, fixed within a window.
        mean: G = 1/N Σ G_n, shape (d,).
        window: Σ_s q_s^n ḡ_s^n over the ended rounds of this window.
        served: Σ_s q_s^n over the same, shape (N,).
        reported: ḡ_t^n of this round, until the size of the cohort says what q_t^n is.
    """

    control: ClientMemory
    mean: Tensor
    window: ClientMemory
    served: Tensor
    reported: ClientMemory


@dataclass(frozen=True)
class AmplifiedScaffold(Wrapper):
    """SCAFFOLD for periodic participation (paper 002, Algorithm 1).

    With windows of P rounds counted from round 0, in every round

        y ← y - γ ( g_n(y) - G_n + G )        I times from y = x,        x ← x + Σ q_t^n Δ_n

    and at the end of a window that began at x_{t0}, with ḡ_s^n the mean raw gradient of round s,

        x ← x_{t0} + factor (x - x_{t0})
        G_n ← Σ_s q_s^n ḡ_s^n / Σ_s q_s^n  for clients with Σ_s q_s^n > 0; the others keep theirs
        G ← 1/N Σ G_n

    G_n = 0 at first. The authors' program weighs all rounds of a window alike, which is the same
    where all positive q are equal. Their scripts call the local rate "eta" and the factor "gamma".
    With P = 1 and factor 1 it is Scaffold's option 2, whoever comes (as long as all q > 0).

    It reads the gradients off Δ_n, so it needs plain local SGD.

    Args:
        period: P >= 1, in rounds: a whole cycle of availability.
        factor: the amplification; small γ · factor near the γ of Scaffold.
        weights: "mean": q = 1 / |S_t|; "given": q_t^n as the participation gives it.
        memory_folder: where files for the client memories lie; None keeps them in RAM.

    Raises:
        InvalidInputError: a period below 1, a factor not positive, unknown weights, or a folder that cannot
            be written.

    >>> method = AmplifiedScaffold(period=2, factor=1.5)
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for client in [0, 1]:
    ...     reports = ClientUpdates(torch.tensor([client]), torch.ones(1), torch.tensor([[-0.2]]),
    ...                       lr=0.1, steps=torch.tensor([1 + client]))
    ...     state, info = method.step(method.absorb(state, reports), lr=0.1)
    >>> state.model, method.instruct(state, torch.tensor([0, 1])).correction  # G_0 = 2, G_1 = 1
    (tensor([-0.6000]), tensor([[-0.5000], [ 0.5000]]))
    """

    period: int
    factor: float
    weights: CohortWeights = "mean"
    memory_folder: str | None = None

    def __post_init__(self) -> None:
        one_of("weights", self.weights, CohortWeights)
        _ = self.inner  # Amplified checks the other two

    @property
    def inner(self) -> Amplified:
        """Amplified FedAvg."""
        return Amplified(self.period, self.factor, FedAvg(weights=self.weights))

    @property
    def requires_plain_sgd(self) -> bool:
        """It needs them."""
        return True

    def init(self, model: Tensor, population: Population) -> AmplifiedScaffoldState:
        """Return the state before round 0, with all control variates zero."""
        control, window, reported = (
            ClientMemory.empty(population.clients, model, self.memory_folder) for _ in range(3)
        )
        return AmplifiedScaffoldState(
            inner=self.inner.init(model, population),
            control=control,
            mean=torch.zeros_like(model),
            window=window,
            served=model.new_zeros(population.clients),
            reported=reported,
        )

    def instruct(self, state: AmplifiedScaffoldState, clients: Tensor) -> Instructions:
        """Return how to train: with G - G_n added to every gradient."""
        return Instructions(state.model, correction=state.mean - state.control.read(clients))

    def absorb(
        self, state: AmplifiedScaffoldState, reports: ClientUpdates
    ) -> AmplifiedScaffoldState:
        """Fold in the updates, and keep the gradients that they show."""
        correction = state.mean - state.control.read(reports.clients)
        return replace(
            state,
            inner=self.inner.absorb(state.inner, reports),
            reported=state.reported.write(reports.clients, mean_descents(reports) - correction),
        )

    def step(
        self, state: AmplifiedScaffoldState, lr: float
    ) -> tuple[AmplifiedScaffoldState, RoundInfo]:
        """Move the model; at the end of a window, renew the control variates."""
        state, info = super().step(state, lr)
        state = _counted(state, info)
        return (state if state.round % self.period else _renewed(state)), info


def _counted(state: AmplifiedScaffoldState, info: RoundInfo) -> AmplifiedScaffoldState:
    """Add q_t^n ḡ_t^n of this round's reports to the window."""
    window = state.window
    parts = (torch.split(tensor, _ROWS_AT_ONCE) for tensor in (info.clients, info.weights))
    for clients, q in zip(*parts, strict=True):
        rows = window.read(clients) + q.unsqueeze(1) * state.reported.read(clients)
        window = window.write(clients, rows)
        state.served[clients] += q
    return replace(state, window=window, reported=state.reported.cleared())


def _renewed(state: AmplifiedScaffoldState) -> AmplifiedScaffoldState:
    """Give new control variates to whom the window served, and begin another window."""
    control, change = state.control, torch.zeros_like(state.mean)
    served = (state.served > 0).nonzero().flatten()
    for clients in torch.split(served, _ROWS_AT_ONCE):
        new = state.window.read(clients) / state.served[clients].unsqueeze(1)
        change += (new - control.read(clients)).sum(dim=0)
        control = control.write(clients, new)
    return replace(
        state,
        control=control,
        mean=state.mean + change / control.clients,
        window=state.window.cleared(),
        served=torch.zeros_like(state.served),
    )
