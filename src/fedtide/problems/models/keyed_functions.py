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
    """A context in which dropout in training takes its masks from a source.

    It replaces the functions of `REPLACEMENTS`, which layers call as well, recurrent layers
    included. PyTorch's own functions draw the masks from the global generator.

    Args:
        masks: the source of the masks.
    """

    def __init__(self, masks: DropoutMasks) -> None:
        super().__init__()
        self.masks = masks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the result of the function or of its replacement."""
        replacement = REPLACEMENTS.get(func)
        dropped = None if replacement is None else replacement(self.masks, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if dropped is None else dropped


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
    """Return the result of a dropout function of PyTorch; None: nothing is dropped.

    Args:
        masks: the source of the masks.
        input, p, training, inplace: see `torch.nn.functional`.
        channels: whether whole channels are dropped.
        unbatched: the number of dimensions of an input that counts as a single sample.
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
    """Return the result of `scaled_dot_product_attention`; None: nothing is dropped."""
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


def _recurrent(
    masks: DropoutMasks, *args: Any, function: Callable[..., Any], **named: Any
) -> tuple[Tensor, ...] | None:
    """Return the result of a function of recurrent layers, computed layer by layer with masks.

    None: nothing is dropped, the sequences are packed, or it is called with keywords.

    Args:
        masks: the source of the masks, for the outputs passed from layer to layer.
        *args: of the function, which `nn.RNNBase` calls by position.
        function: of PyTorch.
        **named: keyword arguments, as in calls by others.
    """
    if named:
        return None
    x, initial, weights, biases, layers, p, training, bidirectional, batch_first = args
    is_packed = not isinstance(weights, list)  # then its arguments are others
    if is_packed or not (training and p and layers > 1):
        return None
    single = isinstance(initial, Tensor)
    states = zip(*(part.chunk(layers) for part in ((initial,) if single else initial)), strict=True)
    size, ends = len(weights) // layers, []
    for layer, own in enumerate(states):
        part = weights[layer * size : (layer + 1) * size]
        given = own[0] if single else own
        x, *end = function(x, given, part, biases, 1, 0.0, training, bidirectional, batch_first)
        ends.append(end)
        if layer < layers - 1:
            x = masks.drop(x, p)
    return x, *(torch.cat(parts) for parts in zip(*ends, strict=True))


REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.dropout: _dropout,
    functional.dropout1d: partial(_dropout, channels=True, unbatched=2),
    functional.dropout2d: partial(_dropout, channels=True),
    functional.dropout3d: partial(_dropout, channels=True, unbatched=4),
    functional.scaled_dot_product_attention: _attention,
    **{
        function: partial(_recurrent, function=function)
        for function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
    },
}
"""The replacement of each function; it returns None where nothing is dropped."""
