"""The loop: one experiment, round by round."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import Info, Reports
from fedtide.algorithms.storage import pack, unpack
from fedtide.errors import BadInput
from fedtide.participation import Participants
from fedtide.problems import Evaluation
from fedtide.simulation.checkpoint import Checkpoint
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.log import LogBuffer
from fedtide.simulation.records import Tally, clients_table, metrics_row
from fedtide.training.choose import TrainerName, choose_trainer
from fedtide.training.feed import Feed
from fedtide.training.trainer import Round

_REPORTS_AT_ONCE = 512  # clients whose updates are held at the same time


class Diverged(BadInput):
    """An update or a loss that is not finite, in a run that stops there."""


@dataclass
class Timings:
    """Where the seconds of a run went; kept apart from its results, which never depend on them.

    Args:
        rounds: rounds run in this process.
        training: seconds in rounds.
        evaluation: seconds in evaluations.
    """

    rounds: int = 0
    training: float = 0.0
    evaluation: float = 0.0


class Run:
    """One experiment under way.

    Args:
        experiment: what to run.
        trainer: the trainer that an earlier part of this run picked; None picks by the experiment.

    Attributes:
        ended: how many rounds have ended.
        state: the algorithm's state.
        metrics: one mapping per evaluation.
        trainer_choice: the trainer and why, for people.
    """

    def __init__(self, experiment: Experiment, trainer: TrainerName | None = None) -> None:
        self.experiment = experiment
        seed = experiment.seed
        self.task = experiment.problem.prepare(
            seed, torch.device(experiment.device), getattr(torch, experiment.dtype)
        )
        schedule = experiment.schedule
        rates = schedule.rates(self.task.population, seed)
        self.population = replace(self.task.population, rates=rates)
        self._participation = schedule.start(self.population, seed)
        self._feed = Feed(self.population, experiment.local, seed)
        mean_cohort = self.population.clients if rates is None else rates.sum()
        self._trainer, self.trainer_choice = choose_trainer(
            trainer or experiment.trainer,
            self.task,
            experiment.local,
            mean_cohort * experiment.rounds,
        )
        self.state = experiment.algorithm.init(self.task.start, self.population)
        self.ended = 0
        self.tally = Tally(self.population.clients)
        self.log = LogBuffer(experiment.log)
        self.metrics: list[dict[str, Any]] = []
        self.iterates = [self.task.start] if experiment.record_iterates else []
        self.timings = Timings()
        self.evaluation: Evaluation | None = None

    def start(self) -> None:
        """Evaluate the initial model, if this is the beginning and the experiment asks for it."""
        if self.ended == 0 and not self.metrics:
            self.evaluate_if_due()

    def round(self) -> None:
        """Run one round."""
        t, began = self.ended, time.perf_counter()
        # 1. Who takes part, and who of them reports back.
        present = self._participation.round(t)
        # 2. They train as the algorithm says, and it folds in what they report.
        lr = self.experiment.local.rate(t)
        lost = [
            self._train(t, present, slice(first, first + _REPORTS_AT_ONCE), lr)
            for first in range(0, len(present.reported), _REPORTS_AT_ONCE)
        ]
        # 3. The model moves.
        self.state, info = self.experiment.algorithm.step(self.state, lr)
        # 4. The round is written down.
        self._record(present, np.concatenate(lost) if lost else present.reported, info)
        self.ended = t + 1
        self.timings.rounds += 1
        self.timings.training += time.perf_counter() - began

    def evaluate_if_due(self) -> None:
        """Evaluate the algorithm's output if the experiment asks for it now."""
        if not self.experiment.evaluation.due(self.ended, self.experiment.rounds):
            return
        began = time.perf_counter()
        self.evaluation = self.task.evaluate(self.output())
        row = metrics_row(self.ended, self.evaluation, self.tally)
        loss = self.evaluation.metrics.get("loss", 0.0)
        self.metrics.append(row)
        self.timings.evaluation += time.perf_counter() - began
        if not np.isfinite(loss) and self.experiment.on_nonfinite == "stop":
            raise Diverged(f"local.lr: the loss is {loss} after round {self.ended}; lower lr")

    def output(self) -> Tensor:
        """Return the model that the algorithm recommends so far, shape (d,)."""
        return self.experiment.algorithm.output(self.state)

    def metrics_table(self) -> pl.DataFrame:
        """Return one row per evaluation."""
        return pl.DataFrame(self.metrics, infer_schema_length=None)

    def clients(self) -> pl.DataFrame:
        """Return one row per client, with its figures at the last evaluation."""
        evaluation = self.evaluation or self.task.evaluate(self.output())
        return clients_table(self.population, self.tally, evaluation, self.ended)

    def checkpoint(self) -> Checkpoint:
        """Return everything from which `restore` goes on."""
        tensors = {f"state.{name}": tensor for name, tensor in pack(self.state).items()}
        tensors["feed.taken"] = torch.from_numpy(self._feed.taken)
        for name in ("used", "share", "effective"):
            tensors[f"tally.{name}"] = torch.from_numpy(getattr(self.tally, name))
        if self.iterates:
            tensors["iterates"] = torch.stack(self.iterates)
        facts = {
            "cohorts": self.tally.cohorts,
            "metrics": self.metrics,
            "trainer": self._trainer.name,
        }
        return Checkpoint(self.ended, tensors, facts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same experiment."""
        tensors = dict(checkpoint.tensors)
        state = {
            name.removeprefix("state."): t for name, t in tensors.items() if name[:6] == "state."
        }
        self.state = unpack(self.state, state)
        self._feed.taken[:] = tensors["feed.taken"].numpy()
        for name in ("used", "share", "effective"):
            getattr(self.tally, name)[:] = tensors[f"tally.{name}"].numpy()
        self.tally.cohorts = checkpoint.facts["cohorts"]
        self.metrics = list(checkpoint.facts["metrics"])
        if self.iterates:
            self.iterates = list(tensors["iterates"].to(self.task.start.device))
        self.ended = checkpoint.round

    def _train(self, t: int, present: Participants, part: slice, lr: float) -> NDArray[np.int64]:
        """Train a part of the reporting clients and fold in their updates; return who was used."""
        clients = present.reported[part]
        ids = torch.as_tensor(clients, device=self.task.start.device)
        algorithm, start = self.experiment.algorithm, self.task.start
        instructions = algorithm.instruct(self.state, ids)
        plan = self._feed.plan(clients)
        updates = self._trainer.train(
            Round(instructions.model, lr, instructions.mu), plan, instructions.drift
        )
        reports = Reports(
            clients=ids,
            weights=torch.as_tensor(present.weights[part]).to(start),
            updates=updates,
            lr=lr,
            steps=torch.as_tensor(plan.steps, device=start.device),
            samples=self._samples(clients),
        )
        reports = self._finite(t, reports)
        self.state = algorithm.absorb(self.state, reports)
        return reports.clients.cpu().numpy()

    def _samples(self, clients: NDArray[np.int64]) -> Tensor | None:
        samples = self.population.samples
        if samples is None:
            return None
        return torch.as_tensor(samples[clients], device=self.task.start.device)

    def _finite(self, t: int, reports: Reports) -> Reports:
        """Return the reports whose updates are finite, or stop, as the experiment says."""
        if bool(torch.isfinite(reports.updates.sum())):
            return reports
        finite = torch.isfinite(reports.updates).all(dim=1)
        if self.experiment.on_nonfinite == "stop":
            named = ", ".join(str(client) for client in reports.clients[~finite][:8].tolist())
            raise Diverged(
                f"local.lr: in round {t} the updates of clients {named} are not finite; "
                "lower lr, or leave such updates out with on_nonfinite: drop"
            )
        samples = None if reports.samples is None else reports.samples[finite]
        return Reports(
            reports.clients[finite],
            reports.weights[finite],
            reports.updates[finite],
            reports.lr,
            reports.steps[finite],
            samples,
        )

    def _record(self, present: Participants, used: NDArray[np.int64], info: Info) -> None:
        self.log.add(present, used)
        self.tally.add(info.clients.cpu().numpy(), info.weights.double().cpu().numpy())
        if self.iterates:
            self.iterates.append(self.state.model)
