"""Checkpoints: one safetensors file each, verified by a checksum; at least two are kept."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedtide.atomic_io import write_atomically
from fedtide.simulation.run_folder import numbered

_LARGEST_HEADER = 10_000_000
"""The most bytes of facts kept in the header, which safetensors limits to 100 MB with escapes."""
_FACTS = "_facts"
"""The name of the tensor that holds larger facts, as UTF-8."""

_COPIES = sys.platform == "win32"
"""Whether to copy tensors out of a checkpoint: Windows cannot replace a file that is mapped."""

_logger = logging.getLogger("fedtide")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `round` rounds.

    Args:
        round: the number of completed rounds.
        tensors: all tensors of the state.
        facts: everything else, as JSON.
    """

    round: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save(
    folder: Path, checkpoint: Checkpoint, field: str = "out", keep_every: int | None = None
) -> None:
    """Write a checkpoint; remove all but the last two and those of every `keep_every`-th round.

    Errors name `field`.
    """
    tensors = {name: t.detach().contiguous().cpu() for name, t in checkpoint.tensors.items()}
    facts = json.dumps({"round": checkpoint.round, **checkpoint.facts})
    metadata = {"facts": facts, "checksum": _checksum(tensors, facts)}
    if len(facts) > _LARGEST_HEADER:  # JSON as json.dumps writes it is ASCII
        del metadata["facts"]
        tensors[_FACTS] = torch.from_numpy(np.frombuffer(facts.encode(), dtype=np.uint8).copy())
    write_atomically(
        folder / f"{checkpoint.round:09d}.safetensors",
        lambda path: safetensors.torch.save_file(tensors, path, metadata),
        field,
    )
    for old in numbered(folder, "safetensors")[:-2]:
        if keep_every is None or int(old.stem) % keep_every:
            with suppress(PermissionError):  # on Windows, if a backup is reading the file
                old.unlink()


def load_newest(
    folder: Path, is_usable: Callable[[Checkpoint], bool] = lambda checkpoint: True
) -> Checkpoint | None:
    """Return the newest intact and usable checkpoint, or None.

    A warning (logger "fedtide") names every checkpoint that is skipped.
    """
    for path in reversed(numbered(folder, "safetensors")):
        checkpoint = load(path)
        if checkpoint is not None and is_usable(checkpoint):
            return checkpoint
        _logger.warning(
            "%s, or the log that it relies on, is damaged; continuing from the checkpoint before "
            "it, or from the beginning if it was the first",
            path,
        )
    return None


def load(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a file, or None if the file is damaged."""
    try:
        tensors = safetensors.torch.load_file(path)  # mapped: they take no memory until used
        if _COPIES:
            tensors = {name: t.clone() for name, t in tensors.items()}
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError):
        return None
    text = metadata.get("facts", "")
    if "facts" not in metadata and _FACTS in tensors:
        text = tensors.pop(_FACTS).numpy().tobytes().decode("ascii", errors="replace")
    if metadata.get("checksum") != _checksum(tensors, text):
        return None
    facts = json.loads(text)
    return Checkpoint(facts.pop("round"), tensors, facts)


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return the SHA-256 of the names, values and facts of a checkpoint."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
