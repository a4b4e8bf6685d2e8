"""Writes files so that a kill, a full disk or a second reader never meets half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from safetensors import SafetensorError

from fedtide.errors import InvalidInputError

DRAFTS = (".*.part", ".tmp??????")
"""What unfinished files are called: ours, and those of safetensors inside them."""


def draft_of(path: Path) -> Path:
    """Return where a file is written before it takes its place."""
    return path.with_name(f".{path.name}.part")


def write_atomically(
    path: Path,
    write: Callable[[Path], Any],
    field: str = "out",
    hint: str = "make room and resume",
) -> None:
    """Let `write` fill a file beside `path`, then put it in its place in one step.

    Args:
        path: the file's place; its folder is made if only that is missing.
        write: is given the path to write to.
        field, hint: what the sentence names, and what it asks for, where this fails.

    Raises:
        InvalidInputError: the disk is full or the folder cannot be written; nothing is left behind.

    Example:
        >>> write_atomically(Path("no/such/folder/a.txt"), Path.touch, field="json")
        Traceback (most recent call last):
        fedtide.errors.InvalidInputError: json: no/such/folder/a.txt cannot be written (No such file or \
directory); make room and resume
    """
    draft = draft_of(path)
    try:
        path.parent.mkdir(exist_ok=True)
        write(draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, SafetensorError, pl.exceptions.ComputeError) as error:
        draft.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInputError(f"{field}: {path} cannot be written ({reason}); {hint}") from None


def make_folder(folder: Path, field: str = "out") -> None:
    """Make a folder, and those above it that are missing.

    Raises:
        InvalidInputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{field}: {folder} cannot be written ({error.strerror}); choose another"
        ) from None


def write_text(
    path: Path, text: str, field: str = "out", hint: str = "make room and resume"
) -> None:
    """Write a text, atomically."""
    write_atomically(path, lambda draft: draft.write_text(text, encoding="utf-8"), field, hint)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_yaml(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as YAML, its keys in their order, atomically."""
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a table as Parquet, atomically; the same rows give the same bytes."""
    write_atomically(path, lambda draft: frame.rechunk().write_parquet(draft))
