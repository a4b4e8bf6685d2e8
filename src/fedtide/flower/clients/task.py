"""The data of one client as a task with a single client."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtide.errors import InvalidInputError
from fedtide.flower.arrays import refuse_running_statistics
from fedtide.population import Population
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, Evaluation, Task
from fedtide.problems.layout import Layout, Params
from fedtide.problems.losses import adapt_loss, check_per_sample
from fedtide.problems.models import FunctionalModel

_EVALUATED = 128  # samples per forward pass: the feature maps of all could exceed the memory

Loss = Callable[[Tensor, Tensor], Tensor]
"""Returns each sample's loss, shape (B,), from the outputs (B, C) and the targets (B, ...)."""


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample, shape (B,)."""
    return cross_entropy(logits, targets, reduction="none")


class ClientTask(Task):
    """F(x): the mean loss over the samples of a population of one client (id 0).

    Args:
        module: the network.
        features: shape (n, ...).
        targets: shape (n, ...).
        loss: of each sample.
        device: where the network is moved to. The samples stay where they are: each minibatch is
            copied to the device.

    Raises:
        InvalidInputError: a network that fails on the features, or that keeps running statistics;
            a loss that does not give one number for each sample; no samples, or a sample whose
            class has no output.
    """

    def __init__(
        self, module: nn.Module, features: Tensor, targets: Tensor, loss: Loss, device: str = "cpu"
    ) -> None:
        if not len(features):
            raise InvalidInputError(
                "data: no samples; let this client decline its rounds (available=)"
            )
        self._features, self._targets, self._device = features, targets, torch.device(device)
        refuse_running_statistics(module)
        self._model = FunctionalModel(module.to(device), self._select(slice(2))[:1])
        self._loss = adapt_loss(loss, self._device, next(module.parameters()).dtype)
        outputs, targets = self._model.example_output, self._select(slice(2))[1]
        if self._loss is cross_entropies and _are_classes(outputs, targets):
            _require_classes(self._targets, outputs.shape[1])
        check_per_sample("loss", self._loss, outputs, targets)
        self.population = Population(1, samples=np.array([len(features)]))
        self.layout = Layout.from_params(self._model.params)
        self.start = self.layout.flatten(self._model.params)
        self._seen: list[tuple[Tensor, Tensor]] = []

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return the mean loss over the minibatch, without the padding."""
        features, targets, mask, key = batch
        padded = None if mask.all() else mask.bool()
        losses = self._loss(self._model(params, (features,), key, padded), targets)
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    def _select(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the features and targets of these samples, on the device."""
        return self._features[rows].to(self._device), self._targets[rows].to(self._device)

    def loss_and_buffers(
        self, params: Params, buffers: Params, *batch: Tensor
    ) -> tuple[Tensor, Params]:
        """Return the loss of a local step, which also counts towards `mean_training_loss`."""
        loss = self.loss(params, *batch)
        self._seen.append((loss.detach(), batch[2].sum()))
        return loss, buffers

    def mean_training_loss(self) -> float:
        """Return the mean loss of the samples in all local steps so far, each at its step."""
        parts = zip(*self._seen, strict=True)
        losses, samples = (torch.stack(part).cpu().double() for part in parts)
        return float((losses * samples).sum() / samples.sum())

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return each step's sample positions, their weights, and the keys of its random draws."""
        assert plan.positions is not None
        mask = np.ones(plan.positions.shape) if plan.mask is None else plan.mask
        weights = torch.from_numpy(mask.astype(np.float64)).to(self.start)
        positions, keys = torch.from_numpy(plan.positions.copy()), torch.from_numpy(plan.keys)
        return positions, weights, keys.to(self._device)

    def batch(self, *inputs: Tensor) -> Batch:
        """Return (features, targets, weights, key) of one step."""
        positions, weights, keys = inputs
        return *self._select(positions), weights, keys

    @torch.no_grad()
    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return the mean loss over all samples, and the accuracy if the targets are classes."""
        params = self.layout.unflatten(x)
        losses, hits = [], []
        for rows in torch.split(torch.arange(len(self._features)), _EVALUATED):
            features, targets = self._select(rows)
            outputs = self._model.evaluate(params, (features,))
            losses.append(self._loss(outputs, targets))
            if _are_classes(outputs, targets):
                hits.append(outputs.argmax(1) == targets)
        metrics = {"loss": float(torch.cat(losses).mean())}
        if hits:
            metrics["accuracy"] = float(torch.cat(hits).cpu().double().mean())
        return Evaluation(metrics)


def _are_classes(outputs: object, targets: Tensor) -> bool:
    """Return whether the outputs are several logits for each sample, and the targets classes."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] == 1:
        return False
    return targets.dim() == 1 and targets.dtype == torch.int64


def _require_classes(targets: Tensor, count: int) -> None:
    """Raise InvalidInputError unless these are classes 0 to `count` - 1.

    Training would fail at the first minibatch with a wrong class, on a GPU without saying why.
    """
    for wrong in (int(targets.min()), int(targets.max())):
        if not 0 <= wrong < count:
            raise InvalidInputError(
                f"data: a sample is of class {wrong}, and the model has {count} outputs, for the "
                f"classes 0 to {count - 1}; number the classes alike at all sites, and leave out "
                "samples without a class"
            )
