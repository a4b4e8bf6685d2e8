"""Multi-head attention whose dropout masks are pure functions of a key."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedtide.problems.models.dropout_masks import DropoutMasks
from fedtide.problems.models.layer_replacement import replace_layers


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
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
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
