"""The folder in which results that take long to compute are kept from one run to the next."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that names the folder of TorchInductor's compiled code."""

_FOLDER = "compiled-2"
"""The folder's name; to be changed whenever the same graph compiles to different code."""


def cache_folder() -> Path:
    """Return the folder FEDTIDE_CACHE, else fedtide in XDG_CACHE_HOME, else in ~/.cache.

    It need not exist, and may be deleted at any time. If the user has no home folder, as in some
    containers, it is a path to which nothing can be written.
    """
    if folder := os.environ.get("FEDTIDE_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "fedtide"
    try:
        return Path.home() / ".cache" / "fedtide"
    except RuntimeError:  # no HOME, and a user without an entry in /etc/passwd
        return Path(os.devnull) / "fedtide"


def keep_compiled() -> None:
    """Let TorchInductor keep what it compiles in the cache folder, if that is writable.

    Must be called before anything imports TorchInductor, which otherwise chooses a temporary
    folder. A folder chosen by the user is respected.
    """
    if COMPILED not in os.environ:
        folder = cache_folder() / _FOLDER
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                os.environ[COMPILED] = str(folder)
