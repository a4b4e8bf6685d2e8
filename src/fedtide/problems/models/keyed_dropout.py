"""Layers with dropout, replaced by ones whose masks are pure functions of a key."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedtide.problems.models.dropout_masks import DropoutMasks
from fedtide.problems.models.keyed_attention import KeyedAttention
from fedtide.problems.models.keyed_recurrent import KEYED_RECURRENT
from fedtide.problems.models.layer_replacement import replace_layers

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

_FORWARDS = {kind.forward for kind in (nn.Dropout, *_CHANNELS)}
"""What these layers compute; a subclass may compute something else."""


class KeyedDropout(nn.Module):
    """Zeroes elements (or whole channels) with probability p and divides the others by 1 − p.

    Args:
        layer: the layer whose probability p it takes over. One that drops channels has one draw per
            x[b, c], or per x[c] for inputs that it takes for a single sample, as Dropout1d does for
            two dimensions.
        masks: the source of the masks.
    """

    def __init__(self, layer: Any, masks: DropoutMasks) -> None:
        super().__init__()
        self.p, self.masks, self.channels = layer.p, masks, isinstance(layer, _CHANNELS)
        unbatched = {nn.Dropout1d.forward: 2, nn.Dropout3d.forward: 4}
        self.unbatched = unbatched.get(type(layer).forward)

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropped elements set to 0 and the others divided by 1 − p."""
        dims = 1 if x.dim() == self.unbatched else 2
        return self.masks.drop(x, self.p, dims if self.channels else None)


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
        if isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d) and layer.p:
            return KeyedDropout(layer, masks) if type(layer).forward in _FORWARDS else None
        if type(layer) is nn.MultiheadAttention and layer.dropout > 0:
            return KeyedAttention(layer, masks) if KeyedAttention.accepts(layer) else None
        if isinstance(layer, nn.RNNBase) and layer.dropout and layer.num_layers > 1:
            keyed_layer = KEYED_RECURRENT.get(type(layer))
            return None if keyed_layer is None else keyed_layer(layer, masks)
        return None

    replaced = replace_layers(module, keyed)
    is_active = any(getattr(layer, "masks", None) is masks for layer in replaced.modules())
    return replaced, masks if is_active else None
