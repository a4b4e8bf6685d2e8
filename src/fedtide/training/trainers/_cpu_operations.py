"""Operations rewritten in terms of others that TorchInductor compiles to faster C++.

Each takes the arguments of the operation that it replaces in a captured graph, and returns
`NotImplemented` where it would gain nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from fedtide.training import devices
from fedtide.training.trainers._graph_capture import in_memory, onednn_product
from fedtide.training.trainers._graph_rewrites import memory_format

_MOST_TERMS = 16
"""Sums of up to this many terms are unrolled; longer ones would take long to compile."""
_MOST_SUMS = 320
"""Matrix products with up to this many entries are computed as one sum per entry, ..."""
_SHORT_SUM = 256
"""... of up to this many terms."""
_MOST_ROWS = 16
"""Products with up to this many rows, or columns, are computed row by row, or column by column, all
side by side; more would exceed the registers."""
_CACHE_BYTES = 2**15
"""The rows of such a product are read for every column, so they must fit into a core's L1 cache."""
_PRECISE = (torch.float32, torch.float64)
"""Types for whose products processors have no dedicated matrix units."""
_ONEDNN_PRODUCTS = 2**21
"""Matrix products of fewer multiplications take oneDNN longer to prepare than it saves."""
_WORTH_A_COPY = 64
"""From this many columns, or rows, on, oneDNN saves more than copying the other matrix costs."""
_MOST_PIXELS = 32
"""Windows of up to this many pixels are unrolled."""


def cpu_operations(clients: int) -> dict[Any, Callable[..., Any]]:
    """Return the replacement of each operation in a block of this many stacked clients.

    Args:
        clients: S; 0: one client, not stacked.
    """
    return {
        torch.ops.aten.bmm.default: partial(_products, clients),
        torch.ops.aten.mm.default: _product,
        torch.ops.aten.addmm.default: _product_and_bias,
        torch.ops.aten.max_pool2d_with_indices_backward.default: _select_by_window,
        torch.ops.aten.native_group_norm.default: _normalise_groups,
        torch.ops.aten.native_group_norm_backward.default: _group_gradients,
    }


def _sum_products(clients: int, a: Tensor, b: Tensor) -> Any:
    """Return one matrix product per client, if its sums have few terms, or it few entries, rows or
    columns.

    Few terms: for instance, a sum over the samples of a minibatch. The compiler fuses it with what
    follows, so that a layer's gradient is subtracted from the weights where it is computed and
    never written to memory. Few rows (samples, too) or columns (such as ten classes): their sums
    are computed side by side, so that each weight is read once for all of them. Few entries
    (samples by classes): a matrix library takes longer to prepare than the sums take. Other
    products, such as those of each attention head, gain nothing.
    """
    rows, terms, columns = a.shape[1], a.shape[2], b.shape[2]
    if a.shape[0] != clients or not terms or not a.is_floating_point():
        return NotImplemented
    if terms <= _MOST_TERMS:
        a, b = in_memory(a), in_memory(b)
        return reduce(torch.add, (a[:, :, k, None] * b[:, k, None] for k in range(terms)))
    if rows * columns <= _MOST_SUMS and terms <= _SHORT_SUM:
        return (in_memory(a)[:, :, None] * in_memory(b.transpose(1, 2))[:, None]).sum(-1)
    if columns < rows and _has_few_rows(b.transpose(1, 2), a.transpose(1, 2)):
        return torch.stack(_sum_by_row(b.transpose(1, 2), a.transpose(1, 2)), 2)
    if rows <= columns and _has_few_rows(a, b):
        # If b is the transpose of weights stored row by row, the loop that wrote them is as long as
        # that of these sums. If the compiler fused both, the loop would need the minibatches of two
        # steps, too many for a cache, so the first column is summed apart.
        parts = (b,) if b.is_contiguous() else (b[:, :, :1], b[:, :, 1:])
        return torch.cat([torch.stack(_sum_by_row(a, part), 1) for part in parts], 2)
    return NotImplemented


def _products(clients: int, a: Tensor, b: Tensor) -> Any:
    """Return matrix products as `_sum_products` does, or for a single client with oneDNN."""
    found = _sum_products(clients, a, b)
    if found is NotImplemented and len(a) == clients == 1:
        found = _multiply_by_onednn(a[0], b[0])
        return found if found is NotImplemented else found[None]
    return found


def _product(a: Tensor, b: Tensor) -> Any:
    """Return the product of two matrices as `_sum_products` does, or with oneDNN."""
    product = _sum_products(1, a[None], b[None]) if a.dtype in _PRECISE else NotImplemented
    return _multiply_by_onednn(a, b) if product is NotImplemented else product[0]


def _product_and_bias(
    bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    """Return bias + a b with oneDNN."""
    if beta != 1 or alpha != 1:
        return NotImplemented
    product = _multiply_by_onednn(a, b)
    return product if product is NotImplemented else bias + product


def _multiply_by_onednn(a: Tensor, b: Tensor) -> Any:
    """Return a product of two larger matrices where oneDNN is faster than MKL.

    oneDNN needs contiguous rows of a and columns of b. Copying a matrix to make them so takes as
    long as the product saves if the other one has some fifty columns, or rows.
    """
    (rows, terms), columns = a.shape, b.shape[1]
    if not devices.mkl_lacks_avx512() or a.dtype != torch.float32:
        return NotImplemented
    if rows * terms * columns < _ONEDNN_PRODUCTS:
        return NotImplemented
    few_columns = columns < _WORTH_A_COPY and not a.is_contiguous()
    if few_columns or (rows < _WORTH_A_COPY and not b.t().is_contiguous()):
        return NotImplemented
    multiply = onednn_product()
    return NotImplemented if multiply is None else multiply(a.contiguous(), b.t().contiguous())


def _has_few_rows(a: Tensor, b: Tensor) -> bool:
    """Return whether the products of a's rows, (S, n, k), are faster computed side by side."""
    row_bytes = a.shape[2] * a.element_size()
    cached = b.is_contiguous() or a.shape[1] * row_bytes <= _CACHE_BYTES
    return 1 < a.shape[1] <= _MOST_ROWS and cached and a.dtype in _PRECISE


def _sum_by_row(a: Tensor, b: Tensor) -> list[Tensor]:
    """Return each row of the products of a, (S, n, k), with b, (S, k, m): n times (S, m)."""
    rows = in_memory(a).unbind(1)
    if b.is_contiguous():
        return [(row[:, :, None] * b).sum(1) for row in rows]
    return [(row[:, None] * b.transpose(1, 2)).sum(-1) for row in rows]


def _select_by_window(
    gradient: Tensor,
    images: Tensor,
    window: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Any:
    """Return the gradient of the maximum over windows that do not overlap, pixel by pixel.

    The compiler would add each window's gradient to one of its pixels, one number at a time. Here
    every pixel checks again whether it is the maximum of its window, many pixels at once.
    """
    height, width = images.shape[-2:]
    rows, columns = window if len(window) == 2 else window * 2
    disjoint = list(stride or window) in (window, [rows, columns])
    whole = height % rows == width % columns == 0
    few = 1 < rows * columns <= _MOST_PIXELS
    if not (disjoint and whole and few) or any(padding) or any(step != 1 for step in dilation):
        return NotImplemented
    tiling = (height // rows, rows, width // columns, columns)
    tiles = images.reshape(*images.shape[:-2], *tiling)
    pixels = [tiles[..., i, :, j] for i in range(rows) for j in range(columns)]
    largest, place = pixels[0], torch.zeros_like(pixels[0])
    for k, pixel in enumerate(pixels[1:], start=1):
        larger = (pixel > largest) | (pixel != pixel)  # the first of equal maxima; or NaN
        largest = torch.where(larger, pixel, largest)
        place = torch.where(larger, float(k), place)
    places = torch.arange(rows * columns, device=images.device).view(rows, 1, columns)
    zero = gradient.new_zeros(())
    if memory_format(images) == torch.channels_last:  # many channels at once
        place, gradient = (_channels_last(tensor) for tensor in (place, gradient))
        chosen = place[:, :, None, :, None] == places[..., None]
        found = torch.where(chosen, gradient[:, :, None, :, None], zero)
        count, channels = images.shape[:2]
        return found.reshape(count, height, width, channels).permute(0, 3, 1, 2)
    chosen = in_memory(place)[..., :, None, :, None] == places
    return torch.where(chosen, gradient[..., :, None, :, None], zero).reshape(images.shape)


def _channels_last(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) in memory as (N, H, W, C)."""
    return in_memory(images.permute(0, 2, 3, 1).contiguous())


def _normalise_groups(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> Any:
    """Return group normalisation, the means and the inverse standard deviations, (N, G).

    The compiler would process the channels of a group together, often fewer than fit into a
    register. Here all sums run over the pixels of a channel, and small matrix products with a
    membership matrix carry them to the groups and back; so a single number that is not finite
    spoils all groups of its sample.
    """
    if x.dim() < 3 or not pixels:
        return NotImplemented
    to_groups = _membership(x, channels, groups)
    share = groups / (channels * pixels)
    over = list(range(2, x.dim()))
    values = _precise(x)
    mean = values.sum(over) @ to_groups * share
    centered = values - _per_pixel(mean @ to_groups.T, x)
    variance = (centered * centered).sum(over) @ to_groups * share
    rstd = torch.rsqrt(variance + eps)
    scale = _per_pixel(rstd @ _weighted(to_groups, weight).T, x)
    normal = centered * scale
    if bias is not None:
        normal = normal + _per_pixel(bias[None], x)
    return normal.to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


def _group_gradients(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    channels: int,
    pixels: int,
    groups: int,
    output_mask: list[bool],
) -> Any:
    """Return the gradients of `_normalise_groups` with respect to x, weight and bias.

    With b = Σ w g and a = Σ w g x over a group of m numbers, mean μ and inverse deviation r,
    dx = w r g + c x - c μ - b r / m, where c = (b μ - a) r³ / m.
    """
    if x.dim() < 3 or not pixels:
        return NotImplemented
    to_groups = _membership(x, channels, groups)
    weighted = _weighted(to_groups, weight)
    share = groups / (channels * pixels)
    over = list(range(2, x.dim()))
    values, g, mean, rstd = (_precise(tensor) for tensor in (x, gradient, mean, rstd))
    g_sum, gx_sum = g.sum(over), (g * values).sum(over)
    b, a = g_sum @ weighted, gx_sum @ weighted
    slope = (b * mean - a) * rstd**3 * share
    constant = -slope * mean - b * rstd * share
    factors = (rstd @ weighted.T, slope @ to_groups.T, constant @ to_groups.T)
    by_gradient, by_value, offset = (_per_pixel(factor, x) for factor in factors)
    dx = g * by_gradient + values * by_value + offset
    d_weight = ((gx_sum - g_sum * (mean @ to_groups.T)) * (rstd @ to_groups.T)).sum(0)
    found = (dx, d_weight, g_sum.sum(0))
    return tuple(
        part.to(x.dtype) if asked else None for part, asked in zip(found, output_mask, strict=True)
    )


def _membership(x: Tensor, channels: int, groups: int) -> Tensor:
    """Return the membership matrix of channels in groups, entries 0 or 1, shape (C, G)."""
    group = torch.arange(channels, device=x.device) // (channels // groups)
    found: Tensor = group[:, None] == torch.arange(groups, device=x.device)
    return found.to(_precise(x).dtype)


def _weighted(to_groups: Tensor, weight: Tensor | None) -> Tensor:
    return to_groups if weight is None else to_groups * weight[:, None]


def _precise(tensor: Tensor) -> Tensor:
    """Return the tensor, in float32 if its dtype is less precise, as sums need that."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _per_pixel(factors: Tensor, x: Tensor) -> Tensor:
    """Return factors per channel, (N, C), reshaped to multiply x, (N, C, ...)."""
    return factors.reshape(*factors.shape, *(1,) * (x.dim() - 2))
