"""Atomic file writes: a crash, a full disk or a concurrent reader never sees a partial file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from safetensors import SafetensorError

from fedtide.errors import InvalidInputError
from fedtide.yaml_text import dump

DRAFT_PATTERNS = (".*.part", ".tmp??????")
"""Glob patterns of unfinished files that `write_atomically` and safetensors leave."""

_HINT = "check its folder"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_IS_WINDOWS = os.name == "nt"
_PATIENCE = (0.01, 0.05, 0.2, 0.5, 1.0)  # seconds between attempts to replace a file that is open
_WRITE_ERRORS = (OSError, SafetensorError, pl.exceptions.ComputeError)


def draft_path(path: Path) -> Path:
    """Return the temporary path to which a file is written before it is renamed to `path`."""
    return path.with_name(f".{path.name}.part")


def write_atomically(
    path: Path, write: Callable[[Path], Any], field: str = "out", hint: str = _HINT
) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it to `path`.

    A symbolic link stays, and its target is replaced; an existing file keeps its mode. A device or
    a named pipe is written to, since it must not be replaced.

    Args:
        path: the file; its folder is created if the folder above exists.
        write: writes the content to the path that it is given.
        field: the field that an error names.
        hint: the fix that an error suggests, unless the disk is full.

    Raises:
        InvalidInputError: the disk is full or the folder is not writable; nothing is left behind.

    Example:
        >>> write_text(Path("no/such/folder/a.txt"), "", field="json")
        Traceback (most recent call last):
        fedtide.errors.InvalidInputError: json: no...a.txt cannot be written (...); ...
    """
    try:
        if is_special(path):
            _write_through(path, write)
        else:
            _replace(Path(os.path.realpath(path)), write)
    except _WRITE_ERRORS as error:
        raise unwritable(field, path, error, hint) from None


def is_special(path: Path) -> bool:
    """Return whether something other than a regular file exists at `path`, such as a named pipe."""
    return path.exists() and not path.is_file()


def _write_through(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file, as libraries seek or rename, and copy it into `path`."""
    with TemporaryDirectory() as folder:
        draft = Path(folder) / "draft"
        write(draft)
        with draft.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    draft = draft_path(path)
    try:
        path.parent.mkdir(exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        if mode is not None:  # the new content must not be readable by more users than the old
            draft.unlink(missing_ok=True)
            draft.touch(0o600)
        write(draft)
        with draft.open("r+b") as file:  # Windows syncs no file that is open for reading alone
            os.fsync(file.fileno())
        if mode is not None:
            draft.chmod(mode)
        _rename(draft, path)
        _sync_folder(path.parent)
    except _WRITE_ERRORS:
        with suppress(OSError):  # the folder may be a file
            draft.unlink(missing_ok=True)
        raise


def _rename(draft: Path, path: Path) -> None:
    """Rename a file to `path`; on Windows, wait a moment for processes that have that file open.

    There a file cannot be replaced while, for instance, a report or a virus scanner reads it.
    """
    for pause in _PATIENCE if _IS_WINDOWS else ():
        with suppress(PermissionError):
            draft.replace(path)
            return
        time.sleep(pause)
    draft.replace(path)


def _sync_folder(folder: Path) -> None:
    """Make sure that a renamed file keeps its new name even if the machine loses power now."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    with suppress(OSError):  # some network file systems offer no such thing
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unwritable(field: str, path: Path, error: Exception, hint: str = _HINT) -> InvalidInputError:
    """Return the error for a file or folder that cannot be written.

    Args:
        field: the field that it names.
        path: the file or folder.
        error: the cause; libraries in Rust give it in the message only, without an error number.
        hint: the fix that it suggests, unless the disk is full.

    >>> unwritable("out", Path("a"), OSError(28, "No space left on device"), "choose another")
    InvalidInputError('out: a cannot be written (No space left on device); free some disk space,
    then resume or repeat')
    """
    reason = getattr(error, "strerror", None) or str(error)
    is_full = getattr(error, "errno", None) in _FULL  # Windows has words of its own
    if is_full or any(os.strerror(code) in reason for code in _FULL):
        hint = "free some disk space, then resume or repeat"
    return InvalidInputError(f"{field}: {path} cannot be written ({reason}); {hint}")


def make_folder(folder: Path, field: str = "out") -> None:
    """Create a folder and its missing parents.

    Raises:
        InvalidInputError: the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(field, folder, error, "choose another") from None


def write_text(path: Path, text: str, field: str = "out", hint: str = _HINT) -> None:
    """Write text atomically."""
    content = text.encode()  # equal bytes on all systems: no \r\n
    write_atomically(path, lambda draft: draft.write_bytes(content), field, hint)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as JSON atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_yaml(path: Path, content: dict[str, Any], field: str = "out", hint: str = _HINT) -> None:
    """Write a mapping as YAML atomically, keeping the order of its keys."""
    write_text(path, dump(content), field, hint)


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a table as Parquet atomically; equal rows give equal bytes."""
    write_atomically(path, lambda draft: frame.rechunk().write_parquet(draft))
