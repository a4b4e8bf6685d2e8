"""The contract of an algorithm: a pure state machine over the updates that arrived.

An algorithm never asks who runs it. In every round its driver (the simulator, a deployment, a test)

1. asks `instruct` how the cohort shall train,
2. hands the reports that come back to `absorb`, in as many chunks as it likes,
3. calls `step` once, also when nobody reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedtide.population import Population


@dataclass(frozen=True)
class State:
    """Everything of an algorithm that must survive a crash: tensors, numbers and further states.

    A state belongs to whoever holds it: `absorb` and `step` may reuse the memory of the state that
    they are given (rows kept for clients, never the model), so keep a deep copy to go back.

    Args:
        model: x_t, shape (d,); never changed in place.
        round: t, the number of rounds that have ended.
    """

    model: Tensor
    round: int


@dataclass(frozen=True)
class Instructions:
    """How a cohort of S clients shall train.

    Args:
        model: x, where the local steps start, shape (d,).
        correction: what is added to every local gradient of each client, shape (S, d); None: nothing.
        mu: μ, the proximal weight: μ (y - x) is added to every local gradient.
        gradients_at_start: take every gradient at x itself, so that Δ_n = -γ Σ_k g_k(x).
        full_batch: use all of a client's samples in every step, whatever the batch size is.
        gradients: report ∇F_n(x) as well, over all of a client's samples and without correction.
    """

    model: Tensor
    correction: Tensor | None = None
    mu: float = 0.0
    gradients_at_start: bool = False
    full_batch: bool = False
    gradients: bool = False


@dataclass(frozen=True)
class ClientUpdates:
    """What S clients sent back; each at most once in a round.

    Args:
        clients: their ids, shape (S,), int64.
        weights: the participation weights q_t^n, shape (S,).
        updates: Δ_n = y_n - x, shape (S, d).
        lr: γ, the local learning rate that they used.
        steps: I_n, how many local steps each took, shape (S,).
        samples: how many samples each holds, shape (S,); None where clients hold functions.
        gradients: ∇F_n(x) at the model that was sent, shape (S, d); None unless asked for.
    """

    clients: Tensor
    weights: Tensor
    updates: Tensor
    lr: float
    steps: Tensor
    samples: Tensor | None = None
    gradients: Tensor | None = None

    def of(self, which: Tensor) -> ClientUpdates:
        """Return the reports of some of the clients, given by their places or a mask."""
        return replace(
            self,
            clients=self.clients[which],
            weights=self.weights[which],
            updates=self.updates[which],
            steps=self.steps[which],
            samples=None if self.samples is None else self.samples[which],
            gradients=None if self.gradients is None else self.gradients[which],
        )


@dataclass(frozen=True)
class RoundInfo:
    """What happened in one round.

    Args:
        clients: who reported, in the order of arrival, shape (S,).
        weights: the factor with which each of their updates entered the step, shape (S,).
        direction: what the round added to the model, shape (d,).
    """

    clients: Tensor
    weights: Tensor
    direction: Tensor


class Algorithm(ABC):
    """How updates become the next model: a value (frozen dataclass) of its hyper-parameters."""

    @property
    def centralised(self) -> bool:
        """Whether the data of all clients are pooled: the reference without federation.

        The pooled data belong to client number 0, who trains as many steps as the cohort would
        together.
        """
        return False

    @property
    def requires_plain_sgd(self) -> bool:
        """Whether the method takes the mean raw gradient out of an update, as -Δ / (γ I) - correction.

        That holds for plain local SGD only: no projection, no momentum.
        """
        return False

    @abstractmethod
    def init(self, model: Tensor, population: Population) -> Any:
        """Return the state before round 0, with `model` of shape (d,) as x_0.

        Raises:
            InvalidInputError: a hyper-parameter that does not fit the population.
        """

    def cohort(self, state: Any, clients: Tensor) -> Tensor:
        """Return who shall train in this round, shape (R,), when these clients, (S,), report.

        All methods but those that wait train whoever reports.
        """
        return clients

    def instruct(self, state: Any, clients: Tensor) -> Instructions:
        """Return how these clients, shape (S,), shall train in this round."""
        return Instructions(state.model)

    @abstractmethod
    def absorb(self, state: Any, reports: ClientUpdates) -> Any:
        """Fold in a chunk of this round's reports; the order of chunks matters only to rounding."""

    @abstractmethod
    def step(self, state: Any, lr: float) -> tuple[Any, RoundInfo]:
        """End the round, an empty one too: move the model and say what happened.

        Args:
            state: with all of the round's reports folded in.
            lr: γ_t, the local learning rate of this round, for methods that keep gradients.
        """

    def with_model(self, state: Any, model: Tensor) -> Any:
        """Return the state with another model, for whoever steers this algorithm from outside."""
        return replace(state, model=model)

    def output(self, state: Any) -> Tensor:
        """Return the model that the algorithm recommends so far, shape (d,)."""
        model: Tensor = state.model
        return model


def no_updates(model: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (clients, weights) of a round in which nobody has reported yet."""
    return (
        torch.zeros(0, dtype=torch.int64, device=model.device),
        torch.zeros(0, dtype=model.dtype, device=model.device),
    )
