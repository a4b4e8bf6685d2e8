"""The samples of a supervised problem, in memory and on the device, and which client holds them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError, printable, quantify
from fedtide.population import Names
from fedtide.problems.datasets.catalogue import Constants, PixelStandardisation
from fedtide.problems.datasets.table_columns import Ints
from fedtide.problems.losses import TargetKind
from fedtide.problems.partitions import Shards, StoredShards
from fedtide.randomness import generator

_logger = logging.getLogger("fedtide")

ArrayT = TypeVar("ArrayT", NDArray[Any], Tensor)


@dataclass(frozen=True, eq=False)
class Samples(Generic[ArrayT]):
    """n samples as arrays, or as tensors on the device of a run.

    Args:
        inputs: the arguments of the network, each (n, ...): uint8 pixels (as arrays only), integers
            or floating point.
        target: (n, ...).
        mask: False where the sequences of a sample are padded, (n, L); None: no padding.
    """

    inputs: tuple[ArrayT, ...]
    target: ArrayT
    mask: ArrayT | None = None

    def __len__(self) -> int:
        return len(self.target)

    @property
    def masks(self) -> tuple[ArrayT, ...]:
        """The mask, if there is one, as further arguments of a loss."""
        return () if self.mask is None else (self.mask,)

    @property
    def example(self) -> Samples[ArrayT]:
        """Two samples for a trial run: the first two, or the only one twice."""
        return self.select([0, min(1, len(self) - 1)])

    def select(self, rows: Any) -> Samples[ArrayT]:
        """Return these rows, given as indices, a slice or a boolean mask."""
        return Samples(
            tuple(part[rows] for part in self.inputs),
            self.target[rows],
            None if self.mask is None else self.mask[rows],
        )


StoredSamples = Samples[NDArray[Any]]
DeviceSamples = Samples[Tensor]


@dataclass(frozen=True, eq=False)
class ReadData:
    """What a supervised problem has read, before clients get their shares of it.

    Args:
        train, test: the samples; None without a test set.
        kind: what the loss expects of the target; None: a loss that says nothing.
        classes: how many classes or tokens there are; 0 if the target is numeric.
        columns: the columns by which a partition may divide the training samples.
        clients: the client of each training sample, (n,); None: a partition says it.
        test_clients: the client of each test sample; None: clients have no test samples.
        mean, std: of pixels, see `standardisation`.
        names: the keyword by which each of the network's arguments is passed; None: by position.
        class_names: the names of the classes, if they were given as text.
        masks_target: whether the mask of padded sequences is also that of the targets.
    """

    train: StoredSamples
    test: StoredSamples | None
    kind: TargetKind | None
    classes: int
    columns: Mapping[str, NDArray[Any]]
    clients: Names | None = None
    test_clients: Names | None = None
    mean: Constants = (0.5,)
    std: Constants = (0.5,)
    names: tuple[str | None, ...] = (None,)
    class_names: tuple[str, ...] | None = None
    masks_target: bool = True


@dataclass(frozen=True, eq=False)
class SupervisedData:
    """The data of a supervised task.

    Args:
        train, test: the samples; None without a test set.
        shards: which client holds which training samples.
        labels: the label of each training sample for class shares, (n,); None without.
        classes: C; 0 if targets are not classes.
        names: the keyword by which each of the network's arguments is passed; None: by position.
        class_names: the names of the classes, if they were given as text.
        test_owners: the client whose test part each test sample is in, (n_test,), −1 for none;
            None if clients have no test parts.
        masks_target: whether the mask of padded sequences is also that of the targets.
        held_out: the rows of the given samples that were set aside for the test, (n_test,).
    """

    train: DeviceSamples
    test: DeviceSamples | None
    shards: Shards
    labels: Ints | None
    classes: int
    names: tuple[str | None, ...]
    class_names: tuple[str, ...] | None = None
    test_owners: Ints | None = None
    masks_target: bool = True
    held_out: Ints | None = None


def to_device(
    samples: StoredSamples,
    device: torch.device,
    dtype: torch.dtype,
    pixels: PixelStandardisation,
) -> DeviceSamples:
    """Return the samples as tensors: standardised pixels, integers, and numbers of the dtype."""

    def convert(array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        if array.dtype == np.uint8:
            return pixels.apply(tensor)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    mask = None if samples.mask is None else torch.from_numpy(samples.mask).to(device)
    return Samples(tuple(map(convert, samples.inputs)), convert(samples.target), mask)


def hold_out(
    samples: StoredSamples, shards: Shards, share: float, seed: int
) -> tuple[StoredSamples, Shards, StoredSamples, Ints, Ints]:
    """Set aside a share of every client's samples as its test part, at random.

    A client with m samples gives up round(share · m), but keeps at least one for training. No two
    clients may hold the same sample: one would be tested on what the other trains on.

    Args:
        samples: all samples.
        shards: who holds which.
        share: within (0, 1).
        seed: of the draw.

    Raises:
        InvalidInputError: no client would give up a sample, or two clients share one.

    Returns:
        The training samples, who holds which, the test samples, and the owner and the row of each,
        (n_test,).
    """
    sizes = shards.sizes
    owners, held = shards.list_pairs()
    if np.bincount(held).max() > 1:
        raise InvalidInputError(
            "test: the partition gives samples to more than one client, so that a client would be "
            "tested on samples that others train on; give a table of test samples"
        )
    tested = np.minimum(np.rint(share * sizes).astype(np.int64), sizes - 1)
    if not tested.any():
        raise InvalidInputError(
            f"test: a share of {share:g} of clients with at most "
            f"{quantify(int(sizes.max()), 'sample')} holds out none; give a larger share, or a "
            "test set"
        )
    order = np.lexsort((generator(seed, "held-out").random(len(owners)), owners))
    place = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.zeros(len(owners), dtype=np.bool_)
    chosen[order] = place < tested[owners]  # `owners` is sorted, so it equals owners[order]
    return (
        samples.select(held[~chosen]),
        StoredShards.from_owners(owners[~chosen], len(sizes), shards.names),
        samples.select(held[chosen]),
        owners[chosen],
        held[chosen],
    )


def find_owners(test_clients: Names | None, shards: Shards) -> Ints | None:
    """Return the client of each test sample, −1 for strangers; None: the data do not say it."""
    if test_clients is None:
        return None
    assert shards.names is not None
    ids = {str(name): client for client, name in enumerate(shards.names.tolist())}
    owners = np.array([ids.get(str(name), -1) for name in test_clients.tolist()], dtype=np.int64)
    strangers = sorted({printable(str(name), 80) for name in test_clients[owners < 0].tolist()})
    listed = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
    if (owners < 0).all():
        raise InvalidInputError(
            f"test: no client of train is among its {len(strangers)} ({listed}); use the same "
            "names, or leave the column of clients out of test"
        )
    if strangers:
        _logger.warning(
            "test: samples of %s that train lacks (%s) count only in metrics of the whole test set",
            quantify(len(strangers), "client"),
            listed,
        )
    return owners
