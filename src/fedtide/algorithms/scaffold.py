"""SCAFFOLD: control variates that correct local steps for client heterogeneity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms._weighted_sum import WeightedSumState
from fedtide.algorithms.base import ClientUpdates, Instructions, RoundInfo, Traits, empty_sum
from fedtide.algorithms.fedavg import CohortAverage
from fedtide.population import Population
from fedtide.spec import Positive, Within, spec

CohortWeights = Literal["mean", "given"]


@dataclass(frozen=True)
class ScaffoldState(WeightedSumState):
    """The state of Scaffold.

    Args:
        control: c_n of every client.
        mean_control: c = 1/N Σ c_n, as of the end of the last round, shape (d,), float64.
        change: Σ (new c_n - old c_n) over this round's updates so far, shape (d,), float64.
    """

    control: ClientMemory
    mean_control: Tensor
    change: Tensor


@spec
class Scaffold(CohortAverage[ScaffoldState]):
    """Stochastic controlled averaging (Karimireddy et al., 2020, Algorithm 1).

        y ← y - γ ( g_n(y) - c_n + c )                          I times from y = x
        c_n ← ∇F_n(x)                                           (option 1)
        c_n ← c_n - c - Δ_n / (γ I), the mean raw gradient      (option 2)
        x ← x + η Σ_{n in S_t} q_t^n Δ_n,        c ← c + 1/N Σ_{n in S_t} (new c_n - old c_n)

    with c = c_n = 0 at first; absent clients keep their c_n. Option 1 requires of every client an
    extra pass over all of its data at x; option 2 costs nothing extra. Crawshaw & Liu (2024) run
    option 2 with η = 1 and the plain mean.

    Option 2 recovers gradients from Δ_n, so it needs plain local SGD.

    Args:
        server_lr: η > 0.
        option: 1 or 2.
        weights: "mean": q = 1 / |S_t|; "given": q_t^n as the participation gives it.
        memory_folder: folder for a file with the c_n; None: in RAM.

    Raises:
        InvalidInputError: η not positive, an unknown option or weighting, or a folder that cannot
            be written.

    >>> method = Scaffold()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> updates = ClientUpdates(torch.tensor([0]), torch.ones(1), torch.tensor([[-0.3]]), lr=0.1,
    ...                         steps=torch.tensor([3]))
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> method.instruct(state, torch.tensor([0, 1])).correction  # c = 1/2, c_0 = 1, c_1 = 0
    tensor([[-0.5000],
            [ 0.5000]])
    """

    server_lr: Annotated[float, Positive] = 1.0
    option: Annotated[int, Within(1, 2, hint="use 2, the cheaper")] = 2
    weights: CohortWeights = "mean"
    memory_folder: str | None = None

    @property
    def traits(self) -> Traits:
        """Control variates are gradients: of updates, or sent with them (option 1)."""
        return Traits(
            requires_plain_sgd=self.option == 2,
            keeps_gradients=True,
            message_vectors=4 if self.option == 1 else 3,
        )

    def init(self, model: Tensor, population: Population) -> ScaffoldState:
        """Return the state before round 0, with all control variates zero."""
        return ScaffoldState.initial(
            model,
            population,
            control=ClientMemory.empty(population.clients, model, self.memory_folder),
            mean_control=torch.zeros_like(model, dtype=torch.float64),
            change=empty_sum(model, torch.float64),
        )

    def instruct(self, state: ScaffoldState, clients: Tensor) -> Instructions:
        """Return how to train: with c - c_n added to every gradient."""
        correction = state.control.subtracted_from(state.mean_control, clients)
        return Instructions(state.model, correction=correction, gradients=self.option == 1)

    def absorb(self, state: ScaffoldState, updates: ClientUpdates) -> ScaffoldState:
        """Fold in the updates and replace the clients' control variates."""
        control, clients = state.control, updates.clients
        if self.option == 2:
            rows = updates.mean_gradients().sub_(state.mean_control).add_(control.read(clients))
        else:
            assert updates.gradients is not None, "option 1 asks for gradients"
            rows = updates.gradients
        change = control.change_to(rows, clients).add_(state.change)
        control = control.write(clients, rows)
        return replace(super().absorb(state, updates), control=control, change=change)

    def add_clients(self, state: ScaffoldState, first: int) -> ScaffoldState:
        """Let the c_n = 0 of new clients count in c."""
        return replace(state, mean_control=state.mean_control * (first / state.population))

    def step(self, state: ScaffoldState, lr: float) -> tuple[ScaffoldState, RoundInfo]:
        """Move the model and c."""
        state, info = super().step(state, lr)
        mean = state.mean_control + state.change / state.population
        return replace(state, mean_control=mean, change=empty_sum(mean)), info
