"""The simulation loop: one experiment, round by round."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import polars as pl
import torch

from fedtide.algorithms import ClientUpdates, Cohort, RoundDriver, RoundInfo
from fedtide.algorithms.base import WeightedTotal
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.differential_privacy import make_private
from fedtide.errors import InvalidInputError, error_prefix
from fedtide.participation import (
    Ids,
    LogColumns,
    Participants,
    RoundStream,
    TimedParticipants,
    TimedStream,
    Timing,
    Work,
    round_rows,
    to_frame,
)
from fedtide.population import Population
from fedtide.problems import Evaluation, Task
from fedtide.simulation.buffers import Buffers
from fedtide.simulation.checkpoint import Checkpoint
from fedtide.simulation.cluster.cluster_round import ClusterRound
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.divergence import (
    Flags,
    check_loss,
    check_step,
    drop_or_raise_nonfinite,
    flag_finite,
)
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.inputs import prepare_task
from fedtide.simulation.local_round import (
    LocalRound,
    TrainChunks,
    require_plain_sgd,
    require_plain_updates,
)
from fedtide.simulation.metrics import (
    ParticipationTally,
    clients_table,
    metrics_row,
)
from fedtide.simulation.process_settings import Execution, describe_execution
from fedtide.simulation.round_plan import RoundPlanner
from fedtide.training import devices
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.select import TrainerName

Updates = ClientUpdates | WeightedTotal

_TALLIED = ("used", "share", "effective")
"""The arrays of a `ParticipationTally`, which a checkpoint stores."""


@dataclass
class Timings:
    """How long a run took; kept apart from its results, which do not depend on it.

    Args:
        rounds: rounds run; those lost in a crash and run again count once.
        training: seconds spent in rounds, over all processes that executed the run.
        evaluation: seconds spent in evaluations.
    """

    rounds: int = 0
    training: float = 0.0
    evaluation: float = 0.0


class Run:
    """An experiment while it runs.

    Args:
        experiment: what to run.
        trainer: the trainer that computed an earlier part of this run; None: the experiment's.
        cluster: the cluster whose workers train the clients; None: this process trains them.
        alike: how many runs of this process take the same local steps, on average; they share
            compiled code.

    Attributes:
        ended: the number of completed rounds.
        seconds: the simulated time at which the last of them ended; 0 without `timing`.
        driver: holds the algorithm's state.
        buffers: the running statistics of the network; None if it has none.
        trainer_choice: the trainer and why it was chosen, as text.
        metrics: one mapping per evaluation.
        log: the rows of the participation log that have not been written yet.
        stopped: why a callback ended the run; empty otherwise.
    """

    def __init__(
        self,
        experiment: Experiment,
        trainer: TrainerName | None = None,
        cluster: RayCluster | None = None,
        alike: float = 1,
    ) -> None:
        self.experiment = experiment
        algorithm, local = experiment.algorithm, experiment.local
        self._centralised = algorithm.traits.centralised
        # 1. What is learnt, by which clients, and which of them take part.
        self.task = prepare_task(experiment)
        self.population, self._participation = _start_participation(experiment, self.task)
        # 2. How a client trains.
        require_plain_sgd(algorithm, local)
        require_plain_updates(algorithm)
        rates, clients = self.population.rates, self.population.clients
        most = experiment.selection.most(clients)
        if experiment.timing is not None:
            most = min(most, experiment.timing.policy.size)
        cohort = float(most if rates is None else rates.sum())
        self._local = LocalRound(
            self.task.pooled() if self._centralised else self.task,
            local,
            experiment.seed,
            trainer or experiment.trainer,
            experiment.rounds * cohort * alike,
            experiment.compile,
        )
        self.trainer_choice = self._local.choice
        if self._local.trainer.name == trainer != experiment.trainer:
            self.trainer_choice = f"{trainer}, as in the earlier part of the run"
        # 3. The method, and what else changes with the rounds.
        self.buffers = Buffers.of_task(self.task, self._centralised)
        self.driver = self._start_driver()
        self.ended, self.seconds, self.stopped = 0, 0.0, ""
        # Finding out whether an update is finite waits for a GPU: it is done once, after the step.
        on_gpu = not devices.is_cpu(self.task.start)
        self._checks_late = experiment.on_nonfinite == "stop" and on_gpu
        # 4. How the clients of a round are cut into chunks, and who trains these.
        self._planner = RoundPlanner(
            self.task,
            self._local.planner,
            self._local.trainer,
            experiment.max_stack_bytes,
            experiment.chunk,
            self._centralised,
            # here, `LocalRound` reads whether a sum is finite, which would wait for a GPU
            None if on_gpu and cluster is None else self.driver.weigh,
            adds_up=cluster is None,
        )
        self._train_chunks = self._chunk_training(cluster)
        # 5. What is recorded.
        self._evaluated_every = experiment.evaluation.interval(
            experiment.rounds, self._local.evaluation_cost(cohort)
        )
        self.evaluation: Evaluation | None = None
        self.metrics: list[dict[str, Any]] = []
        self.log: list[LogColumns] = []
        self.tally = ParticipationTally(clients)
        self.iterates = [self.task.start] if experiment.record_iterates else []
        self.timings = Timings()
        self.execution = describe_execution(self.trainer_name, experiment.device)
        self.executions: list[Execution] = []

    def round(self) -> None:
        """Run one round."""
        t, start = self.ended, time.perf_counter()
        if self.executions[-1:] != [self.execution]:
            self.executions.append(self.execution)
        with self._local.limit_threads():
            # 1. The participation says which clients take part, and which of them report.
            participants = self._participation.round(t)
            # 2. They train as instructed; the algorithm absorbs their updates and moves the model.
            info, trained = self._run_algorithm(participants)
            # 3. The round is recorded.
            self._record(participants, trained, info)
        self.ended = t + 1
        self.timings.rounds += 1
        self.timings.training += time.perf_counter() - start

    @property
    def is_evaluated(self) -> bool:
        """Whether the last row of metrics belongs to the current model."""
        return bool(self.metrics) and self.metrics[-1]["round"] == self.ended

    @property
    def is_evaluation_due(self) -> bool:
        """Whether the current model is due for evaluation and has not been evaluated yet."""
        evaluation, rounds = self.experiment.evaluation, self.experiment.rounds
        is_due = evaluation.is_due(self.ended, rounds, self._evaluated_every)
        return is_due and not self.is_evaluated

    def evaluate(self) -> None:
        """Evaluate the algorithm's output and add a row of metrics."""
        start = time.perf_counter()
        self.evaluation = self._evaluate()
        weights = self.task.objective_weights
        hours = None if self.experiment.timing is None else self.seconds / 3600
        self.metrics.append(metrics_row(self.ended, self.evaluation, self.tally, weights, hours))
        self.timings.evaluation += time.perf_counter() - start
        if self.experiment.on_nonfinite == "stop":
            algorithm = self.experiment.algorithm
            check_loss(self.evaluation, self.ended, self.population, algorithm)

    def _evaluate(self) -> Evaluation:
        return self.task.evaluate(
            self.driver.output,
            self.experiment.evaluation.clients,
            self.buffer_values,
        )

    @property
    def buffer_values(self) -> torch.Tensor | None:
        """The running statistics of the network, see `Buffers.values`; None if it has none."""
        return None if self.buffers is None else self.buffers.values

    @property
    def trainer_name(self) -> TrainerName:
        """The name of the trainer in use."""
        return cast("TrainerName", self._local.trainer.name)

    def last_evaluation(self) -> Evaluation:
        """Return the last evaluation; a resumed run may have to repeat it."""
        self.evaluation = self.evaluation or self._evaluate()
        return self.evaluation

    def log_table(self) -> pl.DataFrame:
        """Return the rows of the participation log that have not been written yet."""
        return to_frame(self.log, self.population.names)

    def clients_so_far(self) -> pl.DataFrame:
        """Return the same table without evaluating the model: no metrics before the first time."""
        evaluation = self.evaluation or Evaluation({})
        return clients_table(self.population, self.tally, evaluation, self.ended)

    def _start_driver(self) -> RoundDriver[Any]:
        """Return the driver of the method, with clipping and noise if the experiment has them."""
        algorithm, mechanism = self.experiment.algorithm, self.experiment.privacy
        start = self.task.start.clone()  # the task is shared with other runs
        if mechanism is None:
            with error_prefix("algorithm"):
                return RoundDriver(algorithm, start, self.population)
        if self.buffers is not None:
            raise InvalidInputError(
                "privacy: running statistics of the network are averaged without noise; use a "
                "network without batch normalisation"
            )
        private = make_private(algorithm, mechanism, self.experiment.seed)
        return RoundDriver(private, start, self.population)  # its errors name the field themselves

    def checkpoint(self) -> Checkpoint:
        """Return everything that `restore` needs."""
        tensors = {f"state.{name}": t for name, t in to_tensors(self.driver.state).items()}
        tensors["steps_taken"] = torch.from_numpy(self._local.planner.steps_taken)
        for name in _TALLIED:
            tensors[f"tally.{name}"] = torch.from_numpy(getattr(self.tally, name))
        if self.buffers is not None:
            tensors["buffers"] = self.buffers.values
        if self.iterates:
            tensors["iterates"] = torch.stack(self.iterates)
        facts = {
            "cohorts": self.tally.cohorts,
            "reports": self.tally.reports,
            "seconds": self.seconds,
            "metrics": self.metrics,
            "trainer": self.trainer_name,
            "timings": asdict(self.timings),
            "executions": self.executions,
            "stopped": self.stopped,
        }
        return Checkpoint(self.ended, tensors, facts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same experiment."""
        tensors, device = checkpoint.tensors, self.task.start.device
        named = {n.removeprefix("state."): t for n, t in tensors.items() if n.startswith("state.")}
        self.driver.state = from_tensors(self.driver.state, named)
        self._local.planner.steps_taken[:] = tensors["steps_taken"].numpy()
        for name in _TALLIED:
            getattr(self.tally, name)[:] = tensors[f"tally.{name}"].numpy()
        self.tally.cohorts = checkpoint.facts["cohorts"]
        self.tally.reports = checkpoint.facts["reports"]
        self.metrics = list(checkpoint.facts["metrics"])
        if self.buffers is not None:
            self.buffers.values = tensors["buffers"].to(device)
        if self.iterates:
            self.iterates = list(tensors["iterates"].to(device))
        self.ended, self.stopped = checkpoint.round, checkpoint.facts.get("stopped", "")
        self.seconds = checkpoint.facts.get("seconds", 0.0)
        self.timings = Timings(**checkpoint.facts["timings"])
        self.executions = checkpoint.facts["executions"]

    def _run_algorithm(self, participants: Participants) -> tuple[RoundInfo, Ids]:
        """Run the algorithm's round; return its info and the clients whose updates count."""
        experiment, t = self.experiment, self.ended
        lr = experiment.local.rate(t)
        arrived: list[Ids] = [participants.reported[:0]]
        unread: list[Flags] | None = [] if self._checks_late else None

        def check(updates: Updates, buffers: torch.Tensor | None) -> Updates:
            """Return the finite updates, after their buffers have been absorbed."""
            if isinstance(updates, ClientUpdates) and unread is not None:
                unread.append(flag_finite(updates, buffers))
            elif isinstance(updates, ClientUpdates):
                updates, buffers = drop_or_raise_nonfinite(
                    updates, t, experiment.on_nonfinite, self.population, buffers
                )
            if self.buffers is not None and buffers is not None:
                self.buffers.absorb(updates.clients, buffers)
            arrived.append(updates.clients.numpy())
            return updates

        driver = self.driver
        cohort = driver.choose_cohort(
            Cohort(torch.as_tensor(participants.reported), torch.as_tensor(participants.weights))
        )
        plan = self._planner.plan(cohort, lr)
        chunks = driver.chunks(cohort, plan.size)
        for updates, buffers in self._train_chunks(chunks, plan, lr, self.buffers):
            driver.absorb(check(updates, buffers))
        info = driver.step(lr)
        check_step(info, t, self.population, experiment.algorithm, unread)
        if self.buffers is not None:
            self.buffers.end_round()
        trained = np.concatenate(arrived)
        # the single client of a pooled task trains on behalf of all
        return info, participants.reported if self._centralised and len(trained) else trained

    def _chunk_training(self, cluster: RayCluster | None) -> TrainChunks:
        """Return the function that trains the chunks of a round: here, or on a cluster.

        Raises:
            InvalidInputError: the method has a single client, which a cluster cannot share.
        """
        if cluster is None:
            return self._local.train_pooled if self._centralised else self._local.train_chunks
        if self._centralised:
            raise InvalidInputError(
                "cluster: this method trains on the pooled data as a single client, which cannot "
                "be shared; run it without a cluster"
            )
        pool = cluster.start_workers(self.experiment, self.trainer_name)
        return ClusterRound(self.task, self._local.planner, pool).train_chunks

    def _record(self, participants: Participants, trained: Ids, info: RoundInfo) -> None:
        """Add a round to the log and the tally, counting only clients that reported."""
        if isinstance(participants, TimedParticipants):
            self.seconds = participants.ended
        used = participants.reported
        if not np.array_equal(trained, used):
            used = np.intersect1d(used, trained, assume_unique=True)
        self.log.append(round_rows(participants, self.experiment.log, used))
        clients, weights = info.clients.cpu().numpy(), info.weights.double().cpu().numpy()
        if not np.array_equal(clients, used):  # others trained as well, as in FedPBC
            reported = np.isin(clients, used)
            clients, weights = clients[reported], weights[reported]
        self.tally.add(clients, weights)
        self.tally.reports += len(participants.reported) > 0
        if self.iterates:
            self.iterates.append(self.driver.state.model)


def _start_participation(experiment: Experiment, task: Task) -> tuple[Population, RoundStream]:
    """Return the population with its participation rates, and the started schedule or clock.

    Raises:
        InvalidInputError: the participation does not fit the clients, lets none take part, or ends
            before the run does.
    """
    schedule, timing, seed = experiment.schedule, experiment.timing, experiment.seed
    if schedule.reporting_probability(task.population) == 0:
        raise InvalidInputError(
            "dropout: every selected client fails to report, so no client would ever take part; "
            "give a probability below 1"
        )
    with error_prefix("participation"):
        rates = (
            schedule.known_rates(task.population, seed)
            if timing is None
            else timing.known_rates(schedule, task.population, seed)
        )
    if rates is not None and not np.any(rates):
        raise InvalidInputError(
            "participation: the rates at which clients take part in the long run are all 0; give "
            "at least one client a higher one"
        )
    population = replace(task.population, rates=rates, seed=seed)
    if timing is not None:
        return population, _start_clock(experiment, timing, population, task)
    participation = schedule.start(population, seed)
    length = participation.length
    if length is not None and length < experiment.rounds:
        raise InvalidInputError(
            f"rounds: {experiment.rounds} rounds, but the participation ends after {length}; "
            f"ask for at most {length}"
        )
    return population, participation


def _start_clock(
    experiment: Experiment, timing: Timing, population: Population, task: Task
) -> TimedStream:
    """Return the started clock of a run.

    Raises:
        InvalidInputError: the timing does not fit the clients, or nobody is available any more
            before the last round.
    """
    planner = MinibatchPlanner(population, experiment.local, experiment.seed)
    samples = planner.samples_of(np.arange(population.clients))
    vectors, size = experiment.algorithm.traits.message_vectors, 4 * task.start.numel()
    sent = vectors // 2  # an odd one comes with the model
    work = Work(samples, received=(vectors - sent) * size, sent=sent * size)

    def start() -> TimedStream:
        return timing.start(experiment.schedule, population, work, experiment.seed)

    if not (clock := start()).is_endless:
        start().round(experiment.rounds - 1)  # before anything is trained
    return clock
