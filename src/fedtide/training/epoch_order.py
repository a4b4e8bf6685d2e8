"""Shuffled epochs: in which order a client uses its samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.randomness import extend_hash, random_words

Ints = NDArray[np.int64]

_ROW_BITS = 20  # up to a million epochs are shuffled at once
_CACHED = 4_000_000  # samples whose orders are cached; beyond, the cache is cleared


class EpochOrders:
    """The shuffled epochs of all clients: the order of one is a function of (seed, client, epoch).

    Orders are cached, because a client often uses only part of an epoch in a round; they can
    always be recomputed.

    Args:
        sizes: samples per client, shape (N,).
        seed: of the run.
    """

    def __init__(self, sizes: Ints, seed: int) -> None:
        self._sizes, self._seed = sizes, seed
        self._position_bits = int(sizes.max()).bit_length()
        self._orders: dict[tuple[int, int], Ints] = {}
        self._cached = 0

    def lookup(self, clients: Ints, epochs: Ints, places: Ints) -> Ints:
        """Return the samples at `places` (I, S, B) of `epochs` (I, S) of `clients` (S,).

        `epochs` must not decrease along I.
        """
        first = epochs[0]
        counts = epochs[-1] - first + 1
        row = np.repeat(np.arange(len(clients)), counts)
        row_start = np.cumsum(counts) - counts
        pair_epochs = first[row] + np.arange(len(row)) - row_start[row]
        orders = self._concatenated(clients[row], pair_epochs)
        sizes = self._sizes[clients[row]]
        starts = np.cumsum(sizes) - sizes
        found: Ints = orders[starts[row_start + epochs - first][..., None] + places]
        return found

    def _concatenated(self, clients: Ints, epochs: Ints) -> Ints:
        """Return the orders of these pairs (client, epoch), concatenated."""
        if self._cached > _CACHED:
            self._orders.clear()
            self._cached = 0
        pairs = list(zip(clients.tolist(), epochs.tolist(), strict=True))
        missing = [i for i, pair in enumerate(pairs) if pair not in self._orders]
        if missing:
            self._shuffle([pairs[i] for i in missing], clients[missing], epochs[missing])
        return np.concatenate([self._orders[pair] for pair in pairs])

    def _shuffle(self, pairs: list[tuple[int, int]], clients: Ints, epochs: Ints) -> None:
        """Shuffle these epochs by sorting words made of (row, random bits, position)."""
        sizes = self._sizes[clients]
        ends = np.cumsum(sizes)
        row = np.repeat(np.arange(len(clients)), sizes)
        position = np.arange(len(row)) - np.repeat(ends - sizes, sizes)
        words = extend_hash(random_words(self._seed, "epoch", clients, epochs)[row], position)
        words >>= np.uint64(_ROW_BITS + self._position_bits)
        words <<= np.uint64(self._position_bits)
        words |= position.view(np.uint64)
        words |= row.view(np.uint64) << np.uint64(64 - _ROW_BITS)
        words.sort()
        order = (words & np.uint64((1 << self._position_bits) - 1)).view(np.int64)
        for pair, size, end in zip(pairs, sizes.tolist(), ends.tolist(), strict=True):
            self._orders[pair] = order[end - size : end]
        self._cached += len(order)
