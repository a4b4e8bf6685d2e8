"""Operations written in others that TorchInductor compiles to faster C++.

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
from fedtide.training.trainers._memory_formats import memory_format

_MOST_TERMS = 16
"""Sums of up to so many terms are written out; more would take long to compile."""
_MOST_SUMS = 320
"""Products of matrices with up to so many numbers are sums along their rows."""
_MOST_ROWS = 16
"""Products with up to so many rows, or columns, have a sum for each; more exceed the registers."""
_CACHE_BYTES = 2**15
"""These rows are read for every column, and so must stay in a core's first cache."""
_PRECISE = (torch.float32, torch.float64)
"""Whose products are not faster on hardware of their own."""
_SHORT_SUM = 256
"""Up to so many terms, what follows a sum takes longer than what is saved in it."""
_ONEDNN_PRODUCTS = 2**21
"""Products of matrices of fewer multiplications take oneDNN longer to prepare than it saves."""
_WORTH_A_COPY = 64
"""With so many columns, or rows, a product takes longer than to copy the other matrix."""
_MOST_PIXELS = 32
"""Windows of up to so many pixels are written out."""


def cpu_operations(clients: int) -> dict[Any, Callable[..., Any]]:
    """Return by operation what takes its place in a block of so many stacked clients.

    Args:
        clients: S; 0: one client, not stacked.
    """
    return {
        torch.ops.aten.bmm.default: partial(_products, clients),
        torch.ops.aten.mm.default: _product,
        torch.ops.aten.addmm.default: _product_and_bias,
        torch.ops.aten.convolution_backward.default: _sum_bias_apart,
        torch.ops.aten.max_pool2d_with_indices_backward.default: _select_by_window,
        torch.ops.aten.native_group_norm.default: _normalise_groups,
        torch.ops.aten.native_group_norm_backward.default: _group_gradients,
    }


def _sum_products(clients: int, a: Tensor, b: Tensor) -> Any:
    """Return a product of matrices for each client, if each number in it sums few terms, or if
    it has few rows, columns or numbers.

    Few terms are the samples of a minibatch, for instance. The compiler fuses their sum with what
    follows: the gradient of a layer is then subtracted from its weights where it is computed, and
    never written. Few rows are the samples, too, and few columns ten classes: their sums are
    computed side by side, so each weight is read once for all of them. Few numbers are samples by
    classes; a library for products of matrices prepares longer for them than the sums take. Other
    products, such as those of every head of an attention, gain nothing.
    """
    rows, terms, columns = a.shape[1], a.shape[2], b.shape[2]
    if a.shape[0] != clients or not terms or not a.is_floating_point():
        return NotImplemented
    if terms <= _MOST_TERMS:
        a, b = in_memory(a), in_memory(b)
        return reduce(torch.add, (a[:, :, k, None] * b[:, k, None] for k in range(terms)))
    few_numbers = rows * columns <= _MOST_SUMS
    if not (few_numbers and terms <= _SHORT_SUM):
        if columns < rows and _has_few_rows(b.transpose(1, 2), a.transpose(1, 2)):
            return torch.stack(_sum_by_row(b.transpose(1, 2), a.transpose(1, 2)), 2)
        if rows <= columns and _has_few_rows(a, b):
            # Weights in memory row by row, b transposed, have been written in a loop as long as
            # that of these sums. Both in one would need the minibatches of two steps, too many for
            # a cache, so the first column is summed apart.
            parts = (b,) if b.is_contiguous() else (b[:, :, :1], b[:, :, 1:])
            return torch.cat([torch.stack(_sum_by_row(a, part), 1) for part in parts], 2)
    if few_numbers:
        return (in_memory(a)[:, :, None] * in_memory(b.transpose(1, 2))[:, None]).sum(-1)
    return NotImplemented


def _products(clients: int, a: Tensor, b: Tensor) -> Any:
    """Return products of matrices as `_sum_products` does, or that of one client with oneDNN."""
    found = _sum_products(clients, a, b)
    if found is NotImplemented and len(a) == clients == 1:
        found = _multiply_by_onednn(a[0], b[0])
        return found if found is NotImplemented else found[None]
    return found


def _product(a: Tensor, b: Tensor) -> Any:
    """Return a product of two matrices as `_sum_products` does, or with oneDNN."""
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

    It takes the rows of a and the columns of b from memory one after another. To copy them there
    takes as long as is saved in the product with some fifty columns, or rows.
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
    """Return whether the sums for each row of a, (S, n, k), are computed faster side by side."""
    row_bytes = a.shape[2] * a.element_size()
    cached = b.is_contiguous() or a.shape[1] * row_bytes <= _CACHE_BYTES
    return 1 < a.shape[1] <= _MOST_ROWS and cached and a.dtype in _PRECISE


def _sum_by_row(a: Tensor, b: Tensor) -> list[Tensor]:
    """Return each row of the products of a, (S, n, k), with b, (S, k, m): n times (S, m)."""
    rows = in_memory(a).unbind(1)
    if b.is_contiguous():
        return [(row[:, :, None] * b).sum(1) for row in rows]
    return [(row[:, None] * b.transpose(1, 2)).sum(-1) for row in rows]


def _sum_bias_apart(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    *settings: Any,
) -> Any:
    """Return the gradients of a convolution, that of its bias as a sum which the compiler writes.

    oneDNN adds up the pixels in a loop of its own, which takes longer.
    """
    *others, (images, kernel, bias) = settings
    if not bias:
        return NotImplemented
    backward = torch.ops.aten.convolution_backward.default
    mask = [images, kernel, False]
    dx, d_weight, _ = backward(gradient, x, weight, bias_sizes, *others, mask)
    return dx, d_weight, gradient.sum([0, *range(2, gradient.dim())])


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

    The compiler would add the gradient of each window to one of its pixels, a number at a time.
    Here every pixel looks again which of its window is the maximum, many pixels at once.
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
        larger = (pixel > largest) | (pixel != pixel)  # the first of equal ones; or NaN
        largest = torch.where(larger, pixel, largest)
        place = torch.where(larger, float(k), place)
    if memory_format(images) == torch.channels_last:
        # each window's gradient is read for all of its pixels, many channels at once
        gradient = in_memory(gradient.contiguous(memory_format=torch.channels_last))
    places = torch.arange(rows * columns, device=images.device).view(rows, 1, columns)
    chosen = in_memory(place)[..., :, None, :, None] == places
    zero = gradient.new_zeros(())
    return torch.where(chosen, gradient[..., :, None, :, None], zero).reshape(images.shape)


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

    The compiler would treat the channels of a group together, which are often fewer than fit into a
    register. Here all sums are over the pixels of each channel, and small products of matrices
    carry them to the groups and back; so one number that is not finite spoils all groups of its
    sample.
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
    """Return which channels belong to which groups, 0 or 1, shape (C, G)."""
    group = torch.arange(channels, device=x.device) // (channels // groups)
    found: Tensor = group[:, None] == torch.arange(groups, device=x.device)
    return found.to(_precise(x).dtype)


def _weighted(to_groups: Tensor, weight: Tensor | None) -> Tensor:
    return to_groups if weight is None else to_groups * weight[:, None]


def _precise(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 if its numbers are shorter: sums need it."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _per_pixel(factors: Tensor, x: Tensor) -> Tensor:
    """Return factors of channels, (N, C), to be multiplied with x, (N, C, ...)."""
    return factors.reshape(*factors.shape, *(1,) * (x.dim() - 2))
