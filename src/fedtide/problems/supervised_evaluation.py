"""Losses and metrics of a model on the samples of a supervised problem."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedtide.problems.base import Evaluation, Task
from fedtide.problems.datasets.table_columns import Ints
from fedtide.problems.losses import LossFunction
from fedtide.problems.sample_metrics import are_uneven, class_recalls, weigh_classes
from fedtide.problems.supervised_data import DeviceSamples, SupervisedData

Floats = NDArray[np.float64]


class EvaluatedTask(Task):
    """A task that measures the loss and the metrics of a model on training and test samples.

    `train_loss`, `test_loss` and `train_M`, `test_M` for every metric M are means over samples;
    `loss` is the objective (1/N) Σ_n F_n(x), or the mean over samples if clients are not evaluated.
    `test_M` of a `SetMetric` is computed from all test outputs at once.
    If the test set is unbalanced, `test_balanced_accuracy` is the mean of the classes' accuracies,
    unless one of the user's metrics has that name.

    For each client, `loss` is F_n(x), and M is measured on its own training samples. If clients
    have test parts, `test_loss` and `test_M` are measured on them (NaN without one). If they do
    not, and all have the same model, `class_weighted_test_accuracy` is the mean of the classes'
    accuracies on the whole test set, weighted by the client's class shares.

    Attributes:
        data: the samples, and who holds which.
        functions: the loss and the metrics of each sample, by name.
        set_functions: the metrics of the whole test set, by name.
        lower_is_better: the names of those for which lower values are better.
        chunk: how many samples a forward pass takes.
    """

    data: SupervisedData
    functions: Mapping[str, LossFunction]
    set_functions: Mapping[str, Callable[..., Any]]
    lower_is_better: frozenset[str]
    chunk: int

    @abstractmethod
    def forward(self, x: Tensor, buffers: Tensor | None) -> Callable[[DeviceSamples], Any]:
        """Return a function that computes the outputs of model x with these running statistics."""

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return losses and metrics over the training and the test set, without augmentation."""
        data, shards = self.data, self.data.shards
        own = buffers if buffers is not None and buffers.dim() == 2 else None
        shared = buffers if own is None else own.mean(dim=0)
        train = self._measure(x, data.train, shared)
        outputs: list[Any] = []
        test = {} if data.test is None else self._measure(x, data.test, shared, outputs)
        recalls = self._recalls(data.test, test)
        figures: dict[str, Floats] = {}
        if clients and own is not None:
            figures = self.evaluate_clients(x, np.arange(len(own)), own)
        elif clients:
            means = {name: shards.client_means(values) for name, values in train.items()}
            figures = means | self._client_test_figures(test, recalls)
        metrics = {"loss": figures.get("loss", train["loss"]).mean()}
        metrics |= {f"train_{name}": values.mean() for name, values in train.items()}
        metrics |= {f"test_{name}": values.mean() for name, values in test.items()}
        if data.test is not None:
            metrics |= self._measure_set(data.test, outputs)
        if recalls is not None and data.test and are_uneven(data.test.target.cpu().numpy()):
            metrics.setdefault("test_balanced_accuracy", np.nanmean(recalls))
        return Evaluation(
            {name: float(value) for name, value in metrics.items()}, figures, self.lower_is_better
        )

    def evaluate_clients(
        self, x: Tensor, clients: Ints, buffers: Tensor | None = None
    ) -> dict[str, Floats]:
        """Return metrics like the per-client ones of `evaluate`, each of shape (S,)."""
        rows = []
        for place, client in enumerate(clients):
            model = x if x.dim() == 1 else x[place]
            own = buffers if buffers is None or buffers.dim() == 1 else buffers[place]
            held = self.data.shards.held_by(int(client))
            figures = self._mean_over(model, self.data.train, held, own)
            rows.append(figures | self._test_figures(model, int(client), own))
        return _by_name(rows)

    def _test_figures(self, x: Tensor, client: int, buffers: Tensor | None) -> dict[str, float]:
        """Return the metrics of a client's model on its test part, if it has one.

        The whole test set would have to be evaluated once for every client.
        """
        data = self.data
        if data.test is None or data.test_owners is None:
            return {}
        own = np.flatnonzero(data.test_owners == client)
        test = self._mean_over(x, data.test, own, buffers)
        return {f"test_{name}": value for name, value in test.items()}

    def _client_test_figures(
        self, test: Mapping[str, Floats], recalls: Floats | None
    ) -> dict[str, Floats]:
        """Return the test metrics of each client for one model, given those of each sample.

        Args:
            test: the metrics of each test sample, by name.
            recalls: the accuracy of each class, (C,); None: samples have no classes.
        """
        figures: dict[str, Floats] = {}
        owners, shares = self.data.test_owners, self.population.class_shares
        if owners is not None:
            held, clients = owners >= 0, len(self.data.shards.sizes)
            count = np.bincount(owners[held], minlength=clients)
            for name, values in test.items():
                sums = np.bincount(owners[held], values[held], clients)
                with np.errstate(invalid="ignore"):  # NaN for a client without test samples
                    figures[f"test_{name}"] = sums / count
        elif recalls is not None and shares is not None:
            figures["class_weighted_test_accuracy"] = weigh_classes(recalls, shares)
        return figures

    def _recalls(self, samples: DeviceSamples | None, test: Mapping[str, Floats]) -> Floats | None:
        """Return the accuracy of each class on the test samples, (C,).

        None unless every sample has one class, and the accuracy is measured.
        """
        if samples is None or "accuracy" not in test or samples.target.dim() != 1:
            return None
        if not self.data.classes:
            return None
        return class_recalls(test["accuracy"], samples.target.cpu().numpy(), self.data.classes)

    def _mean_over(
        self, x: Tensor, samples: DeviceSamples, rows: Ints, buffers: Tensor | None
    ) -> dict[str, float]:
        """Return the mean of the loss and of each metric over these samples; NaN without any."""
        if not len(rows):
            return dict.fromkeys(self.functions, float("nan"))
        own = samples.select(torch.from_numpy(rows).to(samples.target.device))
        return {name: float(v.mean()) for name, v in self._measure(x, own, buffers).items()}

    @torch.no_grad()
    def _measure(
        self,
        x: Tensor,
        samples: DeviceSamples,
        buffers: Tensor | None,
        kept: list[Any] | None = None,
    ) -> dict[str, Floats]:
        """Return the loss and each metric of every sample, (n,).

        The outputs of each chunk are added to `kept` if there are metrics of the whole set.
        """
        forward = self.forward(x, buffers)
        parts: dict[str, list[Tensor]] = {name: [] for name in self.functions}
        for first in range(0, len(samples), self.chunk):
            chunk = samples.select(slice(first, first + self.chunk))
            outputs = forward(chunk)
            for name, function in self.functions.items():
                parts[name].append(function(outputs, chunk.target, *chunk.masks))
            if kept is not None and self.set_functions:
                kept.append(tree_map(lambda output: output.cpu(), outputs))
        return {name: torch.cat(p).double().cpu().numpy() for name, p in parts.items()}

    def _measure_set(self, samples: DeviceSamples, chunks: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of the whole test set, given the outputs of its chunks."""
        if not self.set_functions:
            return {}
        outputs = tree_map(lambda *parts: torch.cat(parts), *chunks)
        target, *masks = (part.cpu() for part in (samples.target, *samples.masks))
        if isinstance(outputs, Tensor) and outputs.shape == (*target.shape, 1):
            outputs = outputs.squeeze(-1)
        return {
            f"test_{name}": float(function(outputs, target, *masks))
            for name, function in self.set_functions.items()
        }


def evaluation_chunk(module: nn.Module, device: torch.device) -> int:
    """Return how many samples to evaluate in one forward pass."""
    if device.type != "cpu":
        return 4000
    # feature maps that stay in the CPU's cache: measured twice as fast
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return 100 if any(isinstance(layer, kinds) for layer in module.modules()) else 1000


def _by_name(rows: Iterable[Mapping[str, float]]) -> dict[str, Floats]:
    """Return arrays of shape (S,) by name from the metrics of S clients, one mapping each."""
    rows = list(rows)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
