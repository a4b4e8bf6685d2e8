"""Storage on the client's disk: the tensors of each round that may still be needed."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedtide.algorithms.fedau import MeanInterval
from fedtide.atomic_io import write_atomically
from fedtide.flower.protocol import TrainRequest, Update
from fedtide.problems.layout import Params

_LONGEST_FOLDER = 200  # characters; file systems allow 255
_IGNORES_CASE = sys.platform in ("darwin", "win32")  # "A" is the folder "a", on Windows also "a."


class LostMemoryError(Exception):
    """The client lacks its last update that counted."""


def client_folder(root: Path, name: str) -> Path:
    """Return the folder directly below `root` for the memory of the client of this name.

    >>> [client_folder(Path("memory"), name).name for name in ("site-a", "a/b", "..")]
    ['site-a', 'a%2Fb', '%2E%2E']
    """
    folder = quote(name, "")
    if not folder.strip("."):
        folder = folder.replace(".", "%2E")
    is_unique = not _IGNORES_CASE or name == name.lower().rstrip(".")
    if len(folder) > _LONGEST_FOLDER or not is_unique:
        folder = sha256(name.encode()).hexdigest()
    return root / folder


class ClientStore:
    """Tensors in a folder, one file for each round.

    Args:
        folder: created when needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, t: int, tensors: Params) -> None:
        """Write the tensors of round t atomically."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        write = partial(safetensors.torch.save_file, contiguous)
        write_atomically(self._path(t), write, field="client")

    def load(self, t: int) -> dict[str, Tensor] | None:
        """Return the tensors of round t; None: missing or damaged."""
        try:
            return safetensors.torch.load_file(self._path(t))
        except (OSError, SafetensorError):
            return None

    def remove_except(self, t: int) -> None:
        """Remove the tensors of all rounds but t and the last one before it.

        The one before is needed if the server loses its newest checkpoint and repeats the round.
        """
        stems = [path.stem for path in self._folder.glob("*.safetensors")]
        rounds = sorted(int(stem) for stem in stems if stem.isdecimal())
        kept = {t, *[earlier for earlier in rounds if earlier < t][-1:]}
        for other in rounds:
            if other not in kept:
                self._path(other).unlink()

    def _path(self, t: int) -> Path:
        return self._folder / f"{t}.safetensors"


def encode_update(
    update: Update, request: TrainRequest, folder: Path, model: Params | None = None
) -> Update:
    """Return an update in the form that the request asks for (see `ClientSideMemory`).

    When this returns, before the update is sent, the disk holds what the client needs next in
    either case: if the update counts, and if it is lost.

    Args:
        update: Δ as trained.
        request: the server's.
        folder: of this client in this federation.
        model: the model received, whose dtypes the server expects of updates; None: those of Δ.

    Raises:
        LostMemoryError: the last update that counted is needed, and missing on the disk.
    """
    store = ClientStore(folder)
    store.remove_except(request.accepted_round)
    if request.form.startswith("fedau-"):
        weight = _fedau_weight(request, store)
        return replace(update, update={name: weight * t for name, t in update.update.items()})
    return _difference(update, request, store, dict(update.update) | dict(model or {}))


def _difference(update: Update, request: TrainRequest, store: ClientStore, like: Params) -> Update:
    """Return y new - y old, with y = Δ for MIFA and Δ / γ for FedLaAvg.

    y old is what the server has for this client: the sum of all differences as sent, that is,
    rounded. If it were the exact value on the client, the rounding error of each difference, such
    as that of a single huge update, would stay in the server's sum for good.
    """
    scale = 1.0 / update.lr if request.form == "fedlaavg" else 1.0
    new = {name: (scale * tensor).detach().double() for name, tensor in update.update.items()}
    old = {name: torch.zeros_like(tensor) for name, tensor in new.items()}
    if request.accepted_round >= 0:
        saved = store.load(request.accepted_round)
        if saved is None or saved.keys() != new.keys():
            raise LostMemoryError
        old = saved
    sent = {name: (new[name] - old[name]).to(like[name].dtype) for name in new}
    store.save(request.round, {name: old[name] + sent[name].double() for name in new})
    return replace(update, update=sent)


def _fedau_weight(request: TrainRequest, store: ClientStore) -> float:
    """Return FedAU's ω of this round, from the rounds in which this client took part."""
    cutoff, first = int(request.form.removeprefix("fedau-")), 0
    intervals = MeanInterval.empty(1, cutoff)
    if request.accepted_round >= 0:
        saved = store.load(request.accepted_round)
        first = request.accepted_round + 1 if saved is None else int(saved["first"])
        if saved is not None:
            intervals = MeanInterval(cutoff, saved["last"], saved["closed"], saved["length"])
    this, t = torch.zeros(1, dtype=torch.int64), request.round - first
    weight = float(intervals.mean_interval(t, this))
    intervals = intervals.record(t, this)
    state = {
        "first": torch.tensor(first),
        "last": intervals.last_seen,
        "closed": intervals.closed,
        "length": intervals.length,
    }
    store.save(request.round, state)
    return weight
