"""The contract of a problem: what is learnt, and from which data of which client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.layout import Layout, Params
from fedtide.randomness import extend_hash, random_words

Batch = tuple[Tensor, ...]
"""What a loss needs beside the parameters: one client's minibatch, or a cohort's of one step."""
BatchInputs = tuple[Tensor, ...]
"""What batches are made of: which samples, which random words, which clients' functions."""


@dataclass(frozen=True)
class BatchPlan:
    """What the local steps of a cohort of S clients draw on; the step comes first.

    Args:
        clients: the clients' ids, shape (S,).
        step_index: the index in the whole run of each local step of each client, shape (I, S).
        positions: which of its own samples each client uses, shape (I, S, B), or (1, S, B) where
            every step uses the same; None where clients hold no samples.
        mask: False where `positions` is padding, same shape; None where nothing is padded.
        active: False where a client has done its steps already, shape (I, S); None where all
            clients take the same number.
        seed: of the random words.
    """

    clients: NDArray[np.int64]
    step_index: NDArray[np.int64]
    positions: NDArray[np.int64] | None = None
    mask: NDArray[np.bool_] | None = None
    active: NDArray[np.bool_] | None = None
    seed: int = 0

    @property
    def keys(self) -> NDArray[np.int64]:
        """A random word for every client and step, shape (I, S).

        Whatever a step draws (dropout, augmentation, noise) is a function of it.
        """
        words = random_words(self.seed, "step", self.clients)
        return extend_hash(words, self.step_index).view(np.int64)

    @property
    def steps(self) -> NDArray[np.int64]:
        """I_n, how many local steps each client takes, shape (S,)."""
        if self.active is None:
            return np.full(len(self.clients), len(self.step_index), dtype=np.int64)
        steps: NDArray[np.int64] = self.active.sum(axis=0, dtype=np.int64)
        return steps

    def select(self, which: NDArray[np.int64]) -> BatchPlan:
        """Return the plan of the clients at these positions of the cohort, shape (R,)."""

        def of(array: NDArray[Any] | None) -> Any:
            return None if array is None else array[:, which]

        return replace(
            self,
            clients=self.clients[which],
            step_index=of(self.step_index),
            positions=of(self.positions),
            mask=of(self.mask),
            active=of(self.active),
        )

    def single_client(self, position: int) -> BatchPlan:
        """Return the plan of the client at this position of the cohort, with its own steps."""
        own, steps = self.select(np.array([position])), self.steps[position]
        return replace(
            own,
            step_index=own.step_index[:steps],
            positions=None if own.positions is None else own.positions[:steps],
            mask=None if own.mask is None else own.mask[:steps],
            active=None,
        )


@dataclass(frozen=True)
class Evaluation:
    """How good a model is.

    Args:
        metrics: the problem's figures by name, such as `train_loss` or `test_accuracy` (0 to 1).
        clients: figures of each client by name, each of shape (N,); `loss` is F_n(x).
    """

    metrics: Mapping[str, float]
    clients: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


class Task(ABC):
    """A prepared problem: data on the device, ready to be trained on.

    Attributes:
        population: what is known about the clients; `samples` is None where they hold functions.
        layout: the names and shapes of the parameters.
        start: the initial model x_0, shape (d,), in the dtype and on the device of the run.
    """

    population: Population
    layout: Layout
    start: Tensor

    @abstractmethod
    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return one client's mean loss on one minibatch, a scalar.

        It must be pure (same arguments, same value; nothing changed in place) and made of torch
        operations that `torch.func.vmap` can stack over clients.
        """

    @abstractmethod
    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return what the batches of the local steps are made of, each part of shape (I, S, ...).

        A part that is the same for all steps may have the shape (1, S, ...).
        """

    def batch(self, *draws: Tensor) -> Batch:
        """Return the arguments of `loss` for a cohort from the draws of one step: shapes (S, ...).

        It must be pure and made of torch operations, so that it can be recorded and compiled
        together with the steps: what is gathered just before it is used is still in cache. Here
        the draws are the batch.
        """
        return draws

    def to_memory_format(self, tensor: Tensor) -> Tensor:
        """Return images or filters of one client in the order in memory that is quickest for it."""
        return tensor

    def batches(self, plan: BatchPlan) -> Iterator[Batch]:
        """Return for each local step the arguments of `loss` for a cohort."""
        batch: Batch = ()
        for draws in each_step(self.batch_inputs(plan), len(plan.step_index)):
            batch = self.batch(*draws) if draws else batch
            yield batch

    def gradient(self, x: Tensor, plan: BatchPlan) -> Tensor:
        """Return each client's gradient at x on the batch of the plan's first step, shape (S, d).

        Args:
            x: the model, shape (d,).
            plan: whose first step says which samples are used, such as all of a client's.
        """
        params, gradient = self.layout.unflatten(x), loss_gradient(self.loss)
        batch = next(self.batches(plan))
        rows = [
            self.layout.flatten(gradient(params, *(part[s] for part in batch)))
            for s in range(len(plan.clients))
        ]
        return torch.stack(rows)

    @abstractmethod
    def evaluate(self, x: Tensor, clients: bool = True) -> Evaluation:
        """Return how good the model x, shape (d,), is.

        Args:
            x: the model.
            clients: whether figures of each client are wanted; where there are millions they are
                not, and may be left out.
        """

    def pooled(self) -> Task:
        """Return the task of a single client that holds what all clients hold.

        Raises:
            InvalidInputError: the task cannot be pooled.
        """
        raise InvalidInputError(
            "algorithm: this problem cannot be pooled; choose a federated method"
        )


def loss_gradient(loss: Callable[..., Tensor]) -> Callable[..., Params]:
    """Return the gradient of a loss with respect to its first argument, named tensors.

    Equivalent to `torch.func.grad`, whose first use imports the compiler and takes a second: too
    long for a client of a deployment, which answers each message in a new process.
    """

    def gradient(params: Params, *batch: Tensor) -> Params:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        with torch.enable_grad():
            value = loss(leaves, *batch)
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(tensor) if slope is None else slope
            for (name, tensor), slope in zip(leaves.items(), slopes, strict=True)
        }

    return gradient


def each_step(draws: BatchInputs, steps: int) -> Iterator[BatchInputs]:
    """Yield what each of the steps draws; nothing, for a batch that is the same as before.

    Args:
        draws: parts of shape (I, S, ...) or (1, S, ...).
        steps: I.
    """
    fixed = all(len(part) == 1 for part in draws)
    for k in range(steps):
        yield () if fixed and k else tuple(part[min(k, len(part) - 1)] for part in draws)


class Problem(ABC):
    """What is learnt: a value (frozen dataclass), prepared once for a run."""

    @abstractmethod
    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> Task:
        """Return the task for this seed (which draws the partition and the initial model).

        Args:
            seed: of the run.
            device: where the data and the model are.
            dtype: of them. With bfloat16 a network computes its gradients in it, and everything
                else is float32.

        Raises:
            InvalidInputError: data that cannot be had or do not fit.
        """
