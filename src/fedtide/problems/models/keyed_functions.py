"""Functions of PyTorch whose dropout masks are pure functions of a key."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedtide.problems.models.dropout_masks import DropoutMasks
from fedtide.problems.models.keyed_attention import attention_weights


class KeyedFunctions(TorchFunctionMode):
    """A context in which dropout by functions, in training, takes its masks from a source.

    These are the functions of `REPLACEMENTS`, which the networks of many libraries call instead of
    using layers. PyTorch's own ones draw the masks from the global generator.

    Args:
        masks: the source of the masks.

    Attributes:
        used: whether one of these functions has dropped anything.
    """

    def __init__(self, masks: DropoutMasks) -> None:
        super().__init__()
        self.masks, self.used = masks, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the function returns."""
        replacement = REPLACEMENTS.get(func)
        dropped = None if replacement is None else replacement(self.masks, *args, **(kwargs or {}))
        if dropped is None:
            return func(*args, **(kwargs or {}))
        self.used = True
        return dropped


def _dropout(
    masks: DropoutMasks,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    channels: bool = False,
    unbatched: int | None = None,
) -> Tensor | None:
    """Return what a function of `torch.nn.functional` returns; None: it drops nothing.

    Args:
        masks: the source of the masks.
        input, p, training, inplace: see there.
        channels: whether whole channels are dropped.
        unbatched: how many dimensions an input has that is taken for a single sample.
    """
    if not (training and 0 < p <= 1):
        return None
    dims = (1 if input.dim() == unbatched else 2) if channels else None
    dropped = masks.drop(input, float(p), dims)
    return input.copy_(dropped) if inplace else dropped


def _attention(
    masks: DropoutMasks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Return what `scaled_dot_product_attention` returns; None: it drops nothing."""
    if not 0 < dropout_p <= 1 or (is_causal and attn_mask is not None):
        return None
    if enable_gqa:
        key, value = (
            part.repeat_interleave(query.shape[-3] // part.shape[-3], dim=-3)
            for part in (key, value)
        )
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask  # True: it takes part, unlike in nn.MultiheadAttention
    return masks.drop(attention_weights(scores, attn_mask), dropout_p) @ value


REPLACEMENTS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    functional.dropout: _dropout,
    functional.dropout1d: partial(_dropout, channels=True, unbatched=2),
    functional.dropout2d: partial(_dropout, channels=True),
    functional.dropout3d: partial(_dropout, channels=True, unbatched=4),
    functional.scaled_dot_product_attention: _attention,
}
"""What takes the place of each function while it drops."""
