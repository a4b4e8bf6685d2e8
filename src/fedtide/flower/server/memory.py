"""Process settings that reduce memory use and garbage-collection pauses in a round."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def return_freed_memory() -> None:
    """Make the C library return freed blocks of 1 MB or more to the system at once.

    Flower receives replies in short-lived threads, and glibc would keep the memory of each thread
    for later ones: with large models, twice what a round needs. Without glibc, nothing changes.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc; the last on Windows
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1_000_000)


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Exclude all existing objects from garbage collection.

    The messages of a round to thousands of clients trigger several full collections, each of which
    would visit every object of every loaded module. Cycles of existing objects that become garbage
    in the meantime are freed afterwards.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
