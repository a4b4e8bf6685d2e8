"""Dropout whose masks are pure functions of a key, for stacked and reproducible steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from fedtide.problems.device_random import WORDS, words
from fedtide.problems.models.layer_replacement import replace_layers

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


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


def has_dropout(module: nn.Module) -> bool:
    """Return whether any layer in training mode may apply dropout, if the input reaches it."""
    return any(
        layer.training
        and (
            (isinstance(layer, _DROPOUT) and layer.p > 0)
            or (isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0)
        )
        for layer in module.modules()
    )


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


class KeyedAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` in training, with keyed dropout masks for the attention weights.

    PyTorch's own layer draws these masks from the global generator.

    Args:
        layer: the layer whose settings and parameters it takes over, under the same names.
        masks: the source of the masks.
    """

    def __init__(self, layer: nn.MultiheadAttention, masks: DropoutMasks) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(layer.__dict__)
        self.masks = masks

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the same as `nn.MultiheadAttention`, see there."""
        batched, transposed = query.dim() == 3, query.dim() == 3 and not self.batch_first
        if transposed:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        elif not batched:
            query, key, value = (part.unsqueeze(0) for part in (query, key, value))
        q, k, v = self._project(query, key, value)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if attn_mask is not None:
            heads = attn_mask if attn_mask.dim() == 2 else attn_mask.view(scores.shape)
            scores = _masked(scores, heads)
        padding = None if key_padding_mask is None else key_padding_mask.view(len(scores), 1, 1, -1)
        weights = self.masks.drop(attention_weights(scores, padding), self.dropout)
        outputs = self.out_proj((weights @ v).transpose(-3, -2).flatten(-2))
        shown = weights.mean(1) if average_attn_weights else weights
        if not batched:
            outputs, shown = outputs[0], shown[0]
        return outputs.transpose(0, 1) if transposed else outputs, shown if need_weights else None

    def _project(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the queries, keys and values of every head, (B, heads, length, head_dim)."""
        weights = (
            self.in_proj_weight.chunk(3)
            if self._qkv_same_embed_dim
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(
            _split_heads(linear(x, weight, bias), self.num_heads)
            for x, weight, bias in zip(inputs, weights, biases, strict=True)
        )


def replace_attention(module: nn.Module, masks: DropoutMasks) -> nn.Module:
    """Replace attention layers with dropout by keyed ones, and return the network.

    Layers with `add_bias_kv` or `add_zero_attn`, and those in evaluation mode, stay.

    >>> layer = nn.MultiheadAttention(4, 2, dropout=0.5)
    >>> type(replace_attention(layer, DropoutMasks())).__name__
    'KeyedAttention'
    """

    def keyed(name: str, layer: nn.Module) -> nn.Module | None:
        if type(layer) is not nn.MultiheadAttention or not (layer.training and layer.dropout > 0):
            return None
        is_plain = layer.bias_k is None and not layer.add_zero_attn
        return KeyedAttention(layer, masks) if is_plain else None

    return replace_layers(module, keyed)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Return x of shape (B, length, E) as (B, heads, length, E / heads)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(-3, -2)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the scores with a mask added, or -inf where a boolean mask is True."""
    if mask.dtype == torch.bool:
        return scores.masked_fill(mask, -math.inf)
    return scores + mask.to(scores.dtype)


def attention_weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of scores over the keys; all 0 for a query that may attend to nothing.

    Args:
        scores: of each query for each key, (..., queries, keys).
        mask: added to the scores or, if boolean, True where a query may not attend to a key.
    """
    if mask is not None:
        scores = _masked(scores, mask)
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
