"""Random changes to the images of a minibatch, drawn for each sample of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.colour import COLOURS
from fedtide.problems.datasets.catalogue import PixelStandardisation
from fedtide.problems.device_random import WORDS, apply_to_half, words

_MARGIN = 4
_STREAM = 1 << 16  # away from the streams of the dropout layers, which draw on the same keys


def pad_crop(x: Tensor, draw: Tensor) -> Tensor:
    """Surround each image by 4 zeros on every side and cut a window of its old size at random.

    Args:
        x: images after normalisation (a zero is then the mean colour), shape (M, C, H, W).
        draw: a word for each image, shape (M,); the 81 windows are equally likely.
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
    """Mirror each image left to right with probability 1/2.

    Args:
        x: images, shape (M, C, H, W).
        draw: a word for each image, shape (M,); the lower half of the words mirrors.
    """
    return apply_to_half(draw, x.flip(-1), x)


PLACES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "flip": flip,
    "pad-crop": pad_crop,
}
"""What `augment` may list after the colours, by name."""


def check_augmentations(names: Sequence[str]) -> None:
    """Check that all names are known, and that colours come first.

    Raises:
        InvalidInputError: an unknown name, or a colour after a crop, whose margin has no colour.
    """
    for name in names:
        if name not in COLOURS and name not in PLACES:
            near = did_you_mean(name, [*COLOURS, *PLACES])
            raise InvalidInputError(f"augment: unknown {name!r}; {near}")
    for before, name in pairwise(names):
        if before in PLACES and name in COLOURS:
            raise InvalidInputError(f"augment: {name!r} changes colours; list it before {before!r}")


def changes_colours(names: Sequence[str]) -> bool:
    """Say whether any of these changes colours, for which it needs to know the pixels."""
    return any(name in COLOURS for name in names)


def augmented(
    x: Tensor, names: Sequence[str], keys: Tensor, standard: PixelStandardisation | None = None
) -> Tensor:
    """Return the minibatches x with these augmentations applied one after another.

    The authors' programs of the papers draw one window and one mirroring for a whole minibatch;
    here every sample has its own, as the papers say. A draw is a function of the key of (client,
    step), the place of the sample in its minibatch, and the place of the augmentation in `names`.

    Args:
        x: images, shape (I, S, B, C, H, W).
        names: which augmentations, in order, as `check_augmentations` wants them.
        keys: a word for every client and step, shape (I, S).
        standard: how x was made of pixels; changes of colours need it.
    """
    samples = torch.arange(x.shape[2], device=x.device)
    draws = [words(keys[..., None], _STREAM + n, samples).flatten() for n in range(len(names))]
    images = x.flatten(0, 2)
    if colours := sum(name in COLOURS for name in names):
        assert standard is not None
        pixels = standard.pixels(images)
        for name, draw in zip(names[:colours], draws[:colours], strict=True):
            pixels = COLOURS[name](pixels, draw)
        images = standard.apply(pixels)
    for name, draw in zip(names[colours:], draws[colours:], strict=True):
        images = PLACES[name](images, draw)
    return images.view_as(x)
