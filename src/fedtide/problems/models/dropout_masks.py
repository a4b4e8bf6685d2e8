"""Dropout masks as pure functions of a key, for stacked and reproducible steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtide.problems.device_random import WORDS, words


class DropoutMasks:
    """The dropout masks of one forward pass, one for each layer or function that applies dropout.

    Element e of the mask c is kept if the word of (key, c, e) is below (1 − p)·2³².

    Attributes:
        used: whether anything has been dropped, in this pass or before.

    >>> masks = DropoutMasks()
    >>> masks.start_pass(torch.tensor(7))
    >>> masks.draw((6,), 0.5).tolist()
    [False, True, False, False, False, True]
    """

    def __init__(self) -> None:
        self._key: Tensor | None = None
        self._calls = 0
        self.used = False

    def start_pass(self, key: Tensor | None) -> None:
        """Start a forward pass with masks drawn from `key`, an int64 scalar."""
        self._key, self._calls = key, 0

    def draw(self, shape: tuple[int, ...], p: float) -> Tensor:
        """Return the next mask: True with probability 1 − p."""
        assert self._key is not None
        elements = torch.arange(math.prod(shape), device=self._key.device)
        draws = words(self._key, self._calls, elements)
        self._calls += 1
        return (draws < round((1 - p) * WORDS)).reshape(shape)

    def drop(self, x: Tensor, p: float, dims: int | None = None) -> Tensor:
        """Return x with elements zeroed with probability p, and the others divided by 1 − p.

        Args:
            x: of any shape.
            p: the probability.
            dims: the number of leading dimensions with a draw for each index, such as 2 for
                channels, x[b, c]; None: all.
        """
        self.used = True
        if p == 1:
            return x * 0
        shape = tuple(x.shape) if dims is None else (*x.shape[:dims], *[1] * (x.dim() - dims))
        return x * self.draw(shape, p) / (1 - p)
