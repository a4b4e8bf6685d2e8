"""A federation's training: the algorithm's state and all else that must survive a crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms import Algorithm, RoundInfo
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.errors import InvalidInputError
from fedtide.flower.lock import held
from fedtide.flower.server.pending import PendingReplies
from fedtide.flower.server.registry import NodeRegistry
from fedtide.flower.server.reply_validation import Report, stacked
from fedtide.participation.log.ledger import Entry
from fedtide.population import Population
from fedtide.problems.layout import Layout
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save

log = getLogger("flwr")

_FOLDED_AT_ONCE = 64  # updates that are stacked together, to keep what is copied small


class TrainingSession:
    """The training of one federation.

    Args:
        algorithm: the method.
        roster: the clients.
        layout: of the model.
        model: x_0, shape (d,).
        folder: where the state is kept after every round; None: nowhere.
        patience: how many seconds to wait for another run to leave the folder.

    Attributes:
        state: of the algorithm.
        taken: how many local steps of each client have counted, shape (N,).
        accepted: the round in which each client was asked for its last report that counted, -1 for
            none, shape (N,).
        lr: γ of the last round in which somebody reported it.
        outstanding: who owes a reply.
        run: Flower's id of the run that sent the messages which are outstanding.
        sent: the models of rounds in which something is still owed, by round.
        entries: of the last round, for the ledger.
        ended_at: when the last round ended, in seconds since 1970.

    Raises:
        InvalidInputError: a method that does not fit, or a folder that holds another federation or that
            another run keeps using.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        roster: NodeRegistry,
        layout: Layout,
        model: Tensor,
        folder: Path | None = None,
        patience: float = 0.0,
    ) -> None:
        if algorithm.centralised:
            raise InvalidInputError(
                "algorithm: it pools all data, which nobody sends; choose a federated"
            )
        self.algorithm, self.roster, self.layout, self._folder = algorithm, roster, layout, folder
        # Clients hold samples; how many, each says when it reports.
        samples = np.zeros(roster.size, dtype=np.int64)
        self.state = algorithm.init(model, Population(roster.size, samples=samples))
        self.taken = torch.zeros(roster.size, dtype=torch.int64)
        self.accepted = torch.full_like(self.taken, -1)
        self.lr = 0.0
        self.outstanding, self.run = PendingReplies(), 0
        self.sent: dict[int, Tensor] = {}
        self.entries: list[Entry] = []
        self.ended_at = 0.0
        self._lock = None if folder is None else held(folder, patience)
        if folder is not None:
            self._restore(folder)

    @property
    def round(self) -> int:
        """t, the number of rounds that have ended; it never restarts."""
        ended: int = self.state.round
        return ended

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,), from which clients train."""
        model: Tensor = self.state.model
        return model

    @property
    def output(self) -> Tensor:
        """The model that the algorithm recommends so far, shape (d,)."""
        return self.algorithm.output(self.state)

    def end_round(self, reports: Iterable[Report]) -> RoundInfo:
        """Fold in this round's reports, each client's at most once, and move the model.

        They are folded in by client number, whatever order they came in, so that the same replies
        give the same model.
        """
        ordered = sorted(reports, key=lambda report: report.client)
        for _, group in groupby(ordered, key=lambda report: report.lr):
            self._fold(list(group), weight=1.0 / len(ordered))
        self.lr = next((r.lr for r in reversed(ordered) if r.lr), self.lr)
        # Before anybody has reported there is nothing that a learning rate could multiply.
        self.state, info = self.algorithm.step(self.state, self.lr or 1.0)
        return info

    def _fold(self, reports: list[Report], weight: float) -> None:
        for first in range(0, len(reports), _FOLDED_AT_ONCE):
            part = reports[first : first + _FOLDED_AT_ONCE]
            chunk = stacked(part, self.model)
            chunk = replace(chunk, weights=torch.full_like(chunk.weights, weight))
            self.state = self.algorithm.absorb(self.state, chunk)
            self.taken[chunk.clients] += chunk.steps
            self.accepted[chunk.clients] = torch.tensor([report.asked for report in part])

    def save(self) -> None:
        """Write everything, all at once or not at all."""
        rounds = self.outstanding.rounds
        self.sent = {t: model for t, model in self.sent.items() if t in rounds}
        if self._folder is None:
            return
        tensors = {f"state.{name}": tensor for name, tensor in to_tensors(self.state).items()}
        tensors |= {f"sent.{t}": model for t, model in self.sent.items()}
        tensors |= {"taken": self.taken, "accepted": self.accepted}
        facts = {
            "algorithm": repr(self.algorithm),
            "model": _shapes(self.layout),
            "roster": self.roster.plain(),
            "outstanding": self.outstanding.plain(),
            "run": str(self.run),
            "lr": self.lr,
            "entries": [vars(entry) for entry in self.entries],
            "ended_at": self.ended_at,
        }
        save(self._folder, Checkpoint(self.round, tensors, facts))

    def close(self) -> None:
        """Let the folder go."""
        if self._lock is not None:
            self._lock.close()

    def _restore(self, folder: Path) -> None:
        """Go on where the folder's federation ended, if it holds one."""
        checkpoint = load_newest(folder)
        if checkpoint is None:
            return
        tensors, facts = checkpoint.tensors, checkpoint.facts
        now = {"algorithm": repr(self.algorithm), "model": _shapes(self.layout)}
        for name, value in now.items():
            if facts[name] != value:
                raise InvalidInputError(
                    f"state: {folder} was begun with {name} {facts[name]}, not {value}; "
                    "give the same, or another folder"
                )
        self.roster.restore(facts["roster"])
        self.state = from_tensors(self.state, _part(tensors, "state."))
        self.sent = {int(t): model for t, model in _part(tensors, "sent.").items()}
        self.taken, self.accepted = tensors["taken"], tensors["accepted"]
        self.lr, self.ended_at = facts["lr"], facts["ended_at"]
        self.outstanding = PendingReplies.of_plain(facts["outstanding"])
        self.run = int(facts["run"])
        self.entries = [Entry(**entry) for entry in facts["entries"]]
        log.info("Going on after round %d, from %s", self.round, folder)


def _part(tensors: Any, prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _shapes(layout: Layout) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in layout.shapes.items()}
