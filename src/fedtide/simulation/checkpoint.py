"""Checkpoints: one safetensors file each, recognised by its checksum; the last two are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedtide.simulation.folder import write_atomically


@dataclass(frozen=True)
class Checkpoint:
    """A run after `round` rounds.

    Args:
        round: how many rounds have ended.
        tensors: everything that is numbers.
        facts: everything else, as JSON.
    """

    round: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and remove all but the last two."""
    tensors = {name: t.detach().contiguous().cpu() for name, t in checkpoint.tensors.items()}
    facts = json.dumps({"round": checkpoint.round, **checkpoint.facts})
    metadata = {"facts": facts, "checksum": _checksum(tensors, facts)}
    write_atomically(
        folder / f"{checkpoint.round:09d}.safetensors",
        lambda path: safetensors.torch.save_file(tensors, path, metadata),
    )
    for old in _newest_first(folder)[2:]:
        old.unlink()


def load_newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is whole; None where there is none."""
    for path in _newest_first(folder):
        try:
            tensors = safetensors.torch.load_file(path)
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata()
        except (SafetensorError, OSError):
            continue
        if metadata and metadata.get("checksum") == _checksum(tensors, metadata.get("facts", "")):
            facts = json.loads(metadata["facts"])
            return Checkpoint(facts.pop("round"), tensors, facts)
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"), reverse=True)


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return a SHA-256 over the names, values and facts of a checkpoint."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
