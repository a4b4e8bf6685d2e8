"""Supervised learning on the user's own data, network, loss and metrics."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.content_hash import fingerprint as hash_content
from fedtide.errors import InvalidInputError, printable, quantify
from fedtide.population import Names
from fedtide.problems.base import BufferMode, Problem
from fedtide.problems.datasets.catalogue import check_constants, standardisation
from fedtide.problems.datasets.sources import Table, read_source, split_files
from fedtide.problems.datasets.table_columns import Ints
from fedtide.problems.input_columns import (
    Inputs,
    argument_names,
    column_names,
    read_inputs,
    sequence_lengths,
    warn_of_padding,
    warn_of_scales,
)
from fedtide.problems.losses import LossFunction, TargetKind, resolve_loss
from fedtide.problems.models.network_building import (
    ModelLike,
    build_network,
    parameter_dtype,
    resolve_network,
)
from fedtide.problems.partitions import Partition, Shards, StoredShards
from fedtide.problems.partitions.base import to_names
from fedtide.problems.partitions.splitting import check_partition, split
from fedtide.problems.sample_metrics import accuracy, resolve_metrics
from fedtide.problems.supervised_data import (
    Samples,
    StoredSamples,
    SupervisedData,
    hold_out,
    to_device,
)
from fedtide.problems.supervised_task import SupervisedTask
from fedtide.problems.target_columns import Target, count_classes, partition_labels, read_target
from fedtide.validation import expand_home

_logger = logging.getLogger("fedtide")


@configurable
class Supervised(Problem):
    """F_n(x) is the mean loss of a network with parameters x over the samples of client n.

    Args:
        train: the training samples: a mapping of arrays or tensors, a pandas, Polars or PyArrow
            table, a Hugging Face `Dataset`, a map-style PyTorch `Dataset` (whose items are mappings
            or tuples), the path of a Parquet or CSV file, or of a folder with such a file called
            train and perhaps one called test; or text: the import path "package.module:function" of
            a function that returns any of these, "hub:OWNER/NAME" or "hub:OWNER/NAME:SPLIT" on the
            Hugging Face hub, "femnist", "shakespeare" or "stackoverflow".
        inputs: the columns that the network gets. One name: the column as it is stored. Several:
            each is an argument of `forward`, in order, except that columns with one number per row
            are combined into one vector. A mapping passes them by `forward`'s argument names.
            Integers stay integers, encoded images and uint8 arrays of two or more dimensions per
            sample become standardised pixels, and lists or arrays of different lengths are padded
            with zeros; the loss then gets the mask, and so does `forward` if it has an argument
            `mask` (True: not padded) or, as in Hugging Face networks, `attention_mask` (1: not
            padded).
        target: the column that the loss compares outputs with, or several numeric ones. Text is
            encoded as classes in sorted order. None: the first input (self-supervised).
        clients: the column that names the client of each sample, or a number of clients, with
            `partition`.
        test: the test samples, given like `train`, or a number within (0, 1): the share of every
            client's samples that is held out at random, if no two clients share samples. If it has
            the column that names clients, each client's metrics are measured on its own test
            samples. None: no test set.
        partition: which client holds which training samples, if `clients` is a number; numeric
            targets count as ten classes, by quantile. A partition, or a partitioner object of
            flwr-datasets.
        model: a `torch.nn.Module` (which is copied), a class or function that returns one, an
            import path "package.module:Class", a name in `MODELS`, or a mapping with `type`. Layers
            in evaluation mode (`layer.eval()`) keep their statistics and apply no dropout, but a
            network that is in evaluation mode as a whole is trained as a whole.
        loss: "cross_entropy" (the classes are the last dimension of the logits, also where each
            pixel or position has a class), "mse", "mae", "huber", "bce", "next_token", or a
            function of (outputs, target), with padded sequences (outputs, target, mask), that
            returns the loss of each sample, (B,), from torch operations; also by import path.
        metrics: one or several names such as "accuracy", or by name a function like a loss, or a
            `Metric`, which says whether lower is better; None: those that suit the loss. For a
            function its name decides: losses and errors are better when lower, everything else
            when higher, with a warning if the name does not tell.
        buffers: how running statistics, as of BatchNorm, are handled: "average" over each cohort
            with equal weights, or "local", where every client keeps its own (FedBN).
        normalise: a mean and a standard deviation for pixels / 255; None: (0.5, 0.5). Columns of
            numbers reach the network as they are.

    Raises:
        InvalidInputError: an unknown name or a value out of range; in `prepare`, data that are
            missing or do not fit.

    >>> rows = {"x": [[0.0], [1.0], [2.0], [3.0]], "y": [0.0, 2.0, 4.0, 6.0], "who": list("aabb")}
    >>> problem = Supervised(train=rows, clients="who", model=torch.nn.Linear(1, 1), loss="mse")
    >>> task = problem.prepare(seed=0, device=torch.device("cpu"), dtype=torch.float32)
    >>> task.population.samples, list(task.population.names), task.layout.size
    (array([2, 2]), ['a', 'b'], 2)
    """

    train: Any
    test: Any = None
    inputs: Inputs = "x"
    target: str | Sequence[str] | None = "y"
    clients: str | int = "client"
    partition: Partition | Any = None
    model: ModelLike = "logistic"
    loss: str | LossFunction = "cross_entropy"
    metrics: str | Sequence[str] | Mapping[str, Any] | None = None
    buffers: BufferMode = "average"
    normalise: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_constants(self.normalise)
        if isinstance(self.clients, str) != (self.partition is None):
            raise InvalidInputError(
                "partition: it has no effect if clients is a column; leave it out"
                if isinstance(self.clients, str)
                else "partition: missing; say how the samples are divided, such as Iid()"
            )
        if not isinstance(self.clients, str):
            check_partition(self.clients, self.partition)
        if isinstance(self.test, bool | np.bool_ | Real):
            share: Any = self.test
            if isinstance(share, bool | np.bool_) or not 0 < share < 1:
                raise InvalidInputError(
                    f"test: {share!s:.60} is neither a table nor a share within (0, 1)"
                )
            object.__setattr__(self, "test", float(share))
            if isinstance(self.partition, Partition) and self.partition.shares_samples:
                raise InvalidInputError(
                    f"test: with {type(self.partition).__name__} clients share samples, so that a "
                    "client would be tested on samples that others train on; give a table of test "
                    "samples"
                )
        names = column_names(self.inputs)
        if len(set(names)) < len(names):
            raise InvalidInputError(f"inputs: {names} names a column twice; name each once")
        resolve_loss(self.loss)
        resolve_metrics(self.metrics, self.loss)
        resolve_network(self.model)

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> SupervisedTask:
        loss, kind = resolve_loss(self.loss)
        samples, tests, target, tables = self._read(kind)
        self._check_pixels(samples)
        warn_of_scales(tables[0], self.inputs)
        metrics = resolve_metrics(self.metrics, self.loss, warn=True)
        classes = count_classes(target, kind)
        labels = partition_labels(samples.target, kind, classes)
        shards = self._split(tables[0], labels, len(samples), seed)
        owners = None if tests is None else self._test_owners(tables[1], shards)
        if isinstance(self.test, float):
            samples, shards, tests, owners = hold_out(samples, shards, self.test, seed)
            labels = partition_labels(samples.target, kind, classes)
        mean, std = self.normalise or (0.5, 0.5)
        pixels = standardisation((mean,), (std,), device, parameter_dtype(dtype))
        place = partial(to_device, device=device, dtype=parameter_dtype(dtype), pixels=pixels)
        data = SupervisedData(
            train=place(samples),
            test=None if tests is None else place(tests),
            shards=shards,
            labels=labels,
            classes=classes if kind == "classes" else 0,
            class_names=target.names,
            test_owners=owners,
            names=argument_names(self.inputs, len(samples.inputs)),
            masks_target=target.masks[0] is not None,
        )
        shape = samples.inputs[0].shape[1:]
        outputs = classes or int(np.prod(target.train.shape[1:], initial=1))
        module = build_network(self.model, shape, outputs, seed, device, dtype)
        task = SupervisedTask(data, module, loss, metrics, self.buffers, training_dtype=dtype)
        if task.hides_padding:
            warn_of_padding(tables, self.inputs)
        return task

    def fingerprint(self) -> str:
        """Return a hash of the samples and of the columns that say who holds them."""
        samples, tests, _, tables = self._read(resolve_loss(self.loss)[1])
        digest = hashlib.sha256()
        for part in (samples, *([] if tests is None else [tests])):
            for array in (*part.inputs, part.target):
                digest.update(f"{array.shape} {array.dtype}".encode())
                digest.update(np.ascontiguousarray(array).data)
            if part.mask is not None:
                digest.update(part.mask.data)
        if self.partition is not None:
            digest.update(hash_content(_plain_columns(tables[0])).encode())
        if isinstance(self.clients, str):
            for table in tables:
                if self.clients in table:
                    digest.update(repr(_client_column(table, self.clients).tolist()).encode())
        return digest.hexdigest()

    def _read(
        self, kind: TargetKind | None
    ) -> tuple[StoredSamples, StoredSamples | None, Target, list[Table]]:
        """Return training and test samples, the target, and the tables they come from."""
        target_names = [] if self.target is None else self.target
        columns = {"inputs": column_names(self.inputs), "target": column_names(target_names)}
        order = [name for names in columns.values() for name in names]
        sources = [self.train] if self.test is None else [self.train, self.test]
        if isinstance(self.train, str | Path) and (folder := expand_home(self.train)).is_dir():
            files = split_files(folder)
            sources = [files[0], *(files[1:] if self.test is None else [self.test])]
        naming = self.clients if isinstance(self.clients, str) else None
        tables = [
            read_source(field, source, order, naming)
            for field, source in zip(("train", "test"), sources, strict=False)
            if not isinstance(source, float)
        ]
        for place, table in enumerate(tables):
            named = [] if naming is None or (place and naming not in table) else [naming]
            table.require_rows({**columns, "clients": named})
        lengths = sequence_lengths(tables, self.inputs)
        inputs = [read_inputs(table, self.inputs, lengths) for table in tables]
        if self.target is None:
            is_sequence = columns["inputs"][0] in lengths
            target = Target(
                [arguments[0] for arguments, _ in inputs],
                masks=[mask if is_sequence else None for _, mask in inputs],
            )
        else:
            target = read_target(tables, self.target, kind, max(lengths.values(), default=None))
        parts = [
            Samples(arguments, array, _common_mask(mask, other))
            for (arguments, mask), array, other in zip(
                inputs, target.parts, target.masks, strict=False
            )
        ]
        _check_parts(parts)
        self._check_range(target)
        if kind == "tokens":
            _require_two_tokens(target)
        return parts[0], parts[1] if len(parts) > 1 else None, target, tables

    def _check_pixels(self, samples: StoredSamples) -> None:
        """Raise InvalidInputError if `normalise` would have no effect."""
        arrays = (*samples.inputs, samples.target)
        if self.normalise is not None and all(array.dtype != np.uint8 for array in arrays):
            raise InvalidInputError(
                "normalise: no input holds pixels; standardise the columns of the table"
            )

    def _check_range(self, target: Target) -> None:
        """Raise InvalidInputError unless targets are within [0, 1] where the loss needs that."""
        metrics = resolve_metrics(self.metrics, self.loss)
        binary = self.loss == "bce" or any(m.function is accuracy for m in metrics.values())
        for part in target.parts if binary else ():
            if part.dtype.kind == "f" and part.size and not 0 <= part.min() <= part.max() <= 1:
                raise InvalidInputError(
                    f"target: {part.min():g} to {part.max():g} are not within [0, 1], as 'bce' and "
                    "'accuracy' need of numbers; write 0 and 1"
                )

    def _split(self, table: Table, labels: Ints | None, samples: int, seed: int) -> Shards:
        if labels is None:
            if getattr(self.partition, "needs_labels", False):
                raise InvalidInputError(
                    f"partition: {type(self.partition).__name__} divides samples by class, and "
                    "these have several targets or none; use Iid() or a column"
                )
            labels = np.zeros(samples, dtype=np.int64)
        if isinstance(self.clients, str):
            values = _client_column(table, self.clients)
            return StoredShards.from_column("clients", self.clients, values)
        columns = {"label": labels, **_plain_columns(table)}
        return split(self.partition, labels, self.clients, seed, columns)

    def _test_owners(self, table: Table, shards: Shards) -> Ints | None:
        """Return the client of each test sample, −1 for strangers; None: the table has none."""
        if not isinstance(self.clients, str) or self.clients not in table:
            return None
        assert shards.names is not None
        ids = {str(name): client for client, name in enumerate(shards.names.tolist())}
        values = _client_column(table, self.clients).tolist()
        owners = np.array([ids.get(str(value), -1) for value in values], dtype=np.int64)
        strangers = sorted({str(v) for v, n in zip(values, owners, strict=True) if n < 0})
        named = ", ".join(printable(name, most=80) for name in strangers[:3])
        listed = f"{named}{', ...' if len(strangers) > 3 else ''}"
        if (owners < 0).all():
            raise InvalidInputError(
                f"test: no client of train is among its {len(strangers)} ({listed}); use the same "
                f"names, or leave the column {self.clients!r} out of test"
            )
        if strangers:
            _logger.warning(
                "test: %s not in train (%s); their samples count only in metrics of the whole test "
                "set",
                f"{quantify(len(strangers), 'client')} {'is' if len(strangers) == 1 else 'are'}",
                listed,
            )
        return owners


def _common_mask(
    inputs: NDArray[np.bool_] | None, target: NDArray[np.bool_] | None
) -> NDArray[np.bool_] | None:
    """Return where neither the inputs nor the target of a sample are padded, (n, L)."""
    if inputs is None or target is None:
        return target if inputs is None else inputs
    if inputs.shape != target.shape or (inputs != target).any():
        row = int((inputs.sum(1) != target.sum(1)).argmax())
        raise InvalidInputError(
            f"target: row {row} has another length than its input; give one value per position"
        )
    return inputs


def _check_parts(parts: Sequence[StoredSamples]) -> None:
    """Raise InvalidInputError unless test samples are like training samples."""
    for number, arrays in enumerate(zip(*(part.inputs for part in parts), strict=True)):
        found = {(array.shape[1:], array.dtype.kind) for array in arrays}
        if len(found) > 1:
            (one, kind), (other, another) = ((a.shape[1:], a.dtype) for a in arrays)
            raise InvalidInputError(
                f"test: its input {number} has shape {other} and type {another} per sample, that "
                f"of train {one} and {kind}; give both the same"
            )


def _require_two_tokens(target: Target) -> None:
    """Raise InvalidInputError unless every sequence has a token to predict."""
    for part, mask in zip(target.parts, target.masks, strict=False):
        if mask is None:
            sizes = np.full(len(part), part.shape[1] if part.ndim > 1 else 1)
        else:
            sizes = mask.sum(1)
        if sizes.min() < 2:
            raise InvalidInputError(
                f"inputs: the sequence in row {sizes.argmin()} has one token, and 'next_token' "
                "predicts each from those before it; remove such rows"
            )


def _plain_columns(table: Table) -> dict[str, NDArray[Any]]:
    """Return the columns with one value per row, which a partition may use to divide the rows."""
    plain = {}
    for name in table.names:
        with suppress(InvalidInputError):  # neither numbers nor text: of no use here
            column = table.column("train", name)
            if isinstance(column, np.ndarray) and column.ndim == 1:
                plain[name] = column
    return plain


def _client_column(table: Table, name: str) -> Names:
    """Return the client of each row."""
    column = table.column("clients", name)
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return to_names("clients", name, column)
    raise InvalidInputError(f"clients: column {name!r} holds lists; give one name in each row")
