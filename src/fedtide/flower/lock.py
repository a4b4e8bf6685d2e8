"""One run at a time for each state."""

from __future__ import annotations

import fcntl
import time
from logging import getLogger
from pathlib import Path
from typing import IO

from fedtide.errors import InvalidInputError

log = getLogger("flwr")


def held(folder: Path, patience: float) -> IO[str]:
    """Return a file that keeps other runs out of the folder until it is closed, or we end.

    A server app may outlive its SuperLink for a while: the run that was submitted in its place
    waits until Flower has given it up.

    Args:
        folder: made if it is not there.
        patience: how many seconds to wait for another run.

    Raises:
        InvalidInputError: another run is still using it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise InvalidInputError(
            f"state: {folder} cannot be written ({error}); choose another"
        ) from None
    deadline = time.monotonic() + patience
    while not _locked(file):
        if time.monotonic() >= deadline:
            file.close()
            raise InvalidInputError(
                f"state: another run is using {folder}; stop it first (flwr stop)"
            )
        log.info("Waiting for another run to leave %s", folder)
        time.sleep(min(5.0, max(0.0, deadline - time.monotonic())))
    return file


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
