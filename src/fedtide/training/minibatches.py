"""Minibatch planning: which samples a client uses in which local step."""

from __future__ import annotations

import logging
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.base import BatchPlan, Task, batch_widths
from fedtide.randomness import extend_hash, random_words
from fedtide.training.local_training import LocalTraining

Ints = NDArray[np.int64]

_ROW_BITS = 20  # a million epochs are shuffled at once
_KEPT = 4_000_000  # samples whose order is kept; beyond that, all orders are discarded

_logger = logging.getLogger("fedtide")


class MinibatchPlanner:
    """Plans the minibatches of a run: shuffled epochs that continue from round to round.

    The b-th local step of client n in the run uses batch b mod B_n of its epoch b div B_n, where
    B_n is its number of batches per epoch; the order of an epoch is a function of (seed, n, epoch).
    Hence `steps_taken` is the only state.

    Args:
        population: the clients; `samples` says how many each holds (None: they hold functions).
        local: steps, epochs and batch size.
        seed: of the run.

    Attributes:
        steps_taken: how many local steps each client has taken so far, shape (N,).

    Raises:
        InvalidInputError: a batch size or epochs are given, but the clients hold no samples.
    """

    def __init__(self, population: Population, local: LocalTraining, seed: int) -> None:
        self.steps_taken = np.zeros(population.clients, dtype=np.int32)
        self._sizes = population.samples
        self._seed = seed
        self._epochs, self._steps = local.epochs, local.steps
        if self._sizes is None:
            if local.batch_size is not None or local.epochs is not None:
                field = "batch_size" if local.batch_size is not None else "epochs"
                raise InvalidInputError(
                    f"{field}: the clients of this problem hold no samples; remove it"
                )
            return
        self._largest, self._smallest = int(self._sizes.max()), int(self._sizes.min())
        self._orders = EpochOrders(self._sizes, seed)
        self._batch = min(local.batch_size or self._largest, self._largest)
        self._full = local.batch_size is None
        self._even = bool((self._sizes % self._batch == 0).all())

    @property
    def batch_range(self) -> tuple[int, int] | None:
        """How many samples the smallest and the largest minibatch have; None without samples."""
        if self._sizes is None:
            return None
        if self._full or self._epochs is None:
            return min(self._smallest, self._batch), self._batch
        rest = self._sizes % self._batch
        return int(np.where(rest == 0, self._batch, rest).min()), self._batch

    @property
    def samples_per_round(self) -> float:
        """The samples that a client uses in a round, averaged over clients; 0 without samples."""
        if self._sizes is None:
            return 0.0
        return float(self.samples_of(np.arange(len(self._sizes))).mean())

    def samples_of(self, clients: Ints) -> Ints:
        """Return how many samples these clients use in a round, shape (S,).

        A step of clients without samples counts as one.
        """
        if self._sizes is None:
            return self.steps_of(clients)
        sizes = self._sizes[clients]
        if self._epochs is not None:
            return self._epochs * sizes
        return self.steps_of(clients) * (sizes if self._full else np.minimum(sizes, self._batch))

    @cached_property
    def widths(self) -> Ints:
        """The widths of the run's minibatches, see `BatchPlan.widths`; empty without samples."""
        if self._sizes is None:
            return np.empty(0, dtype=np.int64)
        return np.unique(batch_widths(np.minimum(self._sizes, self._batch), self._batch))

    def are_alike(self, clients: Ints) -> bool:
        """Return whether these clients take equally many steps with equally wide minibatches."""
        if self._epochs is not None:
            return False
        if self._sizes is None or len(self.widths) == 1:
            return True
        used = np.minimum(self._sizes[clients], self._batch)
        return len(np.unique(batch_widths(used, self._batch))) <= 1

    def padded_bytes(self, clients: Ints) -> int:
        """Return the bytes that each client takes in a plan padded to the largest of these.

        0 if no padding is needed.
        """
        if self._sizes is None or self.are_alike(clients) or len(clients) == 0:
            return 0
        steps = 1 if self._full else int(self.steps_of(clients).max())
        widest = np.minimum(self._sizes[clients], self._batch).max()
        return 8 * steps * int(batch_widths(widest, self._batch))

    def plan(self, clients: Ints, full_batch: bool = False) -> BatchPlan:
        """Return the next local steps of these clients, shape (S,), and count them as taken.

        Args:
            clients: the clients that train.
            full_batch: whether every step uses all samples, whatever the batch size.
        """
        before = self.steps_taken[clients].astype(np.int64)
        steps = self.skip(clients)
        step = np.arange(steps.max(initial=0))[:, None]
        index = step + before
        full = self._sizes is not None and (full_batch or self._full)
        # without the limit, clients that are done would shuffle epochs that they do not begin
        last = index if self._epochs is None else np.minimum(step, steps - 1) + before
        positions, mask = self._all(clients) if full else self._minibatches(clients, last)
        return BatchPlan(
            clients=clients,
            step_index=index,
            positions=positions,
            mask=mask,
            active=None if self._epochs is None else step < steps,
            seed=self._seed,
        )

    def skip(self, clients: Ints) -> Ints:
        """Count a round's local steps of these clients as taken; return how many, shape (S,)."""
        steps = self.steps_of(clients)
        self.steps_taken[clients] += steps.astype(np.int32)
        return steps

    def full_batch_plan(self, clients: Ints) -> BatchPlan:
        """Return one step over all samples of these clients, which does not count as taken."""
        index = -1 - self.steps_taken[clients].astype(np.int64)[None]
        positions, mask = (None, None) if self._sizes is None else self._all(clients)
        return BatchPlan(clients, index, positions, mask, seed=self._seed)

    def steps_of(self, clients: Ints) -> Ints:
        """Return how many local steps these clients, shape (S,), take in a round."""
        if self._epochs is None:
            return np.full(len(clients), self._steps, dtype=np.int64)
        return self._epochs * self._batches_of(clients)

    def _batches_of(self, clients: Ints) -> Ints:
        """Return B_n: only complete batches count, unless `local` is given in epochs."""
        assert self._sizes is not None
        sizes = self._sizes[clients]
        if self._epochs is None:
            return np.maximum(sizes // self._batch, 1)
        return -(-sizes // self._batch)

    def _minibatches(
        self, clients: Ints, index: Ints
    ) -> tuple[Ints | None, NDArray[np.bool_] | None]:
        """Return the positions (I, S, B) of the batches with these numbers, (I, S), and a mask."""
        if self._sizes is None or len(clients) == 0:
            return None, None
        sizes = self._sizes[clients][:, None]
        epochs, batches = np.divmod(index, self._batches_of(clients))
        place = batches[..., None] * self._batch + np.arange(self._batch)
        positions = self._orders.lookup(clients, epochs, np.minimum(place, sizes - 1))
        short = self._smallest < self._batch
        cut = self._epochs is not None and not self._even
        return positions, place < sizes if short or cut else None

    def _all(self, clients: Ints) -> tuple[Ints, NDArray[np.bool_] | None]:
        """Return the positions (1, S, B) of all samples, and the mask."""
        assert self._sizes is not None
        sizes = self._sizes[clients][:, None]
        width = int(batch_widths(sizes, self._largest).max(initial=1))
        place = np.broadcast_to(np.arange(width), (1, len(clients), width))
        mask = None if self._smallest == self._largest else place < sizes
        return np.minimum(place, sizes - 1), mask


class EpochOrders:
    """The shuffled epochs of all clients: the order of one is a function of (seed, client, epoch).

    Each client's last epoch is kept, because a client often uses only part of it in a round; it can
    always be recomputed.

    Args:
        sizes: samples per client, shape (N,).
        seed: of the run.
    """

    def __init__(self, sizes: Ints, seed: int) -> None:
        self._sizes, self._seed = sizes, seed
        self._position_bits = int(sizes.max()).bit_length()
        self._kept = np.empty(0, dtype=np.int64)
        self._forget(0)

    def lookup(self, clients: Ints, epochs: Ints, places: Ints) -> Ints:
        """Return the samples at `places` (I, S, B) of `epochs` (I, S) of `clients` (S,).

        `epochs` must not decrease along I.
        """
        first = epochs[0]
        if np.array_equal(first, epochs[-1]):  # nobody begins another epoch in this round
            starts = self._find(clients, first)[:, None]
        else:
            counts = epochs[-1] - first + 1
            row = np.repeat(np.arange(len(clients)), counts)
            row_start = np.cumsum(counts) - counts
            pair_epochs = first[row] + np.arange(len(row)) - row_start[row]
            starts = self._find(clients[row], pair_epochs)[row_start + epochs - first][..., None]
        found: Ints = self._kept[starts + places]
        return found

    def _find(self, clients: Ints, epochs: Ints) -> Ints:
        """Return where the order of each pair (client, epoch) starts in the kept orders.

        A client's epochs must increase.
        """
        sizes = self._sizes[clients]
        needed = int(sizes.sum())
        if self._used + needed > len(self._kept):
            self._forget(needed)
        starts = self._starts[clients] - 1
        missing = np.flatnonzero((starts < 0) | (self._epochs[clients] != epochs))
        if len(missing):
            clients, epochs, sizes = clients[missing], epochs[missing], sizes[missing]
            order, begin = self._shuffle(clients, epochs, sizes)
            begin += self._used
            self._kept[self._used : self._used + len(order)] = order
            self._used += len(order)
            starts[missing] = begin
            self._starts[clients] = begin + 1  # of repeated clients the last one stays
            self._epochs[clients] = epochs
        return starts

    def _forget(self, needed: int) -> None:
        """Discard all orders and make room for this many samples."""
        if needed > len(self._kept):
            self._kept = np.empty(max(_KEPT, needed), dtype=np.int64)
        self._used = 0
        self._starts = np.zeros(len(self._sizes), dtype=np.int64)  # counted from 1; 0: not kept
        self._epochs = np.zeros(len(self._sizes), dtype=np.int64)

    def _shuffle(self, clients: Ints, epochs: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """Return the orders of these epochs, concatenated, and where each begins.

        They come from sorting integers whose bits hold (row, random bits, position).
        """
        orders, most = [], 2**_ROW_BITS
        for first in range(0, len(clients), most):
            part = slice(first, first + most)
            row = np.repeat(np.arange(len(clients[part])), sizes[part])
            position = np.arange(len(row)) - (np.cumsum(sizes[part]) - sizes[part])[row]
            epoch_words = random_words(self._seed, "epoch", clients[part], epochs[part])
            words = extend_hash(epoch_words[row], position)
            words >>= np.uint64(_ROW_BITS + self._position_bits)
            words <<= np.uint64(self._position_bits)
            words |= position.view(np.uint64)
            words |= row.view(np.uint64) << np.uint64(64 - _ROW_BITS)
            words.sort()
            orders.append((words & np.uint64((1 << self._position_bits) - 1)).view(np.int64))
        return np.concatenate(orders), np.cumsum(sizes) - sizes


def check_minibatches(planner: MinibatchPlanner, task: Task) -> None:
    """Warn if some minibatches have fewer samples than the task needs.

    Raises:
        InvalidInputError: all of them have.
    """
    fewest = task.fewest_samples
    smallest, largest = planner.batch_range or (fewest, fewest)
    if smallest >= fewest:
        return
    found = "have a single sample, for which batch normalisation has no variance"
    layers = "use GroupNorm or LayerNorm"
    if largest < fewest:
        raise InvalidInputError(
            f"batch_size: all minibatches {found}; give at least {fewest}, or {layers}"
        )
    hint = f"change batch_size, leave out clients with a single sample, or {layers}"
    _logger.warning("local.batch_size: some minibatches %s; %s", found, hint)
