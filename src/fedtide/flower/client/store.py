"""What a client remembers on its own disk, by the round whose report it belongs to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedtide.algorithms.fedau import MeanInterval
from fedtide.atomic_io import write_atomically
from fedtide.flower.protocol import TrainRequest, Update
from fedtide.problems.layout import Params


class LostMemoryError(Exception):
    """The client does not have what it should remember."""


def remembered(update: Update, asked: TrainRequest, folder: Path) -> Update:
    """Return what a client sends in the form that it is asked for (see `ClientSideMemory`).

    What it will need if this report counts is on disk before the report is sent; what it would need
    if this one is lost stays there, too.

    Args:
        update: as it is.
        asked: its instructions.
        folder: of this client in this federation.

    Raises:
        LostMemoryError: the report that counted last is not on the disk, and is needed.
    """
    disk = ClientStore(folder)
    disk.keep(asked.accepted)
    if asked.form.startswith("fedau-"):
        weight = _weight(asked, disk)
        return replace(update, update={name: weight * t for name, t in update.update.items()})
    return _difference(update, asked, disk)


def _difference(update: Update, asked: TrainRequest, disk: ClientStore) -> Update:
    """Return y new - y old, with y = Δ for MIFA and Δ / γ for FedLaAvg."""
    scale = 1.0 / update.lr if asked.form == "fedlaavg" else 1.0
    new = {name: (scale * tensor).detach() for name, tensor in update.update.items()}
    old = disk.load(asked.accepted)
    if asked.accepted >= 0 and (old is None or old.keys() != new.keys()):
        raise LostMemoryError
    disk.save(asked.round, new)
    if old is None or asked.accepted < 0:
        return replace(update, update=new)
    return replace(update, update={name: new[name] - old[name] for name in new})


def _weight(asked: TrainRequest, disk: ClientStore) -> float:
    """Return FedAU's ω of this round, from the rounds in which this client took part."""
    cutoff, begun = int(asked.form.removeprefix("fedau-")), 0
    history = MeanInterval.empty(1, cutoff, torch.device("cpu"))
    if asked.accepted >= 0:
        found = disk.load(asked.accepted)
        begun = asked.accepted + 1 if found is None else int(found["begun"])
        if found is not None:
            history = MeanInterval(cutoff, found["last"], found["closed"])
    only, t = torch.zeros(1, dtype=torch.int64), asked.round - begun
    weight = float(history.mean_interval(t, only))
    history = history.record(t, only)
    state = {"last": history.last, "closed": history.closed, "begun": torch.tensor(begun)}
    disk.save(asked.round, state)
    return weight


class ClientStore:
    """Tensors in a folder, one file for each round.

    Args:
        folder: made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, t: int, tensors: Params) -> None:
        """Write what belongs to round t, at once or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save = partial(safetensors.torch.save_file, whole)
        write_atomically(self._path(t), save, field="client", hint="make room")

    def load(self, t: int) -> dict[str, Tensor] | None:
        """Return what belongs to round t; None: it is not there, or broken."""
        try:
            return safetensors.torch.load_file(self._path(t))
        except (OSError, SafetensorError):
            return None

    def keep(self, t: int) -> None:
        """Remove what belongs to other rounds than t."""
        for path in self._folder.glob("*.safetensors"):
            if path != self._path(t):
                path.unlink()

    def _path(self, t: int) -> Path:
        return self._folder / f"{t}.safetensors"
