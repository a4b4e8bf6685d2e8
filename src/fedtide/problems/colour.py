"""Random changes to the colours of images, in the whole pixel values of image programs.

These are the augmentations that paper 001 puts before the crop and the mirroring on CIFAR-100. The
pixels are integers of 0..255, shape (M, C, H, W), and each image has a draw of its own: a word, by
whose lower half (probability 1/2) all but `jitter` choose whom to change.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedtide.problems.device_random import apply_to_half

_JITTER = 0.05
_BITS = 2
_HALF_WORDS = 1 << 16


def sharpen(pixels: Tensor, draw: Tensor) -> Tensor:
    """Move each pixel away from the mean of its neighbourhood by as much as it differs.

    The neighbourhood is 3×3, the pixel itself counts 5 of 13; the border stays as it is.
    """
    height, width = pixels.shape[-2:]
    if min(height, width) < 3:
        return pixels
    inner = pixels[..., 1:-1, 1:-1]
    rows = pixels[..., :-2, :] + pixels[..., 1:-1, :] + pixels[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    blurred = (2 * (around + 4 * inner) + 13) // 26  # the nearest integer to the mean
    sharp = pixels.clone()
    sharp[..., 1:-1, 1:-1] = (2 * inner - blurred).clamp(0, 255)
    return apply_to_half(draw, sharp, pixels)


def jitter(pixels: Tensor, draw: Tensor) -> Tensor:
    """Scale each image by 0.95 to 1.05 and turn its hue by up to 1/20 of the circle, uniformly.

    The two halves of a word decide. Grey images have no hue.
    """
    scale, turn = (
        _JITTER * (2.0 * part / (_HALF_WORDS - 1) - 1)[:, None, None]
        for part in (draw % _HALF_WORDS, draw // _HALF_WORDS)
    )
    brighter = ((1 + scale)[:, None] * pixels).clamp(max=255).long()
    return _turned(brighter, turn) if pixels.shape[1] == 3 else brighter


def _turned(pixels: Tensor, turn: Tensor) -> Tensor:
    """Add `turn`, a share of the circle, to the hue of colours in red, green and blue."""
    colours = pixels.to(turn.dtype)
    red, green, blue = colours.unbind(1)
    value, chroma = colours.amax(1), colours.amax(1) - colours.amin(1)
    spread = chroma.clamp(min=1)  # where it is 0 the hue has no effect
    sixth = torch.where(
        red == value,
        (green - blue) / spread,
        torch.where(green == value, 2 + (blue - red) / spread, 4 + (red - green) / spread),
    )
    turned = []
    for place in (5, 3, 1):
        k = (place + sixth + 6 * turn) % 6
        turned.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    # as whole numbers: 0..1 times 255.999, rounded down, which returns what was not turned
    return (torch.stack(turned, 1) * (255.999 / 255)).clamp(max=255).long()


def posterize(pixels: Tensor, draw: Tensor) -> Tensor:
    """Keep the 2 highest bits of each value."""
    return apply_to_half(draw, pixels >> (8 - _BITS) << (8 - _BITS), pixels)


def equalize(pixels: Tensor, draw: Tensor) -> Tensor:
    """Spread the values of each channel so that all of 0..255 come about equally often."""
    values = pixels.flatten(2).flatten(0, 1)
    counts = values.new_zeros(len(values), 256).scatter_add_(1, values, torch.ones_like(values))
    highest = counts.gather(1, values.amax(1, keepdim=True))
    step = (values.shape[1] - highest) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    spread = torch.where(step > 0, table.gather(1, values), values)
    return apply_to_half(draw, spread.view_as(pixels), pixels)


COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sharpen": sharpen,
    "jitter": jitter,
    "posterize": posterize,
    "equalize": equalize,
}
"""What `augment` may list before anything else, by name."""
