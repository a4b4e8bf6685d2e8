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

from fedtide.algorithms import ClientUpdates, RoundInfo
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.errors import InvalidInputError, error_prefix
from fedtide.participation import Ids, LogColumns, Participants, RunningSchedule, round_rows
from fedtide.population import Population
from fedtide.problems import Evaluation, Task
from fedtide.problems.weighted_objective import weigh_objective
from fedtide.simulation.checkpoint import Checkpoint
from fedtide.simulation.divergence import check_loss, check_step, drop_or_raise_nonfinite
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.local_round import LocalRound, check_fit
from fedtide.simulation.metrics import ParticipationTally, clients_table, metrics_row
from fedtide.simulation.task_cache import prepare_cached
from fedtide.training.trainers.select import TrainerName


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
    """

    def __init__(self, experiment: Experiment, trainer: TrainerName | None = None) -> None:
        self.experiment = experiment
        seed, algorithm = experiment.seed, experiment.algorithm
        with error_prefix("problem"):
            task = prepare_cached(experiment.problem, seed, experiment.device, experiment.dtype)
        if task.start.dtype == torch.bfloat16:
            raise InvalidInputError("dtype: bfloat16 is for networks; use float32 or float64 here")
        self.task = weigh_objective(task, experiment.objective)
        self.population, self._participation = _start_participation(experiment, self.task)
        check_fit(algorithm, experiment.local)
        self._work = LocalRound(
            self.task.pooled() if algorithm.centralised else self.task,
            experiment.local,
            seed,
            trainer or experiment.trainer,
            experiment.rounds * _mean_cohort(self.population),
            experiment.compile,
        )
        with error_prefix("algorithm"):
            self.state = algorithm.init(self.task.start, self.population)
        self.ended = 0
        self.tally = ParticipationTally(self.population.clients)
        self.log: list[LogColumns] = []
        self.metrics: list[dict[str, Any]] = []
        self.iterates = [self.task.start] if experiment.record_iterates else []
        self.timings = Timings()
        self.evaluation: Evaluation | None = None

    @property
    def trainer_choice(self) -> str:
        """The trainer and why it was chosen, for people."""
        return self._work.choice

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
        used = self._train(present, lr)
        # 3. The model moves.
        self.state, info = self.experiment.algorithm.step(self.state, lr)
        check_step(info, t)
        # 4. The round is written down.
        self._record(present, used, info)
        self.ended = t + 1
        self.timings.rounds += 1
        self.timings.training += time.perf_counter() - began

    def evaluate_if_due(self) -> None:
        """Evaluate the algorithm's output if the experiment asks for it now."""
        if not self.experiment.evaluation.due(self.ended, self.experiment.rounds):
            return
        began = time.perf_counter()
        self.evaluation = self._evaluate()
        self.metrics.append(metrics_row(self.ended, self.evaluation, self.tally))
        self.timings.evaluation += time.perf_counter() - began
        if self.experiment.on_nonfinite == "stop":
            check_loss(self.evaluation, self.ended)

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
        tensors = {f"state.{name}": tensor for name, tensor in to_tensors(self.state).items()}
        tensors["feed.taken"] = torch.from_numpy(self._work.feed.steps_taken)
        for name in ("used", "share", "effective"):
            tensors[f"tally.{name}"] = torch.from_numpy(getattr(self.tally, name))
        if self.iterates:
            tensors["iterates"] = torch.stack(self.iterates)
        facts = {
            "cohorts": self.tally.cohorts,
            "metrics": self.metrics,
            "trainer": self._work.trainer.name,
        }
        return Checkpoint(self.ended, tensors, facts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same experiment."""
        tensors = dict(checkpoint.tensors)
        state = {
            name.removeprefix("state."): t for name, t in tensors.items() if name[:6] == "state."
        }
        self.state = from_tensors(self.state, state)
        self._work.feed.steps_taken[:] = tensors["feed.taken"].numpy()
        for name in ("used", "share", "effective"):
            getattr(self.tally, name)[:] = tensors[f"tally.{name}"].numpy()
        self.tally.cohorts = checkpoint.facts["cohorts"]
        self.metrics = list(checkpoint.facts["metrics"])
        if self.iterates:
            self.iterates = list(tensors["iterates"].to(self.task.start.device))
        self.ended = checkpoint.round

    def _train(self, present: Participants, lr: float) -> Ids:
        """Let the cohort train and the algorithm fold in what it reports; return who was used."""
        clients, weights = self._cohort(present)
        if self.experiment.algorithm.centralised:
            if len(clients) == 0:
                return clients
            used = self._absorb(self._work.pooled(self.state.model, len(clients), lr))
            return clients if len(used) else clients[:0]
        at_once = self._work.chunk_size(self.experiment.max_stack_bytes)
        parts = [clients[:0]]
        for first in range(0, len(clients), at_once):
            part = slice(first, first + at_once)
            ids = torch.as_tensor(clients[part], device=self.task.start.device)
            asked = self.experiment.algorithm.instruct(self.state, ids)
            parts.append(self._absorb(self._work.reports(asked, clients[part], weights[part], lr)))
        return np.concatenate(parts)

    def _absorb(self, reports: ClientUpdates) -> Ids:
        """Let the algorithm fold in the reports that are finite, and return whose they are."""
        reports = drop_or_raise_nonfinite(reports, self.ended, self.experiment.on_nonfinite)
        self.state = self.experiment.algorithm.absorb(self.state, reports)
        used: Ids = reports.clients.cpu().numpy()
        return used

    def _cohort(self, present: Participants) -> tuple[Ids, NDArray[np.float64]]:
        """Return who trains in this round, and their participation weights."""
        reported = torch.from_numpy(present.reported)
        chosen = self.experiment.algorithm.cohort(self.state, reported)
        if chosen is reported:
            return present.reported, present.weights
        clients = chosen.numpy()
        return clients, np.full(len(clients), 1 / max(1, len(clients)))

    def _record(self, present: Participants, used: Ids, info: RoundInfo) -> None:
        known = present.reported
        if not np.array_equal(used, known):
            known = np.intersect1d(known, used, assume_unique=True)
        self.log.append(round_rows(present, self.experiment.log, known))
        self.tally.add(info.clients.cpu().numpy(), info.weights.double().cpu().numpy())
        if self.iterates:
            self.iterates.append(self.state.model)


def _start_participation(experiment: Experiment, task: Task) -> tuple[Population, RunningSchedule]:
    """Return what is known about the clients, their rates included, and who takes part.

    Raises:
        InvalidInputError: participation that does not fit the clients, or that ends before the run.
    """
    schedule, seed = experiment.schedule, experiment.seed
    with error_prefix("participation"):
        rates = schedule.known_rates(task.population, seed)
    population = replace(task.population, rates=rates)
    participation = schedule.start(population, seed)
    length = participation.length
    if length is not None and length < experiment.rounds:
        raise InvalidInputError(
            f"rounds: {experiment.rounds} rounds, but the participation ends after {length}; "
            f"ask for at most {length}"
        )
    return population, participation


def _mean_cohort(population: Population) -> float:
    """Return how many clients take part in a round, about: all where it is not known."""
    return float(population.clients if population.rates is None else population.rates.sum())
