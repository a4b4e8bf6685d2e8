"""A supervised problem with its data on the device: batches, losses and evaluation."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError, first_line
from fedtide.population import Population
from fedtide.problems.augmentation import augment
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, BufferMode, Evaluation, Task
from fedtide.problems.datasets.catalogue import PixelStandardisation
from fedtide.problems.datasets.table_columns import Ints
from fedtide.problems.layout import Layout, Params, to_channels_last
from fedtide.problems.loss_checks import (
    adapt_loss,
    check_functions,
    warn_of_probabilities,
)
from fedtide.problems.losses import TARGET_KINDS, LossFunction
from fedtide.problems.models import FunctionalModel
from fedtide.problems.models.functional import mixes_samples
from fedtide.problems.models.network_checks import agree
from fedtide.problems.partitions import StoredShards
from fedtide.problems.sample_metrics import (
    Metric,
    class_metrics,
    class_recalls,
    count_all,
    weigh_classes,
)
from fedtide.problems.supervised_data import DeviceSamples, Samples, SupervisedData

_logger = logging.getLogger("fedtide")

Floats = NDArray[np.float64]

_TOKENIZERS_MASK = "attention_mask"
"""What networks of Hugging Face call it; their tokenizers give 1 and 0 instead of truth values."""
_MOST_SHARES = 100_000_000
"""How many class shares of clients are kept, of 8 bytes: N times the number of classes."""
_APART = (
    "problem.loss: in this model or loss the samples of a minibatch influence one another, so the "
    "figures of a client take all its samples as one minibatch and depend on how many it holds; "
    "compare clients of one size"
)


class SupervisedTask(Task):
    """A supervised problem with its data on the device.

    A batch is (*inputs, target[, sequence mask][, sample mask][, key]): the sequence mask if
    sequences are padded, the sample mask if the plan has one, the key if the model has dropout.

    Args:
        data: samples, and who holds which.
        module: the network, with its initial parameters, on the device and in the dtype of the run.
        loss: of each sample.
        metrics: of each sample, by name.
        buffers: what becomes of running statistics.
        augmentations: names of augmentations of the only input, in order.
        pixels: how pixels were standardised; for augmentations.
        training_dtype: the dtype of the network's computations in training.

    Attributes:
        shards: which client holds which training samples.
        model: the network as a pure function.

    Raises:
        InvalidInputError: the network does not fit the inputs, or its outputs do not fit the loss.
    """

    def __init__(
        self,
        data: SupervisedData,
        module: nn.Module,
        loss: LossFunction,
        metrics: Mapping[str, Metric],
        buffers: BufferMode = "average",
        augmentations: Sequence[str] = (),
        pixels: PixelStandardisation | None = None,
        training_dtype: torch.dtype | None = None,
    ) -> None:
        self._data, self._train, self._test = data, data.train, data.test
        self.batch_data = (*data.train.inputs, data.train.target, *data.train.masks)
        loss = adapt_loss(loss, data.train.target.device, next(module.parameters()).dtype)
        functions = {"loss": loss, **{name: m.function for name, m in metrics.items()}}
        if data.train.masks and not data.masks_target and data.train.target.dim() > 1:
            functions = {name: count_all(function) for name, function in functions.items()}
        self._functions, self._loss = functions, functions["loss"]
        lower = (name for name, metric in metrics.items() if metric.lower_is_better)
        self._lower_is_better = frozenset({"loss", *lower})
        self._augmentations, self._pixels = augmentations, pixels
        self._chunk = _evaluation_chunk(module, self._train.target.device)
        self.shards, self.buffer_mode = data.shards, buffers
        self.class_names = data.class_names
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
        self._apart = check_functions(
            functions, TARGET_KINDS.get(loss), data.classes, self.model, data.train, self._arguments
        )
        warn_of_probabilities(module, loss, self.model.example_output)
        if self._depends_on_padding():
            _logger.warning(
                "model: its outputs for a sequence depend on how many zeros it is padded with; "
                "let forward take mask or attention_mask and leave them out (for networks of "
                "Hugging Face, also set config.pad_token_id = 0; peft needs a task_type)"
            )
        params, count = self.model.params, len(self._train)
        self._apart |= mixes_samples(self._evaluated_loss, params, count)
        self.mixes_samples = mixes_samples(self._padded_loss, params, count)
        self.warnings = (*([_APART] if self._apart else []), *self._untested_clients())
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
        parts = [torch.from_numpy(self.shards.locate(plan.clients, plan.positions))]
        if plan.mask is not None:
            parts.append(torch.tensor(plan.mask))
        if self._needs_keys:
            parts.append(torch.tensor(plan.keys))
        return tuple(to_device_of(part, self._train.target) for part in parts)

    def batch(self, *inputs: Tensor) -> Batch:
        """Return the cohort's batch, each part of shape (S, B, ...), except keys (S,)."""
        samples, *rest = inputs
        rows = samples.flatten()
        arguments = [
            tensor.index_select(0, rows).view(*samples.shape, *tensor.shape[1:])
            for tensor in self._train.inputs
        ]
        if self._augmentations:
            arguments[0] = augment(arguments[0], self._augmentations, rest[-1], self._pixels)
        if self._needs_keys and not self.model.draws:
            rest.pop()
        masks = (mask[samples] for mask in self._train.masks)
        return (*arguments, self._train.target[samples], *masks, *rest)

    def with_batch_data(self, data: tuple[Tensor, ...]) -> SupervisedTask:
        """Return the task with other training samples: inputs, target, and mask if there is one."""
        count, other = len(self._train.inputs), copy(self)
        other._train = Samples(data[:count], *data[count:])
        return other

    def to_memory_format(self, tensor: Tensor) -> Tensor:
        """Return images and filters in the channels-last format, if the network accepts it."""
        return to_channels_last(tensor) if self._channels_last else tensor

    def pooled(self) -> SupervisedTask:
        """Return the task of a single client that holds all training samples."""
        pooled = copy(self)
        pooled.shards = StoredShards.from_lists([np.arange(len(self._train))])
        pooled.population = Population(1, samples=pooled.shards.sizes)
        return pooled

    def module(self, x: Tensor, buffers: Tensor | None = None) -> nn.Module:
        shared = buffers if buffers is None or buffers.dim() == 1 else buffers.mean(dim=0)
        return self.model.module(self.layout.unflatten(x), self.unflatten_buffers(shared))

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return losses and metrics over the training and the test set, without augmentation.

        `train_loss`, `test_loss` and `train_M`, `test_M` for every metric M are means over samples;
        `loss` is the objective (1/N) Σ_n F_n(x), or the mean over samples without `clients`. Where
        the classes of the test set are uneven, `test_balanced_accuracy` is the mean of the classes'
        accuracies, each of which is `test_recall_CLASS`, unless M is called like that.

        For each client, `loss` is F_n(x), and M is measured on its own training samples. If clients
        have test parts, `test_loss` and `test_M` are measured on them (NaN without one). If they do
        not, `class_weighted_test_accuracy` is the mean of the classes' accuracies on the whole test
        set, weighted by the client's class shares.
        """
        own = buffers if buffers is not None and buffers.dim() == 2 else None
        shared = buffers if own is None else own.mean(dim=0)
        if self._apart:
            means = _by_name(
                self._mean_over(x, self._train, self._held(client), shared)
                for client in range(self.population.clients)
            )
            train = {name: np.repeat(values, self.shards.sizes) for name, values in means.items()}
        else:
            train = self._measure(x, self._train, shared)
        test = {} if self._test is None else self._measure_test(x, self._test, shared)
        figures: dict[str, Floats] = {}
        if clients and own is not None:
            figures = self.evaluate_clients(x, np.arange(len(own)), own)
        elif clients:
            if not self._apart:
                means = {name: self.shards.client_means(values) for name, values in train.items()}
            figures = means | self._client_test_figures(test)
        metrics = {"loss": figures.get("loss", train["loss"]).mean()}
        metrics |= {f"train_{name}": values.mean() for name, values in train.items()}
        metrics |= {f"test_{name}": values.mean() for name, values in test.items()}
        if self._test is not None and self._weighs_classes:
            recalls, target = self._recalls(test["accuracy"]), self._test.target.cpu().numpy()
            by_class = class_metrics(recalls, target, self.class_names)
            metrics |= {n: v for n, v in by_class.items() if n not in metrics}  # the user's own
        return Evaluation(
            {name: float(value) for name, value in metrics.items()},
            figures,
            self._lower_is_better,
        )

    def evaluate_clients(
        self, x: Tensor, clients: Ints, buffers: Tensor | None = None
    ) -> dict[str, Floats]:
        """Return figures as those of `evaluate`, each of shape (S,)."""
        rows = []
        for place, client in enumerate(clients):
            model = x if x.dim() == 1 else x[place]
            own = buffers if buffers is None or buffers.dim() == 1 else buffers[place]
            figures = self._mean_over(model, self._train, self._held(int(client)), own)
            rows.append(figures | self._test_figures(model, int(client), own))
        return _by_name(rows)

    def _held(self, client: int) -> Ints:
        """Return the training samples that a client holds."""
        places = np.arange(self.shards.sizes[client])[None]
        held: Ints = self.shards.locate(np.array([client]), places)[0]
        return held

    def _test_figures(self, x: Tensor, client: int, buffers: Tensor | None) -> dict[str, float]:
        """Return the figures of a client's model on its test part or, weighted, on the test set."""
        if self._test is None:
            return {}
        if self._data.test_owners is not None:
            own = np.flatnonzero(self._data.test_owners == client)
            test = self._mean_over(x, self._test, own, buffers)
            return {f"test_{name}": value for name, value in test.items()}
        shares = self._weighing_shares
        if shares is None:
            return {}
        recalls = self._recalls(self._measure(x, self._test, buffers)["accuracy"])
        return {"class_weighted_test_accuracy": float(weigh_classes(recalls, shares)[client])}

    def _mean_over(
        self, x: Tensor, samples: DeviceSamples, rows: Ints, buffers: Tensor | None
    ) -> dict[str, float]:
        """Return the mean of the loss and of each metric over these samples; NaN without any."""
        if not len(rows):
            return dict.fromkeys(self._functions, float("nan"))
        own = samples.select(torch.from_numpy(rows).to(samples.target.device))
        return {name: float(v.mean()) for name, v in self._measure(x, own, buffers).items()}

    def _measure_test(
        self, x: Tensor, samples: DeviceSamples, buffers: Tensor | None
    ) -> dict[str, Floats]:
        """Return `_measure` of the test samples.

        Raises:
            InvalidInputError: the network fails on them, as on a token that training never had.
        """
        try:
            return self._measure(x, samples, buffers, self._data.test_owners)
        except (RuntimeError, IndexError, ValueError) as error:
            raise InvalidInputError(
                "test: the model or a metric fails on the test samples "
                f"({first_line(error, 150)}); make them like those of train, or the model larger"
            ) from error

    @torch.no_grad()
    def _measure(
        self,
        x: Tensor,
        samples: DeviceSamples,
        buffers: Tensor | None,
        owners: Ints | None = None,
    ) -> dict[str, Floats]:
        """Return the loss and each metric of every sample, (n,).

        Args:
            x: the model, (d,).
            samples: n samples.
            buffers: running statistics, (d_b,).
            owners: the client of each sample, (n,); None: they belong together. It matters only
                for samples that influence one another.
        """
        params = {name: self.to_memory_format(t) for name, t in self.layout.unflatten(x).items()}
        named = self.unflatten_buffers(buffers)
        parts: dict[str, list[Tensor]] = {name: [] for name in self._functions}
        places, chunks = self._chunks(len(samples), owners)
        for rows in chunks:
            chunk = samples.select(rows)
            arguments = tuple(self.to_memory_format(t) for t in self._arguments(chunk))
            outputs = self.model.evaluate(params, arguments, named)
            for name, function in self._functions.items():
                parts[name].append(function(outputs, chunk.target, *chunk.masks))
        values = {name: torch.cat(p).double().cpu().numpy() for name, p in parts.items()}
        return {name: v[places] for name, v in values.items()}

    def _chunks(
        self, count: int, owners: Ints | None
    ) -> tuple[slice | Ints, Iterable[slice | Tensor]]:
        """Return where each sample is among the chunks, and the samples of each chunk.

        A chunk is one forward pass: a client's samples if they influence one another.
        """
        if not self._apart or owners is None:
            size = count if self._apart else self._chunk
            return slice(None), (slice(first, first + size) for first in range(0, count, size))
        rows = np.argsort(owners, kind="stable")
        ends = np.flatnonzero(np.diff(owners[rows])) + 1
        device = self._train.target.device
        return np.argsort(rows), (torch.from_numpy(r).to(device) for r in np.split(rows, ends))

    def _client_test_figures(self, test: Mapping[str, Floats]) -> dict[str, Floats]:
        figures: dict[str, Floats] = {}
        owners, shares = self._data.test_owners, self._weighing_shares
        if owners is not None:
            held = owners >= 0
            count = np.bincount(owners[held], minlength=self.population.clients)
            for name, values in test.items():
                sums = np.bincount(owners[held], values[held], self.population.clients)
                with np.errstate(invalid="ignore"):  # NaN for a client without test samples
                    figures[f"test_{name}"] = sums / count
        elif test and shares is not None:
            recalls = self._recalls(test["accuracy"])
            figures["class_weighted_test_accuracy"] = weigh_classes(recalls, shares)
        return figures

    @property
    def _weighs_classes(self) -> bool:
        """Whether every sample has one class, whose accuracy is measured."""
        one_class = self._data.classes > 0 and self._train.target.dim() == 1
        return one_class and "accuracy" in self._functions

    @property
    def _weighing_shares(self) -> Floats | None:
        """The class shares of clients, (N, C), that weight the classes' accuracies; None: none."""
        return self.population.class_shares if self._weighs_classes else None

    def _recalls(self, correct: Floats) -> Floats:
        """Return the share of test samples of each class that are classified correctly, (C,)."""
        assert self._test is not None
        return class_recalls(correct, self._test.target.cpu().numpy(), self._data.classes)

    def _unpack(
        self, batch: Batch
    ) -> tuple[tuple[Tensor, ...], Tensor, tuple[Tensor | None, Tensor | None], Tensor | None]:
        """Return the arguments, the target, the masks of positions and samples, and the key."""
        count = len(self._train.inputs)
        arguments, target, rest = batch[:count], batch[count], list(batch[count + 1 :])
        key = rest.pop() if self.model.draws else None
        positions = rest.pop(0) if self._train.mask is not None else None
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
    def _depends_on_padding(self) -> bool:
        """Return whether the shortest sequence has other outputs without its padding."""
        if self._train.mask is None:
            return False
        lengths, padded = self._train.mask.sum(1), self._train.mask.shape[1]
        row = lengths.argmin()
        length = int(lengths[row])
        whole = self._arguments(self._train.select(row[None]))
        cut = tuple(
            x[:, :length] if x.shape[1:2] == (padded,) and not x[:, length:].any() else x
            for x in whole
        )
        try:
            results = [self.model.evaluate(self.model.params, inputs) for inputs in (whole, cut)]
        except Exception:  # a network for sequences of one length
            return False
        for one, other in zip(*map(tree_leaves, results), strict=False):
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                real = one if one.shape == other.shape else one[:, :length]
                if real.shape == other.shape and not agree(real, other):
                    return True
        return False

    def _untested_clients(self) -> list[str]:
        """Return a sentence on clients that no figure on test samples covers, if there are any."""
        owners, clients = self._data.test_owners, self.population.clients
        missing = 0 if owners is None else clients - len(np.unique(owners[owners >= 0]))
        if not missing:
            return []
        return [
            f"problem.test: {missing:,} of {clients:,} clients "
            f"{'has' if missing == 1 else 'have'} no test samples, as with too few to give one up; "
            "the test figures of clients, such as the worst tenth, leave them out"
        ]

    @torch.no_grad()
    def _padded_loss(self, params: Params, samples: Tensor) -> Tensor:
        """Return the loss of training samples, the last of which is padding."""
        device = self._train.target.device
        example = self._train.select(samples.to(device))
        real = torch.arange(len(samples), device=device) < len(samples) - 1
        keys = (real.new_zeros((), dtype=torch.int64),) if self.model.draws else ()
        batch = (*example.inputs, example.target, *example.masks, real, *keys)
        return self.loss(params, *batch)

    @torch.no_grad()
    def _evaluated_loss(self, params: Params, samples: Tensor) -> Tensor:
        """Return the losses of training samples but the last, which are evaluated together."""
        example = self._train.select(samples.to(self._train.target.device))
        outputs = self.model.evaluate(params, self._arguments(example))
        return self._loss(outputs, example.target, *example.masks)[:-1]

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


def _by_name(rows: Iterable[Mapping[str, float]]) -> dict[str, Floats]:
    """Return the figures of each client, (S,), from those of one client after another."""
    rows = list(rows)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


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


def _evaluation_chunk(module: nn.Module, device: torch.device) -> int:
    """Return how many samples to evaluate in one forward pass."""
    if device.type != "cpu":
        return 4000
    # feature maps that stay in the CPU's cache: measured twice as fast
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return 100 if any(isinstance(layer, kinds) for layer in module.modules()) else 1000
