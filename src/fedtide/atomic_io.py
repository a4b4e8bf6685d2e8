"""Atomic file writes: a crash, a full disk or a concurrent reader never sees a partial file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from safetensors import SafetensorError

from fedtide.errors import InvalidInputError

DRAFT_PATTERNS = (".*.part", ".tmp??????")
"""Glob patterns of unfinished files, of `write_atomically` and of safetensors."""


def draft_path(path: Path) -> Path:
    """Return the temporary path to which a file is written before it is renamed to `path`."""
    return path.with_name(f".{path.name}.part")


def write_atomically(
    path: Path,
    write: Callable[[Path], Any],
    field: str = "out",
    hint: str = "free some disk space and resume",
) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it to `path`.

    Args:
        path: of the file; its folder is created if only that is missing.
        write: writes the content to the path that it is given.
        field: the field that an error names.
        hint: the fix that an error suggests.

    Raises:
        InvalidInputError: the disk is full or the folder is not writable; nothing is left behind.

    Example:
        >>> write_text(Path("no/such/folder/a.txt"), "", field="json")
        Traceback (most recent call last):
        fedtide.errors.InvalidInputError: json: no/such/folder/a.txt cannot be written (...); ...
    """
    draft = draft_path(path)
    try:
        path.parent.mkdir(exist_ok=True)
        write(draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, SafetensorError, pl.exceptions.ComputeError) as error:
        with suppress(OSError):  # the folder may be a file
            draft.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInputError(f"{field}: {path} cannot be written ({reason}); {hint}") from None


def make_folder(folder: Path, field: str = "out") -> None:
    """Create a folder and its missing parents.

    Raises:
        InvalidInputError: the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{field}: {folder} cannot be written ({error.strerror}); choose another"
        ) from None


def write_text(
    path: Path, text: str, field: str = "out", hint: str = "free some disk space and resume"
) -> None:
    """Write text atomically."""
    write_atomically(path, lambda draft: draft.write_text(text, encoding="utf-8"), field, hint)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as JSON atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_yaml(
    path: Path,
    content: dict[str, Any],
    field: str = "out",
    hint: str = "free some disk space and resume",
) -> None:
    """Write a mapping as YAML atomically, keeping the order of its keys."""
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True), field, hint)


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a table as Parquet atomically; equal rows give equal bytes."""
    write_atomically(path, lambda draft: frame.rechunk().write_parquet(draft))
