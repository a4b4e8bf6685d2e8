"""Counter-based randomness: every draw is a pure function of (seed, purpose, index).

Nothing in fedtide keeps the state of a random generator. Every draw names its purpose and its
round, client or step, and does not depend on the order of draws, so an interrupted run resumes bit
for bit.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from operator import index as as_int
from typing import cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import ArrayLike, NDArray

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """Return the generator of (seed, purpose, index): an independent Philox stream for each index.

    >>> generator(1, "bernoulli", 7).integers(100) == generator(1, "bernoulli", 7).integers(100)
    np.True_
    """
    key = np.array([as_int(seed) & _MASK, zlib.crc32(purpose.encode())], dtype=np.uint64)
    counter = np.array([0, 0, 0, as_int(index) & _MASK], dtype=np.uint64)
    philox = np.random.Philox(cast("np.random.SeedSequence", _Key(key)), counter=counter)
    return np.random.Generator(philox)


class _Key(ISeedSequence):
    """A Philox key in the form of a seed: for one given as `key`, NumPy would still gather entropy.

    That takes twice as long as everything else that a generator needs.
    """

    def __init__(self, key: NDArray[np.uint64]) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        """Return the key, which is all that Philox asks for."""
        return self._key


def random_words(seed: int, purpose: str, *indices: ArrayLike) -> NDArray[np.uint64]:
    """Return one random 64-bit word for each element of the broadcast `indices`.

    The words are SplitMix64 outputs (Steele, Lea, Flood 2014) chained over the indices: each is a
    pure function of its (seed, purpose, indices), and an array costs a few vector operations.

    >>> bool((random_words(0, "x", [3, 4], 1) == random_words(0, "x", [4, 3], 1)[::-1]).all())
    True
    """
    words: NDArray[np.uint64] = _first_word(seed, purpose)
    for index in indices:
        words = extend_hash(words, index)
    return words


def extend_hash(words: NDArray[np.uint64], index: ArrayLike) -> NDArray[np.uint64]:
    """Return the words of `random_words` for one more index.

    >>> words = extend_hash(random_words(0, "x", [3, 4]), 1)
    >>> bool((words == random_words(0, "x", [3, 4], 1)).all())
    True
    """
    with np.errstate(over="ignore"):
        return _mix(words + (np.asarray(index).astype(np.uint64) + np.uint64(1)) * _INCREMENT)


def uniforms(seed: int, purpose: str, *indices: ArrayLike) -> NDArray[np.float64]:
    """Return one uniform number in [0, 1) for each element of the broadcast `indices`.

    >>> u = uniforms(0, "example", np.arange(10_000))
    >>> bool(abs(u.mean() - 0.5) < 0.01)
    True
    """
    return (random_words(seed, purpose, *indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=256)
def _first_word(seed: int, purpose: str) -> NDArray[np.uint64]:
    key = np.uint64(zlib.crc32(purpose.encode()))
    with np.errstate(over="ignore"):
        return _mix(np.uint64(as_int(seed) & _MASK) + key * _INCREMENT)


def _mix(word: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble the bits of `word` (SplitMix64's finalizer, a bijection)."""
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return np.asarray(word ^ (word >> np.uint64(31)))
