"""Shuffled epochs: the order in which a client uses its samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.randomness import extend_hash, random_words

Ints = NDArray[np.int64]

_ROW_BITS = 20  # a million epochs are shuffled at once
_KEPT = 4_000_000  # samples whose order is kept; beyond that, all orders are discarded


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
        """Return the orders of these epochs, concatenated, and where each begins."""
        begin, most = np.cumsum(sizes) - sizes, 2**_ROW_BITS
        parts = [slice(first, first + most) for first in range(0, len(clients), most)]
        orders = [self._shuffle_rows(clients[p], epochs[p], sizes[p], begin[p]) for p in parts]
        return orders[0] if len(orders) == 1 else np.concatenate(orders), begin

    def _shuffle_rows(self, clients: Ints, epochs: Ints, sizes: Ints, begin: Ints) -> Ints:
        """Return the orders of up to 2^`_ROW_BITS` epochs, concatenated.

        They come from sorting integers whose bits hold (row, random bits, position).
        """
        row = np.repeat(np.arange(len(clients)), sizes)
        position = np.arange(len(row)) - (begin - begin[0])[row]
        words = extend_hash(random_words(self._seed, "epoch", clients, epochs)[row], position)
        words >>= np.uint64(_ROW_BITS + self._position_bits)
        words <<= np.uint64(self._position_bits)
        words |= position.view(np.uint64)
        words |= row.view(np.uint64) << np.uint64(64 - _ROW_BITS)
        words.sort()
        return (words & np.uint64((1 << self._position_bits) - 1)).view(np.int64)
