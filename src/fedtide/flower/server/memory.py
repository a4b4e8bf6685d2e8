"""Settings of this process that keep the memory and the pauses of a round small."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def return_freed_memory() -> None:
    """Let the C library give freed blocks of 1 MB and more back to the system at once.

    Flower receives replies in short-lived threads, and glibc would keep the memory of each thread
    for further ones: with large models twice what a round needs. Elsewhere nothing is changed.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc; the last on Windows
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1_000_000)


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Let garbage collections pass over all objects that exist already.

    The messages of a round to thousands of clients set off several full collections, each of which
    would look at every object of every module that is loaded. Cycles of older objects that become
    garbage meanwhile are freed afterwards.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
