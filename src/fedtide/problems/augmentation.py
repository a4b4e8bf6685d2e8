"""Random augmentations of the images in a minibatch, with independent draws for each sample.

Colour augmentations work on integer pixels 0..255, as in image programs; Wang & Ji (2024) apply
them to CIFAR-100 before the crop and the flip. Geometric augmentations work on standardised images.
Each function takes images of shape (M, C, H, W) and one random word per image, shape (M,); all but
`pad_crop` and `jitter` change an image with probability 1/2 (the lower half of the words).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.datasets.catalogue import PixelStandardisation
from fedtide.problems.device_random import WORDS, words

_MARGIN = 4
_JITTER = 0.05
_BITS = 2
_HALF_WORDS = 1 << 16
_STREAM = 1 << 16  # dropout layers draw from the same keys, on streams below this one


def sharpen(pixels: Tensor, draw: Tensor) -> Tensor:
    """Double each pixel's difference from the mean of its 3×3 neighbourhood.

    The pixel itself counts 5 of 13 in the mean; the border stays unchanged.
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
    return _apply_to_half(draw, sharp, pixels)


def jitter(pixels: Tensor, draw: Tensor) -> Tensor:
    """Scale each image by 0.95 to 1.05 and rotate its hue by up to 1/20 of the circle, uniformly.

    The low half of the word's bits gives the scale, the high half the rotation. Grey images have no
    hue.
    """
    scale, turn = (
        _JITTER * (2.0 * part / (_HALF_WORDS - 1) - 1)[:, None, None]
        for part in (draw % _HALF_WORDS, draw // _HALF_WORDS)
    )
    brighter = ((1 + scale)[:, None] * pixels).clamp(max=255).long()
    return _rotate_hue(brighter, turn) if pixels.shape[1] == 3 else brighter


def _rotate_hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Add `turn`, a fraction of the circle, to the hue of RGB images."""
    colours = pixels.to(turn.dtype)
    red, green, blue = colours.unbind(1)
    value, chroma = colours.amax(1), colours.amax(1) - colours.amin(1)
    spread = chroma.clamp(min=1)  # where it is 0 the hue has no effect
    sixth = torch.where(
        red == value,
        (green - blue) / spread,
        torch.where(green == value, 2 + (blue - red) / spread, 4 + (red - green) / spread),
    )
    channels = []
    for offset in (5, 3, 1):
        k = (offset + sixth + 6 * turn) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    # floor(255.999 · fraction) returns the same integer where the hue did not change
    return (torch.stack(channels, 1) * (255.999 / 255)).clamp(max=255).long()


def posterize(pixels: Tensor, draw: Tensor) -> Tensor:
    """Keep the 2 highest bits of each value."""
    return _apply_to_half(draw, pixels >> (8 - _BITS) << (8 - _BITS), pixels)


def equalize(pixels: Tensor, draw: Tensor) -> Tensor:
    """Equalise the histogram of each channel over 0..255."""
    values = pixels.flatten(2).flatten(0, 1)
    counts = values.new_zeros(len(values), 256).scatter_add_(1, values, torch.ones_like(values))
    highest = counts.gather(1, values.amax(1, keepdim=True))
    step = (values.shape[1] - highest) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    spread = torch.where(step > 0, table.gather(1, values), values)
    return _apply_to_half(draw, spread.view_as(pixels), pixels)


def pad_crop(x: Tensor, draw: Tensor) -> Tensor:
    """Pad each image with 4 zeros on every side and crop a random window of the original size.

    A zero is the mean colour after standardisation. The 81 windows are equally likely.
    """
    height, width = x.shape[-2:]
    window = (draw * (2 * _MARGIN + 1) ** 2) // WORDS
    top, left = window // (2 * _MARGIN + 1), window % (2 * _MARGIN + 1)
    rows = top[:, None, None] + torch.arange(height, device=x.device)[:, None]
    columns = left[:, None, None] + torch.arange(width, device=x.device)
    pixels = (rows * (width + 2 * _MARGIN) + columns).flatten(1)
    padded = pad(x, (_MARGIN,) * 4).flatten(2)
    return padded.gather(2, pixels[:, None].expand(-1, x.shape[1], -1)).view_as(x)


def flip(x: Tensor, draw: Tensor) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    return _apply_to_half(draw, x.flip(-1), x)


def _apply_to_half(draw: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    """Return the changed image where the draw is below 2³¹, the original elsewhere.

    Args:
        draw: a word for each image, shape (M,).
        changed, images: shape (M, C, H, W).
    """
    return torch.where((draw < WORDS // 2)[:, None, None, None], changed, images)


Augmentation = Callable[[Tensor, Tensor], Tensor]

COLOURS: dict[str, Augmentation] = {
    "sharpen": sharpen,
    "jitter": jitter,
    "posterize": posterize,
    "equalize": equalize,
}
"""The colour augmentations by name; `augment` lists them first."""

GEOMETRIC: dict[str, Augmentation] = {"flip": flip, "pad-crop": pad_crop}
"""The geometric augmentations by name."""


def check_augmentations(names: Sequence[str]) -> None:
    """Check that all names are known, and that colour augmentations come first.

    Raises:
        InvalidInputError: an unknown name, or a colour augmentation after a geometric one, whose
            padding is not a colour.
    """
    for name in names:
        if name not in COLOURS and name not in GEOMETRIC:
            near = did_you_mean(name, [*COLOURS, *GEOMETRIC])
            raise InvalidInputError(f"augment: unknown {name!r}; {near}")
    for before, name in pairwise(names):
        if before in GEOMETRIC and name in COLOURS:
            raise InvalidInputError(f"augment: {name!r} changes colours; list it before {before!r}")


def changes_colours(names: Sequence[str]) -> bool:
    """Return whether a colour augmentation is among `names`; it needs pixels of 0..255."""
    return any(name in COLOURS for name in names)


def augment(
    x: Tensor, names: Sequence[str], keys: Tensor, standard: PixelStandardisation | None = None
) -> Tensor:
    """Return the minibatches x with these augmentations applied one after another.

    Every sample has its own draws, as the papers describe; the authors' programs draw one window
    and one flip for a whole minibatch. A draw is a function of the key of (client, step), the
    position of the sample in its minibatch, and the position of the augmentation in `names`.

    Args:
        x: standardised images, shape (..., B, C, H, W), such as (S, B, C, H, W) for a cohort.
        names: which augmentations, in order; `check_augmentations` accepts them.
        keys: a random word for every client and step, shape (...).
        standard: how x was computed from pixels; required by colour augmentations.
    """
    samples = torch.arange(x.shape[-4], device=x.device)
    draws = [words(keys[..., None], _STREAM + n, samples).flatten() for n in range(len(names))]
    images = x.flatten(0, -4)
    if colours := sum(name in COLOURS for name in names):
        assert standard is not None
        pixels = standard.pixels(images)
        for name, draw in zip(names[:colours], draws[:colours], strict=True):
            pixels = COLOURS[name](pixels, draw)
        images = standard.apply(pixels)
    for name, draw in zip(names[colours:], draws[colours:], strict=True):
        images = GEOMETRIC[name](images, draw)
    return images.view_as(x)
