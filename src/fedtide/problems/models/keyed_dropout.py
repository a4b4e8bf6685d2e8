"""Dropout whose masks are functions of a key, so that a step can be stacked and repeated."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fedtide.problems.device_random import WORDS, words

_ELEMENTS = (nn.Dropout,)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Masks:
    """BatchInputs the masks of one forward pass, a fresh one for each call of a dropout layer.

    Element e of the c-th call is kept if the word of (key, c, e) is below (1 − p)·2³².

    >>> masks = Masks()
    >>> masks.begin(torch.tensor(7))
    >>> masks.draw((6,), 0.5).tolist()
    [False, True, False, False, False, True]
    """

    def __init__(self) -> None:
        self._key: Tensor | None = None
        self._calls = 0

    def begin(self, key: Tensor | None) -> None:
        """Start a forward pass whose masks are functions of `key`, an int64 scalar."""
        self._key, self._calls = key, 0

    def draw(self, shape: tuple[int, ...], p: float) -> Tensor:
        """Return the next mask: True with probability 1 − p."""
        assert self._key is not None
        elements = torch.arange(math.prod(shape), device=self._key.device)
        draws = words(self._key, self._calls, elements)
        self._calls += 1
        return (draws < round((1 - p) * WORDS)).reshape(shape)


class KeyedDropout(nn.Module):
    """Zeroes elements (or whole channels) with probability p and divides the others by 1 − p.

    Args:
        p: the probability of zeroing.
        masks: where the masks come from.
        channels: zero whole channels (Dropout1d, 2d, 3d): one draw for each x[b, c].
    """

    def __init__(self, p: float, masks: Masks, channels: bool) -> None:
        super().__init__()
        self.p, self.masks, self.channels = p, masks, channels

    def forward(self, x: Tensor) -> Tensor:
        """Return x with its dropped elements at 0 and the others divided by 1 − p."""
        if self.p == 1:
            return x * 0
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else tuple(x.shape)
        return x * self.masks.draw(shape, self.p) / (1 - self.p)


def key_dropout(module: nn.Module) -> tuple[nn.Module, Masks | None]:
    """Replace the dropout layers of `module`; return it and the source of their masks, if any.

    >>> module, masks = key_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    >>> module[1], masks is None
    (KeyedDropout(), False)
    """
    masks = Masks()
    root = nn.ModuleDict({"root": module})
    active = [
        (name, layer)
        for name, layer in root.named_modules(remove_duplicate=False)
        if isinstance(layer, _ELEMENTS + _CHANNELS) and layer.p > 0
    ]
    for name, layer in active:
        root.set_submodule(name, _keyed(layer, masks))
    return root["root"], masks if active else None


def _keyed(layer: Any, masks: Masks) -> KeyedDropout:
    return KeyedDropout(layer.p, masks, isinstance(layer, _CHANNELS))
