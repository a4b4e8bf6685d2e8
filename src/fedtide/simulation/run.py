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
from fedtide.errors import BadInput, within
from fedtide.participation import Participants, records
from fedtide.participation.log import Records
from fedtide.participation.process import Ids
from fedtide.problems import Evaluation, Problem, Task
from fedtide.problems.weighted import weigh_objective
from fedtide.simulation.checkpoint import Checkpoint
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.records import Tally, clients_table, metrics_row
from fedtide.training.choose import TrainerName, choose_trainer
from fedtide.training.feed import Feed
from fedtide.training.trainer import Round

_AT_ONCE = 512  # clients whose updates are held at the same time


_Prepared = tuple[Problem, int, str, str]
_kept: list[tuple[_Prepared, Task]] = []


def prepared(problem: Problem, seed: int, device: str, dtype: str) -> Task:
    """Return the task of a problem; the last two are kept, for the other methods of a study."""
    wanted = (problem, seed, device, dtype)
    for key, task in _kept:
        if key == wanted:
            return task
    task = problem.prepare(seed, torch.device(device), getattr(torch, dtype))
    _kept[:] = [*_kept[-1:], (wanted, task)]
    return task


def forget_prepared() -> None:
    """Give back the memory of the tasks that are kept."""
    _kept.clear()


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
        log: rows of the participation log that nobody has taken away yet.
        trainer_choice: the trainer and why, for people.
    """

    def __init__(self, experiment: Experiment, trainer: TrainerName | None = None) -> None:
        self.experiment = experiment
        seed = experiment.seed
        with within("problem"):
            task = prepared(experiment.problem, seed, experiment.device, experiment.dtype)
        self.task = weigh_objective(task, experiment.objective)
        schedule = experiment.schedule
        with within("participation"):
            rates = schedule.known_rates(self.task.population, seed)
        self.population = replace(self.task.population, rates=rates)
        self._participation = schedule.start(self.population, seed)
        length = self._participation.length
        if length is not None and length < experiment.rounds:
            raise BadInput(
                f"rounds: {experiment.rounds} rounds, but the participation ends after {length}; "
                f"ask for at most {length}"
            )
        algorithm, local = experiment.algorithm, experiment.local
        if algorithm.raw_gradients and (local.projection is not None or local.momentum):
            field = "momentum" if local.momentum else "projection"
            raise BadInput(
                f"local.{field}: this algorithm reads gradients off the updates, which holds for "
                "plain local steps only; leave it out"
            )
        trained = self.task.pooled() if algorithm.centralised else self.task
        with within("local"):
            self._feed = Feed(trained.population, local, seed)
        if local.projection is not None:
            with within("local.projection"):
                local.projection.check(self.task.layout.size)
        cohort = float(self.population.clients if rates is None else rates.sum())
        self._trainer, self.trainer_choice = choose_trainer(
            trainer or experiment.trainer, trained, local, cohort * experiment.rounds
        )
        with within("algorithm"):
            self.state = algorithm.init(self.task.start, self.population)
        self.ended = 0
        self.tally = Tally(self.population.clients)
        self.log: list[Records] = []
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
        clients, weights = self._cohort(present)
        train = self._train_pooled if self.experiment.algorithm.centralised else self._train
        used = [
            train(clients[i : i + _AT_ONCE], weights[i : i + _AT_ONCE], lr)
            for i in range(0, len(clients), _AT_ONCE)
        ]
        # 3. The model moves.
        self.state, info = self.experiment.algorithm.step(self.state, lr)
        self._check_step(info)
        # 4. The round is written down.
        self._record(present, np.concatenate(used) if used else clients, info)
        self.ended = t + 1
        self.timings.rounds += 1
        self.timings.training += time.perf_counter() - began

    def evaluate_if_due(self) -> None:
        """Evaluate the algorithm's output if the experiment asks for it now."""
        if not self.experiment.evaluation.due(self.ended, self.experiment.rounds):
            return
        began = time.perf_counter()
        self.evaluation = self._evaluate()
        row = metrics_row(self.ended, self.evaluation, self.tally)
        loss = self.evaluation.metrics.get("loss", 0.0)
        self.metrics.append(row)
        self.timings.evaluation += time.perf_counter() - began
        if not np.isfinite(loss) and self.experiment.on_nonfinite == "stop":
            losses = self.evaluation.clients.get("loss", np.zeros(0))
            worst = np.flatnonzero(~np.isfinite(losses))
            raise Diverged(
                f"local.lr: the loss is {loss} after {self.ended} rounds{_named(worst)}; lower lr"
            )

    def output(self) -> Tensor:
        """Return the model that the algorithm recommends so far, shape (d,)."""
        return self.experiment.algorithm.output(self.state)

    def _evaluate(self) -> Evaluation:
        return self.task.evaluate(self.output(), self.experiment.evaluation.clients)

    def metrics_table(self) -> pl.DataFrame:
        """Return one row per evaluation."""
        return pl.DataFrame(self.metrics, infer_schema_length=None)

    def clients(self) -> pl.DataFrame:
        """Return one row per client, with its figures at the last evaluation."""
        evaluation = self.evaluation or self._evaluate()
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

    def _cohort(self, present: Participants) -> tuple[Ids, NDArray[np.float64]]:
        """Return who trains in this round, and their participation weights."""
        reported = torch.from_numpy(present.reported)
        chosen = self.experiment.algorithm.cohort(self.state, reported)
        if chosen is reported:
            return present.reported, present.weights
        clients = chosen.numpy()
        return clients, np.full(len(clients), 1 / max(1, len(clients)))

    def _train(self, clients: Ids, weights: NDArray[np.float64], lr: float) -> Ids:
        """Train these clients and fold in their updates; return whose were used."""
        algorithm, start = self.experiment.algorithm, self.task.start
        ids = torch.as_tensor(clients, device=start.device)
        asked = algorithm.instruct(self.state, ids)
        plan = self._feed.plan(clients, asked.full_batch)
        updates = self._trainer.train(
            Round(asked.model, lr, asked.mu, asked.frozen), plan, asked.drift
        )
        reports = Reports(
            clients=ids,
            weights=torch.as_tensor(weights).to(start),
            updates=updates,
            lr=lr,
            steps=torch.as_tensor(plan.steps, device=start.device),
            samples=self._samples(clients),
            gradients=self._gradients(clients, asked.model) if asked.gradients else None,
        )
        reports = self._finite(reports)
        self.state = algorithm.absorb(self.state, reports)
        return reports.clients.cpu().numpy()

    def _train_pooled(self, clients: Ids, weights: NDArray[np.float64], lr: float) -> Ids:
        """Take on the pooled data as many steps as these clients would take together."""
        one, start = (
            torch.zeros(1, dtype=torch.int64, device=self.task.start.device),
            self.state.model,
        )
        model = start
        for _ in clients:
            plan = self._feed.plan(np.zeros(1, dtype=np.int64))
            model = model + self._trainer.train(Round(model, lr), plan)[0]
        update = (model - start)[None]
        steps = torch.full_like(one, len(clients) * len(plan.keys))
        reports = self._finite(Reports(one, torch.ones_like(update[:, 0]), update, lr, steps))
        self.state = self.experiment.algorithm.absorb(self.state, reports)
        return clients

    def _gradients(self, clients: Ids, model: Tensor) -> Tensor:
        """Return ∇F_n at the model, over all samples of each client, shape (S, d)."""
        whole = self._feed.whole(clients)
        return -self._trainer.train(Round(model, lr=1.0, frozen=True), whole)

    def _samples(self, clients: Ids) -> Tensor | None:
        samples = self.population.samples
        if samples is None:
            return None
        return torch.as_tensor(samples[clients], device=self.task.start.device)

    def _finite(self, reports: Reports) -> Reports:
        """Return the reports whose updates are finite, or stop, as the experiment says."""
        rows = [reports.updates] + ([] if reports.gradients is None else [reports.gradients])
        if all(bool(torch.isfinite(row.sum())) for row in rows):
            return reports
        finite = torch.stack([torch.isfinite(row).all(dim=1) for row in rows]).all(dim=0)
        if bool(finite.all()):  # only their sum is too large
            return reports
        if self.experiment.on_nonfinite == "stop":
            named = _named(reports.clients[~finite].cpu().numpy())
            raise Diverged(
                f"local.lr: an update in round {self.ended} is not finite{named}; "
                "lower lr, or leave such updates out with on_nonfinite: drop"
            )
        return reports.of(finite)

    def _check_step(self, info: Info) -> None:
        """Stop where finite updates make a step that is not; there is nothing to leave out."""
        if not bool(torch.isfinite(info.direction).all()):
            named = _named(info.clients.cpu().numpy())
            raise Diverged(
                f"local.lr: the step of round {self.ended} is not finite{named}; lower lr"
            )

    def _record(self, present: Participants, used: Ids, info: Info) -> None:
        known = np.intersect1d(present.reported, used, assume_unique=True)
        self.log.append(records(present, self.experiment.log, known))
        self.tally.add(info.clients.cpu().numpy(), info.weights.double().cpu().numpy())
        if self.iterates:
            self.iterates.append(self.state.model)


def _named(clients: Ids) -> str:
    """Return a few of these clients in brackets, for a complaint."""
    if len(clients) == 0:
        return ""
    more = ", ..." if len(clients) > 8 else ""
    return f" (clients {', '.join(map(str, clients[:8].tolist()))}{more})"
