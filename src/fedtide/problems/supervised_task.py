"""A supervised problem with its data on the device: batches and losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.augmentation import augment
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, BufferMode
from fedtide.problems.datasets.catalogue import PixelStandardisation
from fedtide.problems.layout import Layout, Params, to_channels_last
from fedtide.problems.losses import (
    TARGET_KINDS,
    LossFunction,
    adapt_loss,
    check_outputs,
    check_per_sample,
    warn_of_probabilities,
)
from fedtide.problems.models import FunctionalModel
from fedtide.problems.partitions import StoredShards
from fedtide.problems.sample_metrics import Metric, SetMetric, count_all
from fedtide.problems.supervised_data import DeviceSamples, Samples, SupervisedData
from fedtide.problems.supervised_evaluation import (
    EvaluatedTask,
    Floats,
    evaluation_chunk,
)

_TOKENIZERS_MASK = "attention_mask"
"""The mask's name in Hugging Face networks, whose tokenizers give 1 and 0 instead of booleans."""
_MOST_SHARES = 100_000_000
"""The largest number of class shares, N times the number of classes, kept at 8 bytes each."""


class SupervisedTask(EvaluatedTask):
    """A supervised problem with its data on the device.

    A batch is (*inputs, target[, sequence mask][, sample mask][, key]): the sequence mask if
    sequences are padded, the sample mask if the plan has one, the key if the model has dropout.

    Args:
        data: samples, and who holds which.
        module: the network, with its initial parameters, on the device and in the dtype of the run.
        loss: of each sample.
        metrics: of each sample or of the test set, by name.
        buffers: how running statistics are handled.
        augmentations: names of augmentations of the only input, in order.
        pixels: how pixels were standardised; for augmentations.
        training_dtype: the dtype of the network's computations in training.

    Attributes:
        data: the samples, and who holds which.
        model: the network as a pure function.

    Raises:
        InvalidInputError: the network does not fit the inputs, or its outputs do not fit the loss.
    """

    def __init__(
        self,
        data: SupervisedData,
        module: nn.Module,
        loss: LossFunction,
        metrics: Mapping[str, Metric | SetMetric],
        buffers: BufferMode = "average",
        augmentations: Sequence[str] = (),
        pixels: PixelStandardisation | None = None,
        training_dtype: torch.dtype | None = None,
    ) -> None:
        self.data = data
        self.batch_data = (*data.train.inputs, data.train.target, *data.train.masks)
        loss = adapt_loss(loss, data.train.target.device, next(module.parameters()).dtype)
        each = {name: m.function for name, m in metrics.items() if isinstance(m, Metric)}
        functions = {"loss": loss, **each}
        self.set_functions = {n: m.function for n, m in metrics.items() if n not in each}
        if self.set_functions and data.test is None:
            name = next(iter(self.set_functions))
            raise InvalidInputError(
                f"metrics.{name}: a SetMetric is measured on test samples; give test, such as 0.2"
            )
        if data.train.masks and not data.masks_target and data.train.target.dim() > 1:
            functions = {name: count_all(function) for name, function in functions.items()}
        self.functions, self._loss = functions, functions["loss"]
        lower = (name for name, metric in metrics.items() if metric.lower_is_better)
        self.lower_is_better = frozenset({"loss", *lower})
        self._augmentations, self._pixels = augmentations, pixels
        self.chunk = evaluation_chunk(module, data.train.target.device)
        self.buffer_mode = buffers
        self.class_names, self.held_out = data.class_names, data.held_out
        self.evaluated_samples = len(data.train) + (0 if data.test is None else len(data.test))
        self.population = Population(
            clients=len(data.shards.sizes),
            samples=data.shards.sizes,
            class_shares=_class_shares(data),
            names=data.shards.names,
        )
        self._mask_name = _mask_argument(module, data.names) if data.train.masks else None
        names = data.names if self._mask_name is None else (*data.names, self._mask_name)
        arguments = self._arguments(data.train.example)
        self.model = FunctionalModel(module, arguments, names, training_dtype)
        self.fewest_samples = self.model.fewest_samples
        self.is_recurrent = self.model.is_recurrent
        example, outputs = data.train.example, self.model.example_output
        check_outputs(outputs, example.target, TARGET_KINDS.get(loss), data.classes)
        for name, function in functions.items():
            field = name if name == "loss" else f"metrics.{name}"
            check_per_sample(field, function, outputs, example.target, *example.masks)
        warn_of_probabilities(module, loss)
        params = self.model.params
        self._needs_keys = bool(augmentations) or self.model.draws
        self.layout = Layout.from_params(params)
        self.start = self.layout.flatten(params)
        if self.model.buffers:
            self.buffer_layout = Layout.from_params(self.model.buffers)
            self.start_buffers = self.buffer_layout.flatten(self.model.buffers)
        self._channels_last = self._accepts_channels_last(arguments)

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return the mean loss of the minibatch's samples, excluding padding."""
        return self.loss_and_buffers(params, self.model.buffers, *batch)[0]

    def loss_and_buffers(
        self, params: Params, buffers: Params, *batch: Tensor
    ) -> tuple[Tensor, Params]:
        """Return the mean loss, and the running statistics after the pass."""
        arguments, target, masks, key = self._unpack(batch)
        outputs = self.model(params, arguments, key, masks[1], buffers)
        if self.model.buffers:
            outputs, buffers = outputs
        return self._mean_loss(outputs, target, *masks), buffers

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return the indices of each step's samples (I, S, B)[, mask (I, S, B)][, keys (I, S)]."""
        assert plan.positions is not None
        parts = [torch.from_numpy(self.data.shards.locate(plan.clients, plan.positions))]
        if plan.mask is not None:
            parts.append(torch.tensor(plan.mask))
        if self._needs_keys:
            parts.append(torch.tensor(plan.keys))
        return tuple(to_device_of(part, self.data.train.target) for part in parts)

    def batch(self, *inputs: Tensor) -> Batch:
        """Return the cohort's batch, each part of shape (S, B, ...), except keys (S,)."""
        samples, *rest = inputs
        rows = samples.flatten()
        arguments = [
            tensor.index_select(0, rows).view(*samples.shape, *tensor.shape[1:])
            for tensor in self.data.train.inputs
        ]
        if self._augmentations:
            arguments[0] = augment(arguments[0], self._augmentations, rest[-1], self._pixels)
        if self._needs_keys and not self.model.draws:
            rest.pop()
        masks = (mask[samples] for mask in self.data.train.masks)
        return (*arguments, self.data.train.target[samples], *masks, *rest)

    def with_batch_data(self, data: tuple[Tensor, ...]) -> SupervisedTask:
        """Return the task with other training samples: inputs, target, and mask if there is one."""
        count, other = len(self.data.train.inputs), copy(self)
        other.data = replace(self.data, train=Samples(data[:count], *data[count:]))
        return other

    def to_memory_format(self, tensor: Tensor) -> Tensor:
        """Return images and filters in the channels-last format, if the network accepts it."""
        return to_channels_last(tensor) if self._channels_last else tensor

    def pooled(self) -> SupervisedTask:
        """Return the task of a single client that holds all training samples."""
        pooled = copy(self)
        pooled.data = replace(
            self.data, shards=StoredShards.from_lists([np.arange(len(self.data.train))])
        )
        pooled.population = Population(1, samples=pooled.data.shards.sizes)
        return pooled

    def module(self, x: Tensor, buffers: Tensor | None = None) -> nn.Module:
        shared = buffers if buffers is None or buffers.dim() == 1 else buffers.mean(dim=0)
        return self.model.module(self.layout.unflatten(x), self.unflatten_buffers(shared))

    def forward(self, x: Tensor, buffers: Tensor | None) -> Callable[[DeviceSamples], Any]:
        params = {name: self.to_memory_format(t) for name, t in self.layout.unflatten(x).items()}
        named = self.unflatten_buffers(buffers)

        def outputs(samples: DeviceSamples) -> Any:
            arguments = tuple(self.to_memory_format(t) for t in self._arguments(samples))
            return self.model.evaluate(params, arguments, named)

        return outputs

    def _unpack(
        self, batch: Batch
    ) -> tuple[tuple[Tensor, ...], Tensor, tuple[Tensor | None, Tensor | None], Tensor | None]:
        """Return the arguments, the target, the masks of positions and samples, and the key."""
        count = len(self.data.train.inputs)
        arguments, target, rest = batch[:count], batch[count], list(batch[count + 1 :])
        key = rest.pop() if self.model.draws else None
        positions = rest.pop(0) if self.data.train.mask is not None else None
        arguments = (*arguments, *self._mask_arguments(positions))
        return arguments, target, (positions, rest[0] if rest else None), key

    def _mean_loss(
        self, outputs: Tensor, target: Tensor, positions: Tensor | None, samples: Tensor | None
    ) -> Tensor:
        losses = self._loss(outputs, target, *(() if positions is None else (positions,)))
        if samples is None:
            return losses.mean()
        weights = samples.to(losses.dtype)
        return (losses * weights).sum() / weights.sum().clamp(min=1)

    def _arguments(self, samples: DeviceSamples) -> tuple[Tensor, ...]:
        return (*samples.inputs, *self._mask_arguments(samples.mask))

    def _mask_arguments(self, positions: Tensor | None) -> tuple[Tensor, ...]:
        """Return the mask of padded sequences as the network takes it, if it does."""
        if positions is None or self._mask_name is None:
            return ()
        return (positions.long() if self._mask_name == _TOKENIZERS_MASK else positions,)

    @torch.no_grad()
    def _accepts_channels_last(self, arguments: tuple[Tensor, ...]) -> bool:
        """Return whether the network takes channels-last images; `x.view(B, -1)` does not."""
        params = {name: to_channels_last(tensor) for name, tensor in self.model.params.items()}
        try:
            self.model.evaluate(params, tuple(map(to_channels_last, arguments)))
        except RuntimeError:
            return False
        return True


def _class_shares(data: SupervisedData) -> Floats | None:
    if data.labels is None:
        return None
    classes = data.classes or int(data.labels.max()) + 1
    if classes * len(data.shards.sizes) > _MOST_SHARES:
        return None
    return data.shards.class_shares(data.labels, classes)


def _mask_argument(module: nn.Module, names: Sequence[str | None]) -> str | None:
    """Return the argument of `forward` that takes the mask of padded sequences; None: none does.

    Args:
        module: the network.
        names: how its other arguments are passed: by keyword, or None by position.
    """
    parameters = [*inspect.signature(module.forward).parameters]
    given = {*parameters[: names.count(None)], *names}
    masks = (name for name in ("mask", _TOKENIZERS_MASK) if name in parameters)
    return next((name for name in masks if name not in given), None)
