"""Dropout whose masks are pure functions of a key, for stacked and reproducible steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedtide.problems.device_random import WORDS, words
from fedtide.problems.models.keyed_attention import KeyedAttention
from fedtide.problems.models.keyed_recurrent import KEYED_RECURRENT
from fedtide.problems.models.layer_replacement import replace_layers

_ELEMENTS = (nn.Dropout,)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class DropoutMasks:
    """The dropout masks of one forward pass, one for each call of a dropout layer.

    Element e of call c is kept if the word of (key, c, e) is below (1 − p)·2³².

    >>> masks = DropoutMasks()
    >>> masks.start_pass(torch.tensor(7))
    >>> masks.draw((6,), 0.5).tolist()
    [False, True, False, False, False, True]
    """

    def __init__(self) -> None:
        self._key: Tensor | None = None
        self._calls = 0

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

    def drop(self, x: Tensor, p: float, channels: bool = False) -> Tensor:
        """Return x with elements zeroed with probability p, and the others divided by 1 − p.

        Args:
            x: of any shape.
            p: the probability.
            channels: whether to zero whole channels, one draw per x[b, c].
        """
        if p == 1:
            return x * 0
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if channels else tuple(x.shape)
        return x * self.draw(shape, p) / (1 - p)


class KeyedDropout(nn.Module):
    """Zeroes elements (or whole channels) with probability p and divides the others by 1 − p.

    Args:
        p: the probability of zeroing.
        masks: the source of the masks.
        channels: whether to zero whole channels, one draw per x[b, c] (Dropout1d, 2d, 3d).
    """

    def __init__(self, p: float, masks: DropoutMasks, channels: bool) -> None:
        super().__init__()
        self.p, self.masks, self.channels = p, masks, channels

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropped elements set to 0 and the others divided by 1 − p."""
        return self.masks.drop(x, self.p, self.channels)


def replace_dropout(module: nn.Module) -> tuple[nn.Module, DropoutMasks | None]:
    """Replace the dropout layers of `module` by keyed ones; return it and their masks, if any.

    Attention and recurrent layers with dropout are replaced, too. Layers in evaluation mode drop
    nothing and stay.

    >>> module, masks = replace_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    >>> module[1], masks is None
    (KeyedDropout(), False)
    """
    masks = DropoutMasks()

    def keyed(name: str, layer: nn.Module) -> nn.Module | None:
        if not layer.training:
            return None
        if isinstance(layer, _ELEMENTS + _CHANNELS) and layer.p > 0:
            return KeyedDropout(layer.p, masks, isinstance(layer, _CHANNELS))
        if type(layer) is nn.MultiheadAttention and layer.dropout > 0:
            return KeyedAttention(layer, masks) if KeyedAttention.accepts(layer) else None
        if isinstance(layer, nn.RNNBase) and layer.dropout and layer.num_layers > 1:
            keyed_layer = KEYED_RECURRENT.get(type(layer))
            return None if keyed_layer is None else keyed_layer(layer, masks)
        return None

    replaced = replace_layers(module, keyed)
    keyed_layers = (KeyedDropout, KeyedAttention, *KEYED_RECURRENT.values())
    is_active = any(isinstance(m, keyed_layers) for m in replaced.modules())
    return replaced, masks if is_active else None
