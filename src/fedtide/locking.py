"""Exclusive use of a folder by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger, getLogger
from pathlib import Path

from filelock import FileLock, Timeout

from fedtide.errors import InvalidInputError

LOCK_FILE = ".lock"
"""The name of the lock file. Killed processes and some versions of filelock leave it behind: the
file by itself locks nothing, and a folder that holds only this file counts as empty."""


@contextmanager
def lock_folder(
    folder: Path,
    field: str,
    hint: str,
    patience: float = 0.0,
    logger: Logger = getLogger("fedtide"),  # noqa: B008 - the same object on every call
    mode: int = 0o777,
) -> Iterator[None]:
    """Lock a folder against other processes, and other callers in this one, during the context.

    The operating system releases the lock when the process ends, even if it is killed.

    Args:
        folder: the folder; created with its parents if missing.
        field, hint: what an error names, and what it suggests if the folder is in use.
        patience: how many seconds to wait for another run to release the folder; logged once.
        logger: for the message that this run waits.
        mode: the permissions of a newly created folder, less those of the umask.

    Raises:
        InvalidInputError: another run holds the folder, or it cannot be written.
    """
    lock = FileLock(folder / LOCK_FILE, thread_local=False)
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if patience <= 0:
                raise
            logger.info("Waiting up to %g s for another run to release %s", patience, folder)
            lock.acquire(timeout=patience)
    except Timeout:
        raise InvalidInputError(f"{field}: {folder} is in use by another run; {hint}") from None
    except (OSError, NotImplementedError) as error:  # the latter: no locks on this file system
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"{field}: {folder} cannot be written ({reason}); choose another"
        ) from None
    try:
        yield
    finally:
        lock.release()
