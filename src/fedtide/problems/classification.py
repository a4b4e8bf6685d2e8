"""Classification of labelled samples that are partitioned among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.augmentation import augment, changes_colours, check_augmentations
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, Evaluation, Problem, Task
from fedtide.problems.datasets.catalogue import Dataset, Normalise, load
from fedtide.problems.layout import Layout, Params, to_channels_last
from fedtide.problems.models import FunctionalModel, Model, resolve_model
from fedtide.problems.models.initialisation import build_seeded
from fedtide.problems.partitions import FlwrInstance, Partition, Shards, StoredShards
from fedtide.validation import require_choice


@dataclass(frozen=True)
class Classification(Problem):
    """F_n(x) is the mean cross-entropy of a model with parameters x over the samples of client n.

    Args:
        dataset: "digits" (bundled), "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn",
            "cinic10", or a folder with train.parquet and test.parquet; see
            `fedtide.problems.datasets.catalogue.load`.
        partition: which client holds which training samples: a partition, or a partitioner object
            of flwr-datasets.
        clients: N.
        model: a name in `MODELS`, an import path "package.module:Class", a mapping with `type` and
            its parameters, or a model object.
        augment: augmentations of the training images, in order: first those of colours ("sharpen",
            "jitter", "posterize", "equalize"), then "pad-crop" (4 zeros on every side, then a
            random window) and "flip" (left to right with probability 1/2); see `augmentation`.
        normalise: a mean and a standard deviation for pixels / 255 instead of the data set's own;
            (0.5, 0.5) as Yan et al., (0, 1) for pixels in [0, 1], "pixels" for each pixel's own.
        samples: use only the first `samples` training samples; None: all.

    Raises:
        InvalidInputError: an unknown name or a parameter out of range; when prepared, data that are
            not available, a partition that leaves a client without samples, or a model that does
            not fit the data.

    >>> from fedtide.problems import Dirichlet
    >>> problem = Classification("digits", Dirichlet(alpha=0.1), clients=100)
    >>> task = problem.prepare(seed=1, device=torch.device("cpu"), dtype=torch.float32)
    >>> task.layout.size, int(task.population.samples.sum())
    (650, 1437)
    """

    dataset: str | Path
    partition: Partition | Any
    clients: int
    model: str | Mapping[str, Any] | Model = "logistic"
    augment: Sequence[str] | None = None
    normalise: Normalise | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InvalidInputError(f"clients: {self.clients} clients; give at least 1")
        if not isinstance(self.partition, Partition) and not hasattr(
            self.partition, "load_partition"
        ):
            raise InvalidInputError(
                f"partition: {self.partition!r} is not a partition; give one such as Dirichlet(0.1)"
            )
        check_augmentations(self._augmentations)
        if isinstance(self.normalise, str):
            require_choice("normalise", self.normalise, Literal["pixels"])
        elif self.normalise is not None and (len(self.normalise) != 2 or self.normalise[1] <= 0):
            raise InvalidInputError(
                f"normalise: {self.normalise}; give a mean and a positive standard deviation"
            )
        resolve_model(self.model)

    @property
    def _augmentations(self) -> tuple[str, ...]:
        names = self.augment or ()
        return (names,) if isinstance(names, str) else tuple(names)

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> ClassificationTask:
        data = load(self.dataset, self.normalise, self.samples)
        if self._augmentations and data.train.features.ndim != 4:
            raise InvalidInputError("augment: the features are not images; leave it out")
        if changes_colours(self._augmentations) and data.train.features.dtype != np.uint8:
            raise InvalidInputError(
                "augment: the images are not pixels of 0..255; leave out colour augmentations"
            )
        shards = self._split(data, seed)
        shape = data.train.features.shape[1:]
        module = build_seeded(lambda: resolve_model(self.model).build(shape, data.classes), seed)
        module = module.to(device, torch.float32 if dtype == torch.bfloat16 else dtype)
        return ClassificationTask(data, shards, module, self._augmentations, dtype)

    def _split(self, data: Dataset, seed: int) -> Shards:
        labels = data.train.labels
        partition = self.partition
        if not isinstance(partition, Partition):
            partition = FlwrInstance(partition)
        if self.clients > len(labels) and not partition.shares_samples:
            raise InvalidInputError(
                f"clients: {self.clients} clients for {len(labels)} training samples; give at most "
                f"{len(labels)}, or a shared pool"
            )
        shards = partition.split(labels, self.clients, seed, data.train.columns)
        empty = np.flatnonzero(shards.sizes == 0)
        if len(empty):
            raise InvalidInputError(
                f"clients: {len(empty)} of {self.clients} clients get no samples (the first is "
                f"client {empty[0]}); give fewer clients, a more even partition or another seed"
            )
        return shards


class ClassificationTask(Task):
    """A classification problem with its data on the device.

    A batch is (x, y[, mask][, key]): `mask` if the plan has one, `key` if the model has dropout.

    Args:
        data: training and test samples.
        shards: which client holds which training samples.
        module: the network, with its initial parameters, on the device and in the dtype of the run.
        augmentations: names of augmentations, in order.
        training_dtype: the dtype of the network's computations in training (see `FunctionalModel`).

    Attributes:
        shards: which client holds which training samples.
        model: the network as a pure function.
    """

    def __init__(
        self,
        data: Dataset,
        shards: Shards,
        module: torch.nn.Module,
        augmentations: Sequence[str] = (),
        training_dtype: torch.dtype | None = None,
    ) -> None:
        like = next(module.parameters(), torch.empty(0))
        self._train, self._test = (
            data.features(rows, like.device, like.dtype) for rows in (data.train, data.test)
        )
        self._train_labels, self._test_labels = (
            torch.from_numpy(rows.labels).to(like.device) for rows in (data.train, data.test)
        )
        self._standard = data.standardisation(like.device, like.dtype)
        self._classes, self._augmentations = data.classes, augmentations
        self._chunk = _evaluation_chunk(module, like.device)
        self.shards = shards
        self.population = Population(
            clients=len(shards.sizes),
            samples=shards.sizes,
            class_shares=shards.class_shares(data.train.labels, data.classes),
        )
        self.model = FunctionalModel(module, self._train[:2], data.classes, training_dtype)
        self._needs_keys = bool(augmentations) or self.model.draws
        self.layout = Layout.from_params(self.model.params)
        self.start = self.layout.flatten(self.model.params)
        self._channels_last = self._accepts_channels_last()

    @torch.no_grad()
    def _accepts_channels_last(self) -> bool:
        """Return whether the network takes channels-last images; `x.view(B, -1)` does not."""
        params = {name: to_channels_last(tensor) for name, tensor in self.model.params.items()}
        try:
            self.model.evaluate(params, to_channels_last(self._train[:2]))
        except RuntimeError:
            return False
        return True

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return the mean cross-entropy of the minibatch's samples, excluding padding."""
        x, y, *rest = batch
        key = rest.pop() if self.model.draws else None
        logits = self.model(params, x, key)
        # torch's cross_entropy also checks for labels to ignore, which doubles its cost.
        losses = -log_softmax(logits, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        if not rest:
            return losses.mean()
        weights = rest[0].to(logits.dtype)
        return (losses * weights).sum() / weights.sum().clamp(min=1)

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return the indices of each step's samples (I, S, B)[, mask (I, S, B)][, keys (I, S)]."""
        assert plan.positions is not None
        device = self._train.device
        samples = self.shards.locate(plan.clients, plan.positions)
        parts = [torch.from_numpy(samples).to(device)]
        if plan.mask is not None:
            parts.append(torch.tensor(plan.mask, device=device))
        if self._needs_keys:
            parts.append(torch.tensor(plan.keys, device=device))
        return tuple(parts)

    def batch(self, *inputs: Tensor) -> Batch:
        """Return (x, y[, mask][, key]) of the cohort; x is (S, B, *features)."""
        samples, *rest = inputs
        x = self._train.index_select(0, samples.flatten())
        x = x.view(*samples.shape, *self._train.shape[1:])
        if self._augmentations:
            x = augment(x[None], self._augmentations, rest[-1][None], self._standard)[0]
        if self._needs_keys and not self.model.draws:
            rest.pop()
        return (x, self._train_labels[samples], *rest)

    def to_memory_format(self, tensor: Tensor) -> Tensor:
        """Return images and filters in the channels-last format, if the network accepts it."""
        return to_channels_last(tensor) if self._channels_last else tensor

    def pooled(self) -> ClassificationTask:
        """Return the task of a single client that holds all training samples."""
        pooled = copy(self)
        pooled.shards = StoredShards.from_lists([np.arange(len(self._train_labels))])
        pooled.population = Population(1, samples=pooled.shards.sizes)
        return pooled

    def evaluate(self, x: Tensor, clients: bool = True) -> Evaluation:
        """Return losses and accuracies over the training and the test set, without augmentation.

        `train_loss`, `train_accuracy`, `test_loss` and `test_accuracy` are means over samples;
        `loss` is the objective (1/N) Σ_n F_n(x), or the mean over samples without `clients`. For
        each client, `loss` is F_n(x), `accuracy` is measured on its own samples, and
        `class_weighted_test_accuracy` is the mean of the classes' accuracies on the whole test set,
        weighted by the client's class shares (over the classes in the test set): not its accuracy
        on test samples of its own.
        """
        losses, correct = self._evaluate_samples(x, self._train, self._train_labels)
        test_losses, test_correct = self._evaluate_samples(x, self._test, self._test_labels)
        figures = {}
        if clients:
            figures = {
                "loss": self.shards.client_means(losses),
                "accuracy": self.shards.client_means(correct),
                "class_weighted_test_accuracy": self._client_test_accuracy(test_correct),
            }
        metrics = {
            "loss": figures.get("loss", losses).mean(),
            "train_loss": losses.mean(),
            "train_accuracy": correct.mean(),
            "test_loss": test_losses.mean(),
            "test_accuracy": test_correct.mean(),
        }
        return Evaluation({name: float(value) for name, value in metrics.items()}, figures)

    @torch.no_grad()
    def _evaluate_samples(
        self, x: Tensor, features: Tensor, labels: Tensor
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the loss of each sample, and 1 if it is classified correctly, else 0."""
        params = {name: self.to_memory_format(t) for name, t in self.layout.unflatten(x).items()}
        losses, correct = [], []
        for first in range(0, len(labels), self._chunk):
            part = slice(first, first + self._chunk)
            logits = self.model.evaluate(params, self.to_memory_format(features[part]))
            losses.append(cross_entropy(logits, labels[part], reduction="none"))
            correct.append(logits.argmax(1) == labels[part])
        return torch.cat(losses).double().cpu().numpy(), torch.cat(correct).double().cpu().numpy()

    def _client_test_accuracy(self, correct: NDArray[np.float64]) -> NDArray[np.float64]:
        labels = self._test_labels.cpu().numpy()
        count = np.bincount(labels, minlength=self._classes)
        present = count > 0
        accuracy = np.bincount(labels, weights=correct, minlength=self._classes)[present]
        shares = self.population.class_shares
        assert shares is not None
        with np.errstate(invalid="ignore"):  # NaN for a client that holds only untested classes
            weights = shares[:, present] / shares[:, present].sum(1, keepdims=True)
        mean: NDArray[np.float64] = weights @ (accuracy / count[present])
        return mean


def _evaluation_chunk(module: torch.nn.Module, device: torch.device) -> int:
    """Return how many samples to evaluate in one forward pass."""
    if device.type != "cpu":
        return 4000
    # feature maps that stay in the CPU's cache: measured twice as fast
    kinds = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    return 100 if any(isinstance(layer, kinds) for layer in module.modules()) else 1000
