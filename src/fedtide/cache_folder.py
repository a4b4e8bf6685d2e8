"""The folder in which results that take long to compute are kept from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder FEDTIDE_CACHE, else fedtide in XDG_CACHE_HOME, else in ~/.cache.

    It need not exist, and may be deleted at any time. Without a home folder, as users of containers
    may be, it is a path at which nothing can be kept.
    """
    if folder := os.environ.get("FEDTIDE_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "fedtide"
    try:
        return Path.home() / ".cache" / "fedtide"
    except RuntimeError:  # no HOME, and a user without an entry in /etc/passwd
        return Path(os.devnull) / "fedtide"
