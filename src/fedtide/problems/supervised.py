"""Supervised learning on the user's own data, network, loss and metrics."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.population import Names
from fedtide.problems.base import BufferMode, Problem
from fedtide.problems.datasets.catalogue import check_constants, standardisation
from fedtide.problems.datasets.files import split_files
from fedtide.problems.datasets.sources import PlainColumns, Table, read_source
from fedtide.problems.losses import LossFunction, resolve_loss
from fedtide.problems.models.network_building import (
    ModelLike,
    build_network,
    parameter_dtype,
    resolve_network,
)
from fedtide.problems.partitions import Partition, Shards, StoredShards
from fedtide.problems.partitions.base import to_names
from fedtide.problems.partitions.splitting import check_partition, split
from fedtide.problems.sample_columns import (
    Inputs,
    Target,
    argument_names,
    column_names,
    count_classes,
    partition_labels,
    read_inputs,
    read_target,
    sequence_lengths,
    warn_of_gaps,
)
from fedtide.problems.sample_metrics import accuracy, resolve_metrics
from fedtide.problems.supervised_data import (
    ReadData,
    Samples,
    StoredSamples,
    SupervisedData,
    find_owners,
    hold_out,
    to_device,
)
from fedtide.problems.supervised_task import SupervisedTask
from fedtide.spec import Code, Source, spec
from fedtide.validation import expand_home


class SupervisedProblem(Problem):
    """What supervised problems have in common, whatever their data.

    A problem says how its data are read (`_read`), and has these attributes or fields, which
    `Supervised` describes.
    """

    test: Any
    clients: str | int
    partition: Partition | Any
    model: Any
    loss: str | LossFunction
    metrics: str | Sequence[str] | Mapping[str, Any] | None
    buffers: BufferMode
    augmentations: tuple[str, ...] = ()

    @abstractmethod
    def _read(self) -> ReadData:
        """Return the data."""

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> SupervisedTask:
        read, kept = self._read(), parameter_dtype(dtype)
        if read.kind == "classes":
            warn_of_gaps(read.train.target, read.classes)
        train, test, shards = read.train, read.test, self._split(read, seed)
        owners, held_out = find_owners(read.test_clients, shards), None
        if isinstance(self.test, float):
            train, shards, test, owners, held_out = hold_out(train, shards, self.test, seed)
        pixels = standardisation(read.mean, read.std, device, kept)
        data = SupervisedData(
            train=to_device(train, device, kept, pixels),
            test=None if test is None else to_device(test, device, kept, pixels),
            shards=shards,
            labels=partition_labels(train.target, read.kind, read.classes),
            classes=read.classes if read.kind == "classes" else 0,
            class_names=read.class_names,
            test_owners=owners,
            names=read.names,
            masks_target=read.masks_target,
            held_out=held_out,
        )
        outputs = read.classes or int(np.prod(train.target.shape[1:], initial=1))
        shape = train.inputs[0].shape[1:]
        module = build_network(self.model, shape, outputs, seed, device, dtype)
        loss, _ = resolve_loss(self.loss)
        metrics = resolve_metrics(self.metrics, self.loss)
        return SupervisedTask(
            data, module, loss, metrics, self.buffers, self.augmentations, pixels, dtype
        )

    def fingerprint(self) -> str:
        """Return a hash of the samples and of the columns that say who holds them."""
        read, digest = self._read(), hashlib.sha256()
        for part in (read.train, *([] if read.test is None else [read.test])):
            for array in (*part.inputs, part.target, *part.masks):
                digest.update(f"{array.shape} {array.dtype}".encode())
                digest.update(np.ascontiguousarray(array).data)
        for names in (read.clients, read.test_clients):
            digest.update(repr(None if names is None else names.tolist()).encode())
        if self.partition is not None:
            for name, column in read.columns.items():
                digest.update(f"{name} {column.tolist()}".encode())
        return digest.hexdigest()

    def _split(self, read: ReadData, seed: int) -> Shards:
        """Return which client holds which training samples."""
        if isinstance(self.clients, str):
            assert read.clients is not None
            return StoredShards.from_column("clients", self.clients, read.clients)
        labels = partition_labels(read.train.target, read.kind, read.classes)
        if labels is None:
            if getattr(self.partition, "needs_labels", False):
                raise InvalidInputError(
                    f"partition: {type(self.partition).__name__} divides samples by class, and "
                    "these have several targets or none; use Iid() or a column"
                )
            labels = np.zeros(len(read.train), dtype=np.int64)
        return split(self.partition, labels, self.clients, seed, read.columns)


@spec
class Supervised(SupervisedProblem):
    """F_n(x) is the mean loss of a network with parameters x over the samples of client n.

    Args:
        train: the training samples: a mapping of arrays or tensors, a pandas, Polars or PyArrow
            table, a Hugging Face `Dataset`, a map-style PyTorch `Dataset` (whose items are mappings
            or tuples), the path of a Parquet or CSV file, or of a folder with such a file called
            train and perhaps one called test; or text: the import path "package.module:function" of
            a function that returns any of these, "hub:OWNER/NAME" or "hub:OWNER/NAME:SPLIT" on the
            Hugging Face hub, "femnist" or "shakespeare".
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
            `Metric`, which says whether lower is better, or a `SetMetric`, which is measured on the
            whole test set; None: those that suit the loss. For a function its name decides: losses
            and errors are better when lower, everything else when higher.
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

    train: Annotated[Any, Source]
    test: Annotated[Any, Source] = None
    inputs: Inputs = "x"
    target: str | Sequence[str] | None = "y"
    clients: str | int = "client"
    partition: Partition | Any = None
    model: Annotated[ModelLike, Code] = "logistic"
    loss: Annotated[str | LossFunction, Code] = "cross_entropy"
    metrics: Annotated[str | Sequence[str] | Mapping[str, Any] | None, Code] = None
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
        if isinstance(self.test, Real):
            share: Any = self.test
            if not 0 < share < 1:
                raise InvalidInputError(f"test: {share} is not a share within (0, 1)")
            object.__setattr__(self, "test", float(share))
        column_names(self.inputs)
        resolve_loss(self.loss)
        resolve_metrics(self.metrics, self.loss)
        resolve_network(self.model)

    def _read(self) -> ReadData:
        kind, tables = resolve_loss(self.loss)[1], self._read_tables()
        lengths = sequence_lengths(tables, self.inputs)
        inputs = [read_inputs(table, self.inputs, lengths) for table in tables]
        if self.target is None:
            is_sequence = column_names(self.inputs)[0] in lengths
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
        self._check(parts)
        classes = count_classes(target, kind)
        mean, std = self.normalise or (0.5, 0.5)
        return ReadData(
            train=parts[0],
            test=parts[1] if len(parts) > 1 else None,
            kind=kind,
            classes=classes,
            columns=PlainColumns(tables[0], partition_labels(target.train, kind, classes)),
            clients=self._client_column(tables[0]),
            test_clients=self._client_column(tables[1]) if len(tables) > 1 else None,
            mean=(mean,),
            std=(std,),
            names=argument_names(self.inputs, len(parts[0].inputs)),
            class_names=target.names,
            masks_target=target.masks[0] is not None,
        )

    def _read_tables(self) -> list[Table]:
        """Return the tables of training and, if there are any, test samples."""
        targets = [] if self.target is None else column_names(self.target)
        columns = {"inputs": column_names(self.inputs), "target": targets}
        sources = [self.train] if self.test is None else [self.train, self.test]
        if isinstance(self.train, str | Path) and (folder := expand_home(self.train)).is_dir():
            files = split_files(folder)
            sources = [files[0], *(files[1:] if self.test is None else [self.test])]
        naming = self.clients if isinstance(self.clients, str) else None
        tables = [
            read_source(field, source, [*columns["inputs"], *targets], naming)
            for field, source in zip(("train", "test"), sources, strict=False)
            if not isinstance(source, float)
        ]
        for place, table in enumerate(tables):
            named = [] if naming is None or (place and naming not in table) else [naming]
            table.require_rows({**columns, "clients": named})
        return tables

    def _client_column(self, table: Table) -> Names | None:
        """Return the client of each row; None: the table does not say it."""
        if not isinstance(self.clients, str) or self.clients not in table:
            return None
        column = table.column("clients", self.clients)
        if isinstance(column, np.ndarray) and column.ndim == 1:
            return to_names("clients", self.clients, column)
        raise InvalidInputError(
            f"clients: column {self.clients!r} holds lists; give one name in each row"
        )

    def _check(self, parts: Sequence[StoredSamples]) -> None:
        """Raise InvalidInputError unless the samples fit each other and the loss."""
        for number, (train, *test) in enumerate(zip(*(p.inputs for p in parts), strict=True)):
            kind = train.shape[1:], train.dtype.kind
            if any((x.shape[1:], x.dtype.kind) != kind for x in test):
                raise InvalidInputError(
                    f"test: its input {number} has another shape or type per sample than that of "
                    f"train, {kind[0]} of {train.dtype}; give both the same"
                )
        metrics = resolve_metrics(self.metrics, self.loss).values()
        is_binary = self.loss == "bce" or any(metric.function is accuracy for metric in metrics)
        for part in parts:
            low, high = part.target.min(), part.target.max()
            if is_binary and part.target.dtype.kind == "f" and not 0 <= low <= high <= 1:
                raise InvalidInputError(
                    f"target: {low:g} to {high:g} are not within [0, 1], as 'bce' and 'accuracy' "
                    "need of numbers; write 0 and 1"
                )


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
