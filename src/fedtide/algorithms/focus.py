"""FOCUS: gradient tracking between the server and the clients that take part."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdates, LatestUpdatesState
from fedtide.algorithms.base import ClientUpdates, Instructions, RoundInfo
from fedtide.population import Population
from fedtide.spec import Positive, spec


@spec
class FOCUS(LatestUpdates[LatestUpdatesState]):
    """Federated optimization with exact convergence via push-pull (Ying et al., NeurIPS 2025).

        y ← y - γ ( g_n(y) - h_n )        I times from y = x
        h_n ← ∇F_n(y)                     for n in S_t, h_n = 0 at first
        x ← x - η γ Σ_n h_n               the sum over all clients, absent ones too

    so a client tracks how its gradient has changed since it last took part, and the server keeps
    the sum of everyone's latest gradients. At a fixed point all clients agree on y = x and
    Σ ∇F_n(x) = 0: with exact gradients and small γ, the iterates reach the optimum of the mean
    at a linear rate for strongly convex F_n, whichever clients take part and however
    heterogeneous they are. A step is N times as long as that of methods that average: to keep their
    γ, take η = 1 / N.

    Written from the authors' program (github.com/BichengYing/FedASL at 72ea664, class FedASL, the
    method's former name); of the paper only the abstract was read. The program has η = 1, and a
    client takes τ gradients and τ - 1 local steps in a round, so I is τ - 1 >= 1. Its last gradient
    is that of one more minibatch, while h_n here is the gradient over all of a client's samples;
    with full batches the two are the same. An empty round leaves x where it is, as in the program.

    Args:
        server_lr: η > 0.
        memory_folder: folder for a file with the h_n; None: in RAM.

    Raises:
        InvalidInputError: η not positive, or a folder that cannot be written.

    >>> method = FOCUS()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([1]), one, one[:, None], lr=0.1, steps=one,
    ...                         gradients=torch.tensor([[-3.0]]))
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model, method.instruct(state, torch.tensor([1])).correction
    (tensor([0.3000]), tensor([[3.]]))
    """

    server_lr: Annotated[float, Positive] = 1.0
    memory_folder: str | None = None

    traits = replace(
        LatestUpdates.traits,
        keeps_gradients=True,
        message_vectors=4,  # x, h_n, Δ_n and ∇F_n(y_n)
        simulation_only="it needs the gradients where local steps end",
    )

    def init(self, model: Tensor, population: Population) -> LatestUpdatesState:
        return LatestUpdatesState.initial(model, population, self.memory_folder)

    def instruct(self, state: LatestUpdatesState, clients: Tensor) -> Instructions:
        """Return how to train: with h_n subtracted from every gradient."""
        correction = state.memory.read(clients).neg_()
        return Instructions(state.model, correction=correction, end_gradients=True)

    def absorb(self, state: LatestUpdatesState, updates: ClientUpdates) -> LatestUpdatesState:
        """Replace these clients' gradients."""
        assert updates.gradients is not None, "the method asks for gradients"
        return state.store(updates.clients, updates.gradients)

    def step(self, state: LatestUpdatesState, lr: float) -> tuple[LatestUpdatesState, RoundInfo]:
        """Move the model along the sum of all latest gradients."""
        if len(state.clients) == 0:
            return state.finish_round(torch.zeros_like(state.total), 0.0)
        return state.finish_round(-self.server_lr * lr * (state.total + state.change), 1.0)
