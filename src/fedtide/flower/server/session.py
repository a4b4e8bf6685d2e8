"""A federation's training: the algorithm's state and everything else that must survive a crash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from itertools import groupby
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms import Algorithm, Cohort, RoundDriver
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.atomic_io import DRAFT_PATTERNS, write_text
from fedtide.differential_privacy import shut_out
from fedtide.errors import InvalidInputError, first_line
from fedtide.flower.arrays import widen_half
from fedtide.flower.ledger.ledger import Entry
from fedtide.flower.server.node_registry import NodeRegistry
from fedtide.flower.server.saved_selection import SavedSelection
from fedtide.flower.server.state_changes import (
    add_clients,
    with_further_clients,
)
from fedtide.flower.server.validated_updates import ValidatedUpdate, stack_updates
from fedtide.locking import lock_folder
from fedtide.participation import Selection
from fedtide.population import Population
from fedtide.problems.layout import Layout
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save
from fedtide.simulation.run_folder import numbered
from fedtide.spec import fingerprint, is_data

log = getLogger("flwr")

PUBLISHED = "published"
"""The file next to the checkpoints that records how many private rounds have ended."""

_LOCK_PATIENCE = 180.0  # seconds; Flower ends a run whose server app died after about 70

_CHUNK, _CHUNK_BYTES = 64, 8_000_000
"""At most this many updates, and about this many bytes, are stacked at a time: stacking copies."""


def lock_state(folder: Path | None) -> AbstractContextManager[None]:
    """Keep other runs from the folder of a state."""
    if folder is None:
        return nullcontext()
    hint = "stop it first (flwr stop)"
    return lock_folder(folder, "state", hint, _LOCK_PATIENCE, log, mode=0o700)


class TrainingSession:
    """The training of one federation.

    Args:
        algorithm: the method.
        registry: the clients.
        layout: of the model; a saved state must have arrays of the same names and shapes.
        model: x_0, shape (d,).
        folder: where the state is saved after every round, and restored from; None: nowhere.
        selection: which clients are asked to train; None: the method's choice, or a sample.
        seed: of the selection.
        keep_every: the states after every so many rounds are kept, too; None: only the last two.

    Attributes:
        selection: the started selection. If its settings, the seed, or the number of clients
            changed, it starts from scratch.
        folder: of the state.
        layout: of the model, its arrays in the order of the first submission.
        driver: holds the algorithm's state.
        steps_taken: how many local steps of each client have counted, shape (N,).
        accepted_rounds: the round of each client's last update that counted, -1 for none,
            shape (N,).
        lr: γ of the last round in which a client reported it.
        entries: of the last round, for the ledger.
        ended_at: when the last round ended, in seconds since 1970.
        saved: the round of the newest checkpoint in the folder at the start, even if it is
            damaged; 0: none.
        published: how many private rounds had ended at the start, so that their models may be
            known, according to a file apart from the checkpoints; 0: none, or unknown.

    Raises:
        InvalidInputError: a centralised method, one for simulations only, or a folder that holds
            another federation, or cannot be written; more clients than before with a method that
            cannot add clients.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        registry: NodeRegistry,
        layout: Layout,
        model: Tensor,
        folder: Path | None = None,
        selection: Selection | None = None,
        seed: int = 0,
        keep_every: int | None = None,
    ) -> None:
        if algorithm.traits.centralised:
            raise InvalidInputError(
                "algorithm: it pools the data of all clients; choose a federated one"
            )
        if algorithm.traits.simulation_only:
            raise InvalidInputError(
                f"algorithm: {algorithm.traits.simulation_only}, which a deployment does not "
                "offer; simulate it, or choose another method"
            )
        self.registry, self.layout = registry, layout
        self.folder, self._keep_every = folder, keep_every
        population = _describe_population(registry)
        # In float16, sums over clients would stall or overflow.
        self.driver = RoundDriver(algorithm, widen_half(model), population)
        if self.driver.instruct(torch.zeros(0, dtype=torch.int64)).model.ndim > 1:
            raise InvalidInputError(
                "algorithm: its clients do not all start from the same model, which a deployment "
                "does not offer; simulate it, or choose another method"
            )
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.selection = None if selection is None else SavedSelection(selection, population, seed)
        self._selection_settings = _hash_settings((selection, seed))
        self.steps_taken = torch.zeros(registry.size, dtype=torch.int64)
        self.accepted_rounds = torch.full_like(self.steps_taken, -1)
        self.lr = 0.0
        self.entries: list[Entry] = []
        self.ended_at = 0.0
        found = [] if folder is None else numbered(folder, "safetensors")
        self.saved = int(found[-1].stem) if found else 0
        self.published = 0 if folder is None else _read_published(folder / PUBLISHED)
        if folder is not None:
            for pattern in DRAFT_PATTERNS:  # what killed processes left
                for draft in filter(Path.is_file, folder.glob(pattern)):
                    draft.unlink()
            to_tensors(self.driver.state)  # refuses what cannot be saved before clients train
            self._restore(folder)

    @property
    def round(self) -> int:
        """t, the number of rounds that have ended; it never restarts."""
        ended: int = self.driver.state.round
        return ended

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,), from which clients train."""
        model: Tensor = self.driver.state.model
        return model

    @property
    def output(self) -> Tensor:
        """The model that the algorithm recommends so far, shape (d,)."""
        return self.driver.output

    @property
    def is_finished(self) -> bool:
        """Whether further rounds cannot change the model, whoever takes part."""
        gone = shut_out(self.driver.algorithm, self.driver.state)
        return len(gone) == self.registry.size

    def select_cohort(
        self, present: list[int], sample: Callable[[list[int]], list[int]], private: bool
    ) -> Tensor:
        """Return which of the clients that are present are asked to train, shape (S,).

        Args:
            present: their numbers, sorted.
            sample: draws some of the clients; used without a selection.
            private: whether the method adds noise.
        """
        candidates = present
        if private:  # else all sampled clients might be shut out, and the round be mere noise
            candidates = sorted(self._choose(present).tolist())
        if self.selection is not None:
            chosen = self.selection.select(self.round, candidates)
        else:
            chosen = sample(candidates)
        cohort = self._choose(chosen)
        return cohort[torch.isin(cohort, torch.tensor(present))]

    def _choose(self, clients: list[int]) -> Tensor:
        """Return which clients the method asks to train if these are present, shape (S,)."""
        present = Cohort.uniform(torch.tensor(clients, dtype=torch.int64))
        return self.driver.choose_cohort(present).clients

    def end_round(self, updates: Iterable[ValidatedUpdate]) -> dict[int, float]:
        """Aggregate this round's updates, at most one of each client, and move the model.

        Updates are absorbed in the order of the clients' numbers, so that the same replies give the
        same model whatever their order of arrival.

        Returns:
            The factor with which the update of each client entered the step.

        Raises:
            InvalidInputError: the model is no longer finite; the state on the disk is the former.
        """
        used = sorted(updates, key=lambda update: update.client)
        size = min(_CHUNK, max(1, _CHUNK_BYTES // self.model.nbytes))
        for _, group in groupby(used, key=lambda update: update.lr):
            part = list(group)
            for first in range(0, len(part), size):
                chunk = part[first : first + size]
                self.driver.absorb(stack_updates(chunk, 1.0 / len(used), self.model))
        self.lr = next((u.lr for u in reversed(used) if u.lr), self.lr)
        # Before the first update, there is nothing for a learning rate to scale.
        clients, weights = self.driver.advance(self.lr or 1.0)
        if not torch.isfinite(torch.linalg.vector_norm(self.model)):
            raise InvalidInputError(
                "state: the model is no longer finite; submit the run again, which goes on with "
                "the round before, with smaller learning rates"
            )
        for update in used:
            self.steps_taken[update.client] += update.steps
            self.accepted_rounds[update.client] = update.round
        return dict(zip(clients.tolist(), weights.tolist(), strict=True))

    def save(self) -> None:
        """Write everything as one checkpoint, atomically."""
        if self.folder is None:
            return
        tensors = {
            f"state.{name}": tensor for name, tensor in to_tensors(self.driver.state).items()
        }
        tensors |= {"steps_taken": self.steps_taken, "accepted_rounds": self.accepted_rounds}
        facts = {
            "algorithm": repr(self.driver.algorithm),
            "settings": _hash_settings(self.driver.algorithm),
            "model": _shapes(self.layout),
            "dtype": self.dtype,
            "registry": self.registry.to_json(),
            "lr": self.lr,
            "entries": [vars(entry) for entry in self.entries],
            "ended_at": self.ended_at,
        }
        if self.selection is not None:
            kept = self.selection.to_tensors()
            tensors |= {f"selection.{name}": tensor for name, tensor in kept.items()}
            facts["selection"] = self._selection_settings
        save(self.folder, Checkpoint(self.round, tensors, facts), "state", self._keep_every)

    def mark_published(self) -> None:
        """Write how many rounds have ended, so that none is repeated if checkpoints are lost."""
        if self.folder is not None:
            write_text(self.folder / PUBLISHED, f"{self.round}\n", field="state")

    def _restore(self, folder: Path) -> None:
        """Continue from the newest checkpoint in the folder, if it holds one."""
        checkpoint = load_newest(folder)
        if checkpoint is None:
            return
        try:
            self._require_same_training(folder, checkpoint.facts)
            former = self._take(checkpoint)
        except (KeyError, TypeError) as error:  # TypeError: an entry with other fields
            found = f"lacks {error}" if isinstance(error, KeyError) else first_line(error)
            raise InvalidInputError(
                f"state: the checkpoint in {folder} does not fit: {found}; it belongs to a "
                "simulation or another version of fedtide: give the folder of this federation"
            ) from None
        if former < self.registry.size:
            self.driver.state = add_clients(self.driver.algorithm, self.driver.state, former)
            log.info("There are now %d clients; before, there were %d", self.registry.size, former)
        log.info("Resuming after round %d from %s", self.round, folder)

    def _require_same_training(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Raise InvalidInputError if a checkpoint is that of another method or model.

        Raises:
            KeyError: an entry is missing.
        """
        algorithm, shapes = self.driver.algorithm, _shapes(self.layout)
        is_same = facts["settings"] == _hash_settings(algorithm)
        for what, same, before, now in (
            ("algorithm", is_same, facts["algorithm"], repr(algorithm)),
            ("model", facts["model"] == shapes, str(facts["model"]), str(shapes)),
            ("arrays of", facts["dtype"] == self.dtype, facts["dtype"], self.dtype),
        ):
            if not same:
                raise InvalidInputError(
                    f"state: {folder} was started with {what} {before:.200}, not {now:.200}; give "
                    "the same, or begin another federation with the model (see Other settings in "
                    "operating.md)"
                )

    def _take(self, checkpoint: Checkpoint) -> int:
        """Continue from a checkpoint of the same method and model; return how many clients it has.

        Raises:
            KeyError: an entry is missing.
        """
        facts = checkpoint.facts
        tensors = checkpoint.tensors
        size, state = len(tensors["steps_taken"]), _strip(tensors, "state.")
        if size > self.registry.size:
            raise InvalidInputError(
                f"clients: {self.folder} has {size} clients, not {self.registry.size}; give as "
                "many or more, or another folder"
            )
        self.registry.restore(facts["registry"])
        # Vectors of the state keep the order of arrays in the first submission.
        self.layout = Layout({name: tuple(shape) for name, shape in facts["model"].items()})
        initial = self.driver.state
        if size < self.registry.size:
            state = with_further_clients(state, to_tensors(initial), size)
        self.driver.state = from_tensors(initial, state)
        self.steps_taken[:size] = tensors["steps_taken"]
        self.accepted_rounds[:size] = tensors["accepted_rounds"]
        self.lr, self.ended_at = facts["lr"], facts["ended_at"]
        self.entries = [Entry(**entry) for entry in facts["entries"]]
        if self.selection is None:
            return size
        if facts.get("selection") == self._selection_settings and size == self.registry.size:
            self.selection.restore(_strip(tensors, "selection."))
        else:
            log.warning(
                "The selection starts afresh: the state was saved with another one or none, or "
                "with fewer clients"
            )
        return size


def _read_published(path: Path) -> int:
    """Return the number of rounds in a file of `mark_published`; 0 without one."""
    text = path.read_bytes().strip() if path.exists() else b"0"
    if not text.isdigit():
        raise InvalidInputError(
            f"state: {path} records how many rounds with privacy have ended, and is damaged; "
            "restore it, or write the number of the last round into it"
        )
    return int(text)


def _describe_population(registry: NodeRegistry) -> Population:
    """Return the clients as a method sees them before training.

    Clients not named in advance are numbered as they join, whatever they are called. Values given
    by name would go to the wrong ones, so they get names here that no mapping can have.
    """
    names = registry.names
    if registry.open:
        names = [f"unnamed {n + 1}; FedTide(clients=[...]) names it" for n in range(registry.size)]
    # Clients report their numbers of samples with their updates; none is known before.
    samples = np.zeros(registry.size, dtype=np.int64)
    return Population(registry.size, samples=samples, names=np.array(names))


def _strip(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _shapes(layout: Layout) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in layout.shapes.items()}


def _hash_settings(chosen: object) -> str:
    """Return a hash of all settings of a method or selection, the same in every process.

    Their repr would not do: it abbreviates arrays and shows functions with an address.
    """
    return hashlib.sha256(_describe(chosen).encode()).hexdigest()


def _describe(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: getattr(value, one.name) for one in fields(value)}
        return f"{type(value).__qualname__}{_describe(parts)}"
    if isinstance(value, Mapping):
        return str(sorted((repr(name), _describe(part)) for name, part in value.items()))
    if isinstance(value, list | tuple):
        return str([_describe(part) for part in value])
    return fingerprint(value) if is_data(value) else re.sub(" at 0x[0-9a-fA-F]+", "", repr(value))
