"""The contract of a problem: what is learnt, and from which data of which client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.layout import Layout, Params
from fedtide.randomness import extend_hash, random_words

Batch = tuple[Tensor, ...]
"""The arguments of a loss besides the parameters: a client's minibatch, or a cohort's."""
BatchInputs = tuple[Tensor, ...]
"""The tensors that batches are computed from: sample indices, random words, clients' functions."""
BufferMode = Literal["average", "local"]
"""Whether buffers are averaged over the clients after each round, or every client keeps its own."""
Gradient = Callable[..., tuple[Params, Params]]
"""A gradient as named tensors, with the new buffers."""


_NARROWEST = 32  # samples; a step with fewer takes about as long


def batch_widths(samples: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the padded widths of minibatches of these sizes, none of which exceeds `most`.

    >>> batch_widths(np.array([3, 40, 64, 65]), most=100)
    array([ 32,  64,  64, 100])
    """
    powers = 2 ** np.ceil(np.log2(np.maximum(samples, _NARROWEST))).astype(np.int64)
    return np.minimum(powers, most)


@dataclass(frozen=True)
class BatchPlan:
    """The minibatches of the local steps of S clients; the first dimension is the step.

    Args:
        clients: the clients' ids, shape (S,).
        step_index: the index in the whole run of each local step of each client, shape (I, S).
        positions: which of its own samples each client uses, shape (I, S, B), or (1, S, B) where
            every step uses the same; None where clients hold no samples.
        mask: False where `positions` is padding, same shape; None where nothing is padded.
        active: False where a client has finished its steps, shape (I, S); None where all
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

        All random draws of a step (dropout, augmentation, noise) are functions of it.
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

    @property
    def widths(self) -> NDArray[np.int64] | None:
        """The width of each client's minibatches, shape (S,); None if all have the width B.

        It is the size of its largest minibatch, rounded up to a power of two of at least
        `_NARROWEST`, because trainers capture the steps once for every width; at most B.
        """
        if self.mask is None or self.mask.shape[2] <= _NARROWEST:
            return None
        most = self.mask.sum(axis=2).max(axis=0, initial=1)
        return batch_widths(most, self.mask.shape[2])

    def select(self, which: slice | NDArray[np.int64]) -> BatchPlan:
        """Return the plan of the clients at these positions of the cohort, shape (R,).

        Its minibatches are as wide as the largest of these clients needs.
        """
        parts = {name: part[:, which] for name, part in self._parts().items()}
        own = replace(self, clients=self.clients[which], **parts)
        widths = own.widths
        if widths is None or own.positions is None or own.mask is None:
            return own
        used = slice(int(widths.max(initial=1)))
        return replace(own, positions=own.positions[..., used], mask=own.mask[..., used])

    def single_client(self, position: int) -> BatchPlan:
        """Return the plan of the client at this position of the cohort, with its own steps."""
        own = self.select(np.array([position]))
        if own.active is None:
            return own
        parts = {name: part[: own.active.sum()] for name, part in own._parts().items()}
        return replace(own, **(parts | {"active": None}))

    def _parts(self) -> dict[str, Any]:
        """Return the arrays whose first dimension is the step."""
        arrays = {n: getattr(self, n) for n in ("step_index", "positions", "mask", "active")}
        return {n: array for n, array in arrays.items() if array is not None}


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model.

    Args:
        metrics: by name, such as `loss` or `test_accuracy` (0 to 1).
        clients: per-client metrics by name, each of shape (N,); `loss` is F_n(x).
        lower_is_better: the base names of metrics that are better if smaller, such as `mae` for
            `train_mae` and `test_mae`, and `loss`; empty: the names of the metrics decide (see
            `fedtide.metric_direction`).
    """

    metrics: Mapping[str, float]
    clients: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    lower_is_better: frozenset[str] = frozenset()


class Task(ABC):
    """A prepared problem, with its data on the device.

    Attributes:
        population: what is known about the clients; `samples` is None where they hold functions.
        layout: the names and shapes of the parameters.
        start: the initial model x_0, shape (d,), in the dtype and on the device of the run.
        buffer_layout: the names and shapes of the buffers: the running statistics of a network,
            which training changes without gradients. None: there are none.
        start_buffers: their initial values, shape (d_b,); None without buffers.
        buffer_mode: "average" or "local", see `BufferMode`.
        fewest_samples: how many samples a minibatch needs, such as 2 for batch normalisation.
        is_recurrent: whether the network has recurrent layers, whose loops over the positions of a
            sequence are long when unrolled.
        class_names: the classes of the network's outputs, in their order, if they were given as
            text; else None.
        held_out: the rows of the given samples that were set aside for the test, (n_test,); None:
            none were.
        evaluated_samples: how many samples an evaluation goes through; 0 if that costs nothing.
        batch_data: the tensors that `batch` reads besides its arguments; see `with_batch_data`.
        seed_family: equal for tasks of one problem, device and dtype that were prepared for
            different seeds: their local steps differ in `batch_data` only. None: not known.
        objective_weights: a_n of the objective Σ a_n F_n, shape (N,); None: 1 / N.
    """

    population: Population
    layout: Layout
    start: Tensor
    buffer_layout: Layout | None = None
    start_buffers: Tensor | None = None
    buffer_mode: BufferMode = "average"
    fewest_samples: int = 1
    is_recurrent: bool = False
    class_names: tuple[str, ...] | None = None
    held_out: NDArray[np.int64] | None = None
    evaluated_samples: int = 0
    batch_data: tuple[Tensor, ...] = ()
    seed_family: object = None
    objective_weights: NDArray[np.float64] | None = None

    @abstractmethod
    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return one client's mean loss on one minibatch, a scalar.

        It must be pure (same arguments, same value; nothing changed in place) and made of torch
        operations that `torch.func.vmap` can stack over clients.
        """

    def loss_and_buffers(
        self, params: Params, buffers: Params, *batch: Tensor
    ) -> tuple[Tensor, Params]:
        """Return `loss` and the buffers after the step; a task with buffers must implement it.

        Args:
            params: the parameters.
            buffers: the buffers before the step.
            *batch: the minibatch.
        """
        return self.loss(params, *batch), buffers

    @abstractmethod
    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return the tensors from which the batches of all local steps are computed, (I, S, ...).

        A tensor that is the same for all steps may have the shape (1, S, ...).
        """

    def batch(self, *inputs: Tensor) -> Batch:
        """Return the arguments of `loss` for a cohort from the inputs of one step, shapes (S, ...).

        It must be pure and consist of torch operations, so that it can be captured and compiled
        together with the steps: samples gathered just before their use are still in cache. By
        default, the inputs are the batch.
        """
        return inputs

    def with_batch_data(self, data: tuple[Tensor, ...]) -> Task:
        """Return the task with other tensors as `batch_data`, whose `batch` reads them.

        Captured steps can thus take the data as arguments and also serve tasks with other data. A
        task with `batch_data` must implement it.
        """
        return self

    def to_memory_format(self, tensor: Tensor) -> Tensor:
        """Return one client's images or filters in the memory format that is fastest for them."""
        return tensor

    def batches(self, plan: BatchPlan) -> Iterator[Batch]:
        """Yield the arguments of `loss` for a cohort, step by step."""
        batch: Batch = ()
        for inputs in each_step(self.batch_inputs(plan), len(plan.step_index)):
            batch = self.batch(*inputs) if inputs else batch
            yield batch

    def unflatten_buffers(self, buffers: Tensor | None) -> Params:
        """Return buffers of shape (..., d_b) by name; {} where the task has none."""
        if buffers is None or self.buffer_layout is None:
            return {}
        return self.buffer_layout.unflatten(buffers)

    def gradient(self, x: Tensor, plan: BatchPlan) -> Tensor:
        """Return each client's gradient at x on the batch of the plan's first step, shape (S, d).

        Args:
            x: the model, shape (d,).
            plan: its first step says which samples are used, such as all of a client's.
        """
        params, gradient = self.layout.unflatten(x), loss_gradient(self.loss_and_buffers)
        buffers = self.unflatten_buffers(self.start_buffers)
        rows = []
        for s in range(len(plan.clients)):
            batch = next(self.batches(plan.single_client(s)))
            g, _ = gradient(params, buffers, *(part[0] for part in batch))
            rows.append(self.layout.flatten(g))
        return torch.stack(rows)

    @abstractmethod
    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return the metrics of the model x.

        Args:
            x: the model, shape (d,).
            clients: whether per-client metrics are needed; without them, millions of clients are
                possible.
            buffers: the buffers, shape (d_b,), or (N, d_b) if every client has its own: per-client
                metrics are then measured with these, and all others with their mean. None: the
                initial ones.
        """

    def evaluate_clients(
        self, x: Tensor, clients: NDArray[np.int64], buffers: Tensor | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Return metrics of models that differ between clients, each on the client's own samples.

        Args:
            x: the model of each client, shape (S, d), or one for all, (d,).
            clients: their ids, shape (S,).
            buffers: those of each client, shape (S, d_b), or of all, (d_b,); None: the initial
                ones.

        Returns:
            Metrics by name, each of shape (S,).

        Raises:
            InvalidInputError: the clients hold no samples.
        """
        raise InvalidInputError(
            "evaluation.personalise: the clients of this problem hold no samples; leave it out"
        )

    @property
    def unweighted(self) -> Task:
        """The task in which client n minimises F_n itself, whatever its weight in the objective."""
        return self

    def module(self, x: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """Return the network with the parameters x, shape (d,), in evaluation mode.

        Args:
            x: the model, shape (d,).
            buffers: as in `evaluate`; if every client has its own, the network gets their mean.

        Raises:
            InvalidInputError: the problem has no network.
        """
        raise InvalidInputError("problem: it has no network; use the model vector itself")

    def pooled(self) -> Task:
        """Return the task of a single client that holds the data of all clients.

        Raises:
            InvalidInputError: the task cannot be pooled.
        """
        raise InvalidInputError(
            "algorithm: this problem cannot be pooled; choose a federated method"
        )


def loss_gradient(loss: Callable[..., tuple[Tensor, Params]]) -> Gradient:
    """Return a function that computes the gradient of a loss in its first argument, named tensors.

    Equivalent to `torch.func.grad`, whose first use imports the compiler and takes a second: too
    long for a client of a deployment, which answers each message in a new process.

    Args:
        loss: such as `Task.loss_and_buffers`: returns a scalar and the new buffers.

    The function returns the gradient and the new buffers, and raises InvalidInputError if the loss
    is not a single number.
    """

    def gradient(params: Params, *args: Any) -> tuple[Params, Params]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        with torch.enable_grad():
            value, buffers = loss(leaves, *args)
        require_single_number(value)
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        named = {
            name: torch.zeros_like(tensor) if slope is None else slope
            for (name, tensor), slope in zip(leaves.items(), slopes, strict=True)
        }
        return named, buffers

    return gradient


def require_single_number(loss: Tensor) -> None:
    """Raise InvalidInputError unless a loss is a tensor without dimensions."""
    if loss.dim():
        raise InvalidInputError(
            f"problem: the loss of a client's minibatch has shape {tuple(loss.shape)}; return a "
            "single number, such as the mean"
        )


def each_step(inputs: BatchInputs, steps: int) -> Iterator[BatchInputs]:
    """Yield the inputs of each step; () if it has the same batch as the step before.

    Args:
        inputs: tensors of shape (I, S, ...) or (1, S, ...).
        steps: I.
    """
    fixed = all(len(part) == 1 for part in inputs)
    for k in range(steps):
        yield () if fixed and k else tuple(part[min(k, len(part) - 1)] for part in inputs)


class Problem(ABC):
    """What is learnt: a frozen dataclass, prepared once per run."""

    @abstractmethod
    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> Task:
        """Return the task for this seed (which draws the partition and the initial model).

        Args:
            seed: of the run.
            device: of the data and the model.
            dtype: of the data and the model. With bfloat16 a network computes its gradients in
                it, and everything else is float32.

        Raises:
            InvalidInputError: data are missing or do not fit.
        """

    def fingerprint(self) -> str | None:
        """Return a hash of the data's content, by which a resumed run notices a change.

        None if the fields of the problem determine the data.
        """
        return None
