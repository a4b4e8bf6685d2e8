"""The data of one client as a task with a single client."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, Evaluation, Task
from fedtide.problems.layout import Layout, Params
from fedtide.problems.loss_checks import (
    adapt_loss,
    depends_on_others,
    refuse_other_parameters,
    require_per_sample,
    trial_rows,
)
from fedtide.problems.models import FunctionalModel
from fedtide.problems.models.functional import mixes_samples

Loss = Callable[[Tensor, Tensor], Tensor]
"""The loss of each sample, shape (B,), of the model's outputs (B, C) and the targets (B, ...)."""


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

    Raises:
        InvalidInputError: a network that cannot be trained as a pure function
            (see `FunctionalModel`), or that keeps running statistics; a loss that does not give
            one number for each sample, pairs all outputs with all targets, or depends on
            parameters outside the network; no samples.
    """

    def __init__(self, module: nn.Module, features: Tensor, targets: Tensor, loss: Loss) -> None:
        if not len(features):
            raise InvalidInputError(
                "data: no samples; let this client decline its rounds (available=)"
            )
        self._model = FunctionalModel(module, (features[:2],))
        if self._model.buffers:
            layer = next(iter(self._model.buffers)).rpartition(".")[0]
            raise InvalidInputError(
                f"model: layer {layer!r} keeps running statistics, which Flower clients do not "
                "send; use GroupNorm, or track_running_stats=False"
            )
        loss = adapt_loss(loss, features.device, next(module.parameters()).dtype)
        self._features, self._targets, self._loss = features, targets, loss
        self._check_loss()
        self.population = Population(1, samples=np.array([len(features)]))
        self.layout = Layout.from_params(self._model.params)
        self.start = self.layout.flatten(self._model.params)
        self._seen: list[tuple[Tensor, Tensor]] = []
        self.mixes_samples = mixes_samples(self._padded_loss, self._model.params, len(features))

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return the mean loss over the minibatch, without the padding."""
        features, targets, mask, key = batch
        padded = None if mask.all() else mask.bool()
        losses = self._loss(self._model(params, (features,), key, padded), targets)
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    @torch.no_grad()
    def _check_loss(self) -> None:
        outputs, targets = self._model.example_output, self._targets[:2]
        require_per_sample("loss", self._loss, outputs, targets)
        with torch.enable_grad():
            refuse_other_parameters(self._loss(outputs, targets), ())
        if outputs.numel() == targets.numel():  # they could be paired wrongly
            rows = trial_rows(self._targets)
            outputs = self._model.evaluate(self._model.params, (self._features[rows],))
            depends_on_others("loss", self._loss, outputs, self._targets[rows])

    @torch.no_grad()
    def _padded_loss(self, params: Params, samples: Tensor) -> Tensor:
        """Return the loss of samples, the last of which is padding."""
        real = (torch.arange(len(samples)) < len(samples) - 1).to(self.start)
        key = torch.zeros((), dtype=torch.int64, device=real.device)
        batch = (self._features[samples], self._targets[samples], real, key)
        return self.loss(params, *batch)

    def loss_and_buffers(
        self, params: Params, buffers: Params, *batch: Tensor
    ) -> tuple[Tensor, Params]:
        """Return the loss of a local step, which also counts towards `mean_training_loss`."""
        loss = self.loss(params, *batch)
        self._seen.append((loss.detach(), batch[2].sum()))
        return loss, buffers

    def mean_training_loss(self) -> float:
        """Return the mean loss of the samples in all local steps so far, each at its step."""
        losses, samples = (torch.stack(part).double() for part in zip(*self._seen, strict=True))
        return float((losses * samples).sum() / samples.sum())

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return each step's sample positions, their weights, and the keys of its random draws."""
        assert plan.positions is not None
        mask = np.ones(plan.positions.shape) if plan.mask is None else plan.mask
        weights = torch.from_numpy(mask.astype(np.float64)).to(self.start)
        positions, keys = torch.from_numpy(plan.positions.copy()), torch.from_numpy(plan.keys)
        return positions.to(weights.device), weights, keys.to(weights.device)

    def batch(self, *inputs: Tensor) -> Batch:
        """Return (features, targets, weights, key) of one step."""
        positions, weights, keys = inputs
        return self._features[positions], self._targets[positions], weights, keys

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return the mean loss over all samples, and the accuracy if the targets are classes."""
        with torch.no_grad():
            outputs = self._model.evaluate(self.layout.unflatten(x), (self._features,))
            metrics = {"loss": float(self._loss(outputs, self._targets).mean())}
            if self._targets.dtype == torch.int64:
                metrics["accuracy"] = float((outputs.argmax(1) == self._targets).double().mean())
        return Evaluation(metrics)
