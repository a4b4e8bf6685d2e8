"""The folder in which results that take long to compute are kept from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder FEDTIDE_CACHE, else fedtide in XDG_CACHE_HOME, else in ~/.cache.

    It need not exist, and may be deleted at any time.
    """
    if folder := os.environ.get("FEDTIDE_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedtide"
