"""Decoding of image files to arrays, cached on disk because it takes seconds."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedtide.cache_folder import cache_folder
from fedtide.errors import InvalidInputError

Pixels = NDArray[np.uint8]

_DECODING = 2
"""The version of the cache's contents: change it when a file is decoded to other pixels."""


def decode_images(images: Sequence[bytes | Image.Image | None]) -> Pixels:
    """Return the images as one array of shape (n, C, H, W): C is 1 for grey images, else 3.

    Of images with 16 bits per channel, the upper 8 bits are kept.

    Args:
        images: the contents of image files (PNG, JPEG, …), or images of Pillow, one per sample; the
            first determines the number of channels and the size.

    Raises:
        InvalidInputError: an image is missing, broken, of another size than the first, or holds
            32 bits per channel.
    """
    first = _open_image(images[0], 0)
    mode = "L" if first.mode in ("1", "L", "LA") or _has_16_bits(first) else "RGB"
    pixels = np.empty((len(images), first.height, first.width, len(mode)), dtype=np.uint8)
    for number, content in enumerate(images):
        image = _open_image(content, number)
        if image.size != first.size:
            raise InvalidInputError(
                f"sample {number} is {image.width}×{image.height} pixels and the first "
                f"{first.width}×{first.height}; scale all to the same size"
            )
        try:
            if _has_16_bits(image):  # which `convert` would clip to white
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            converted = image if image.mode == mode else image.convert(mode)
            pixels[number] = np.asarray(converted).reshape(pixels.shape[1:])
        except OSError as error:
            raise InvalidInputError(
                f"sample {number} is broken ({error}); encode it again"
            ) from error
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


def _open_image(content: bytes | Image.Image | None, number: int) -> Image.Image:
    if content is None:
        raise InvalidInputError(f"sample {number} has no image; remove its row")
    image = content if isinstance(content, Image.Image) else _read_image(content, number)
    if image.mode in ("I", "F"):
        raise InvalidInputError(
            f"sample {number} has 32 bits per pixel (mode {image.mode}), whose values for "
            "black and white are unknown; convert it to 8 bits, or give lists of numbers"
        )
    return image


def _read_image(content: bytes, number: int) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content))
    except OSError as error:
        raise InvalidInputError(
            f"sample {number} is not an encoded image (it begins with {content[:8]!r}); "
            "write PNG or JPEG bytes, and text as str"
        ) from error


def _has_16_bits(image: Image.Image) -> bool:
    """Return whether an image is grey with 16 bits per pixel."""
    return image.mode.startswith("I;16")


def decode_cached(file: Path, column: str, decode: Callable[[], Pixels]) -> Pixels:
    """Return the result of `decode` for a column of this file, from the cache if it is there.

    The cache is in the folder of `fedtide.cache_folder`. An entry is valid while the file's path,
    size and modification time are the same. If the folder cannot be written, nothing is cached.
    """
    status = file.stat()
    identity = f"{_DECODING} {file.resolve()} {status.st_size} {status.st_mtime_ns} {column}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    entry = cache_folder() / f"pixels-{name}.npy"
    with suppress(OSError, ValueError, EOFError):
        return np.asarray(np.load(entry, allow_pickle=False))
    pixels = decode()
    with suppress(OSError):
        _write(entry, pixels)
    return pixels


def _write(entry: Path, pixels: Pixels) -> None:
    """Write the array atomically; other processes may write the same entry."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=entry.parent)
    try:
        with open(descriptor, "wb") as file:
            np.save(file, pixels)
        os.replace(draft, entry)  # closed, because Windows cannot rename an open file
    except OSError:
        os.unlink(draft)
        raise
