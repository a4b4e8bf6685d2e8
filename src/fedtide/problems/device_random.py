"""Counter-based random numbers on the device: a word is a pure function of (key, stream, index).

They use integer operations only, so that `torch.func.vmap`, `make_fx` and `torch.compile` accept
them, unlike torch's own generators.
"""

from __future__ import annotations

from torch import Tensor

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
WORDS = 1 << 32
"""The number of different words: a word is uniform on 0..WORDS-1."""


def words(key: Tensor, stream: int, index: Tensor) -> Tensor:
    """Return a 32-bit word, as int64, for each element of the broadcast `key` and `index`.

    Args:
        key: a random 64-bit word for each client and step, int64.
        stream: the purpose of the draws; different streams of one key are independent.
        index: counts the draws, int64, within 0..2³²−1.

    >>> import torch
    >>> words(torch.tensor(7), 0, torch.arange(3)).tolist()
    [2251778830, 1273456409, 3126560493]
    """
    low = mix(((key & _MASK) + stream * _GOLDEN) & _MASK)
    high = mix(((key >> 32) + low + _GOLDEN) & _MASK)
    return mix(mix(index ^ low) ^ high)


def mix(word: Tensor) -> Tensor:
    """Scramble 32-bit words (a bijection of C. Wellons' hash prospector, bias 0.107).

    Both multipliers are below 2³¹, so that no product overflows the int64 that holds it.
    """
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & _MASK
    word = ((word ^ (word >> 15)) * 0x735A2D97) & _MASK
    return word ^ (word >> 15)
