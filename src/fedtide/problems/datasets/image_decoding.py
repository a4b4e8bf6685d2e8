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


def decode_images(images: Sequence[bytes | Image.Image]) -> Pixels:
    """Return the images as one array of shape (n, C, H, W): C is 1 for grey images, else 3.

    Args:
        images: the contents of image files (PNG, JPEG, …), or images of Pillow, one per sample; the
            first determines the number of channels and the size.

    Raises:
        InvalidInputError: an image is broken, of another size than the first, or has more than 8
            bits per channel.
    """
    pixels, mode = np.empty(0, np.uint8), ""
    for number, content in enumerate(images):
        try:
            image = content if isinstance(content, Image.Image) else Image.open(io.BytesIO(content))
            if image.mode[0] in "IF":  # which `convert` would clip to white
                raise ValueError(f"mode {image.mode}; convert it to 8 bits per channel")
            if not number:
                mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
                pixels = np.empty((len(images), image.height, image.width, len(mode)), np.uint8)
            pixels[number] = np.asarray(image.convert(mode)).reshape(pixels.shape[1:])
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"sample {number} ({error}) is no image like the first; give PNG or JPEG bytes of "
                "one size, and text as str"
            ) from error
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


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
