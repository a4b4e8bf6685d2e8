"""Amplified SCAFFOLD: control variates and amplification over whole periods of availability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms._weighted_sum import WeightedSumState
from fedtide.algorithms.base import ClientUpdates, Instructions, RoundInfo, Traits
from fedtide.algorithms.fedavg import CohortAverage
from fedtide.algorithms.scaffold import CohortWeights
from fedtide.device_copies import to_device_of
from fedtide.population import Population
from fedtide.spec import AtLeast, Positive, spec

_CHUNK_ROWS = 256  # control variates updated together, to keep temporary copies small


@dataclass(frozen=True)
class AmplifiedScaffoldState(WeightedSumState):
    """The state of AmplifiedScaffold.

    Args:
        model_change: u = x - x_{t0}, what this window has added to the model, shape (d,).
        control: G_n of every client, fixed within a window.
        mean_control: G = 1/N Σ G_n, shape (d,), float64.
        window_directions: Σ_s q_s^n v_s^n over the completed rounds of this window, where
            v = ḡ - G_n + G is the mean direction of a client's local steps.
        window_weight: Σ_s q_s^n over the same rounds, shape (N,).
        round_directions: v_t^n of this round, kept until the size of the cohort determines q_t^n.
    """

    model_change: Tensor
    control: ClientMemory
    mean_control: Tensor
    window_directions: ClientMemory
    window_weight: Tensor
    round_directions: ClientMemory


@spec
class AmplifiedScaffold(CohortAverage[AmplifiedScaffoldState]):
    """SCAFFOLD for periodic participation (Crawshaw & Liu 2024, Algorithm 1).

    With windows of P rounds counted from round 0, in every round

        y ← y - γ ( g_n(y) - G_n + G )        I times from y = x,        x ← x + Σ q_t^n Δ_n

    and at the end of a window that began at x_{t0}, with ḡ_s^n the mean raw gradient of round s,

        x ← x_{t0} + factor (x - x_{t0})
        G_n ← Σ_s q_s^n ḡ_s^n / Σ_s q_s^n  for clients with Σ_s q_s^n > 0; the others keep theirs
        G ← 1/N Σ G_n

    G_n = 0 at first. The authors' program weights all rounds of a window equally, which is the same
    where all positive q are equal. Their scripts call the local rate "eta" and the factor "gamma".
    With P = 1 and factor 1 it is Scaffold's option 2, as long as all q > 0.

    It recovers gradients from Δ_n, so it needs plain local SGD.

    Args:
        period: P >= 1, in rounds: a whole cycle of availability.
        factor: the amplification; choose γ · factor near the γ of Scaffold.
        weights: "mean": q = 1 / |S_t|; "given": q_t^n as the participation gives it.
        memory_folder: folder for files with the client memories; None: in RAM.

    Raises:
        InvalidInputError: a period below 1, a factor not positive, an unknown weighting, or a
            folder that cannot be written.

    >>> method = AmplifiedScaffold(period=2, factor=1.5)
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> for client in [0, 1]:
    ...     updates = ClientUpdates(torch.tensor([client]), torch.ones(1), torch.tensor([[-0.2]]),
    ...                             lr=0.1, steps=torch.tensor([1 + client]))
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model, method.instruct(state, torch.tensor([0, 1])).correction  # G_0 = 2, G_1 = 1
    (tensor([-0.6000]), tensor([[-0.5000], [ 0.5000]]))
    """

    period: Annotated[int, AtLeast(1)]
    factor: Annotated[float, Positive]
    weights: CohortWeights = "mean"
    memory_folder: str | None = None

    server_lr = 1.0

    @property
    def traits(self) -> Traits:
        """Control variates come from updates; the end of every window amplifies."""
        return Traits(requires_plain_sgd=True, message_vectors=3, amplification="factor")

    def init(self, model: Tensor, population: Population) -> AmplifiedScaffoldState:
        """Return the state before round 0, with all control variates zero."""
        control, window_directions, round_directions = (
            ClientMemory.empty(population.clients, model, self.memory_folder) for _ in range(3)
        )
        return AmplifiedScaffoldState.initial(
            model,
            population,
            model_change=torch.zeros_like(model),
            control=control,
            mean_control=torch.zeros_like(model, dtype=torch.float64),
            window_directions=window_directions,
            window_weight=torch.zeros(population.clients, dtype=model.dtype),
            round_directions=round_directions,
        )

    def instruct(self, state: AmplifiedScaffoldState, clients: Tensor) -> Instructions:
        """Return how to train: with G - G_n added to every gradient."""
        correction = state.control.subtracted_from(state.mean_control, clients)
        return Instructions(state.model, correction=correction)

    def absorb(
        self, state: AmplifiedScaffoldState, updates: ClientUpdates
    ) -> AmplifiedScaffoldState:
        """Fold in the updates, and keep the directions recovered from them."""
        directions = state.round_directions.write(updates.clients, updates.mean_gradients())
        return replace(super().absorb(state, updates), round_directions=directions)

    def add_clients(self, state: AmplifiedScaffoldState, first: int) -> AmplifiedScaffoldState:
        """Let the G_n = 0 of new clients count in G, also in the v = ḡ - G_n + G of this window."""
        mean = state.mean_control * (first / state.population)
        change = (mean - state.mean_control).to(state.model.dtype)
        served = (state.window_weight > 0).nonzero().flatten()
        window = state.window_directions
        for clients in torch.split(served, _CHUNK_ROWS):
            weight = to_device_of(state.window_weight[clients], change)
            window = window.add(clients, torch.outer(weight, change))
        return replace(state, mean_control=mean, window_directions=window)

    def step(
        self, state: AmplifiedScaffoldState, lr: float
    ) -> tuple[AmplifiedScaffoldState, RoundInfo]:
        """Move the model; at the end of a window, amplify and update the control variates."""
        state, info = super().step(state, lr)
        state = _accumulate_round(state, info)
        change = state.model_change + info.direction
        if state.round % self.period:
            return replace(state, model_change=change), info
        extra = (self.factor - 1.0) * change
        info = replace(info, direction=info.direction + extra)
        state = replace(state, model=state.model + extra, model_change=torch.zeros_like(change))
        return _update_control_variates(state), info


def _accumulate_round(state: AmplifiedScaffoldState, info: RoundInfo) -> AmplifiedScaffoldState:
    """Add q_t^n v_t^n of this round's updates to the window."""
    window = state.window_directions
    chunks = (torch.split(tensor, _CHUNK_ROWS) for tensor in (info.clients, info.weights))
    for clients, q in zip(*chunks, strict=True):
        rows = state.round_directions.read(clients)
        window = window.add(clients, rows.mul_(to_device_of(q, rows).unsqueeze(1)))
        state.window_weight[clients] += q
    cleared = state.round_directions.cleared()
    return replace(state, window_directions=window, round_directions=cleared)


def _update_control_variates(state: AmplifiedScaffoldState) -> AmplifiedScaffoldState:
    """Update G_n of the clients with weight in the window, and G; begin the next window.

    G and G_n were the same in all rounds of the window, so the weighted mean of ḡ = v + G_n - G is
    that of v, plus G_n - G.
    """
    control, total = state.control, torch.zeros_like(state.mean_control)
    served = (state.window_weight > 0).nonzero().flatten()
    for clients in torch.split(served, _CHUNK_ROWS):
        rows = state.window_directions.read(clients)
        rows.div_(to_device_of(state.window_weight[clients], rows).unsqueeze(1))
        rows.sub_(state.mean_control).add_(control.read(clients))
        total += control.change_to(rows, clients)
        control = control.write(clients, rows)
    return replace(
        state,
        control=control,
        mean_control=state.mean_control + total / control.clients,
        window_directions=state.window_directions.cleared(),
        window_weight=torch.zeros_like(state.window_weight),
    )
