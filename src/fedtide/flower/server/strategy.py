"""The strategy: any of fedtide's methods on a Flower federation whose clients come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedtide.algorithms import Algorithm
from fedtide.errors import InvalidInputError
from fedtide.flower.needs import form_of, reads_steps, takes_late
from fedtide.flower.protocol import is_plain, layout_of, record_of, train_content
from fedtide.flower.server.discovery import Meeting
from fedtide.flower.server.pending import Kind, Owed
from fedtide.flower.server.registry import NodeRegistry
from fedtide.flower.server.reply_validation import (
    DeclinedReplyError,
    RejectedReplyError,
    ReplyValidator,
    Report,
    figures,
    mean_figures,
)
from fedtide.flower.server.round_log import RoundLog
from fedtide.flower.server.session import TrainingSession
from fedtide.flower.server.transport import Clock, Exchange
from fedtide.participation.log.ledger import Ledger
from fedtide.randomness import generator

log = getLogger("flwr")

_WAITS_FOR_ANOTHER_RUN = 180.0  # seconds; Flower gives a dead run up after about 70

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FedTide(Strategy):
    """Drives a method of `fedtide.algorithms` on a Flower federation.

    A round, t = 0, 1, ... (Flower's server_round is t + 1):

    1. Who is online is looked up, and newcomers are asked for their names (see `Roster`).
    2. Those who owe no reply are asked to train, as the method says; never those who do.
    3. The round ends when all of them have answered, when `close_after` have, or at the deadline.
    4. What arrived is folded in by client number; a reply that is an error, malformed, not finite,
       or makes a false claim is left out and logged. The method steps, also when nobody came.
    5. Model, state, round and what is owed are saved, then the round is added to the ledger.

    A reply to an earlier round counts in the round in which it arrives where the method is made for
    that (MIFA, FedLaAvg, FedVARP), and is dropped otherwise. Participation weights are q_t^n = 1
    over the number of updates used. γ_t is what the clients report; in a round without reports it
    is the last one reported. A submission that finds a saved state goes on with the round after the
    last one saved, and ends after round `num_rounds`, counted from the very first.

    Keyword names are those of Flower's FedAvg where the meaning is the same.

    Args:
        algorithm: the method.
        clients: N, or the names of the clients; who is not among them, or comes when there are N,
            is not asked.
        state: the folder in which the state is kept; None keeps it in memory only, and a new
            submission begins anew.
        ledger: the URL of the database for the participation log; None writes none.
        federation: the name under which the ledger has it.
        fraction_train: the share of the clients that are online and owe nothing that is asked,
            drawn uniformly.
        fraction_evaluate: the same for evaluations of the new model by clients; 0: none.
        min_train_nodes: at least so many are asked, if they are there.
        min_available_nodes: a round begins when so many nodes are online and owe nothing, or when
            `timeout` has passed; 0 never waits, so that a federation without nodes runs through
            its rounds at once.
        close_after: how many replies end the round; None: those of all who were asked.
        ttl: seconds after which an unanswered message is given up; a few times what the slowest
            client needs.
        seed: of the draws.
        clock: the time.

    Raises:
        InvalidInputError: a value outside its range; a database that cannot be written.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        clients: int | Sequence[str],
        state: str | Path | None = None,
        ledger: str | None = None,
        federation: str = "default",
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 1,
        min_available_nodes: int = 1,
        close_after: int | None = None,
        ttl: float = 43_200.0,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        for name, share in (("train", fraction_train), ("evaluate", fraction_evaluate)):
            if not 0 <= share <= 1:
                raise InvalidInputError(f"fraction_{name}: {share} is not within [0, 1]")
        if close_after is not None and close_after < 1:
            raise InvalidInputError(
                f"close_after: {close_after} is not at least 1; None waits for all"
            )
        if not ttl > 0:
            raise InvalidInputError(f"ttl: {ttl} is not a positive number of seconds")
        self.algorithm, self.seed, self.ttl = algorithm, seed, ttl
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_available_nodes = min_train_nodes, min_available_nodes
        self.close_after, self.late = close_after, takes_late(algorithm)
        self._form = form_of(algorithm)
        self._clients, self._clock = clients, clock or Clock()
        self._state = None if state is None else Path(state)
        self._ledger = None if ledger is None else Ledger(ledger, federation)

    @property
    def training(self) -> TrainingSession:
        """The training that `start` began."""
        return self._training

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Train until `num_rounds` rounds have ended, those of earlier submissions included.

        Args:
            grid: Flower's.
            initial_arrays: x_0, by name.
            num_rounds: how many rounds in all.
            timeout: how many seconds after asking a round ends at the latest; also how long it
                waits for nodes, and for an evaluation.
            train_config: sent along with every model; "lr" there overrides that of the clients
                that `fedtide.flower.client` made.
            evaluate_config: the same for evaluations.
            evaluate_fn: evaluates the model here, before the first round and after every round.

        Raises:
            InvalidInputError: arrays that are no model, a state or a ledger that does not belong to this.
        """
        self._begin(grid, initial_arrays)
        try:
            self._repair_ledger()
            self.summary()
            result = Result()
            self._evaluate_here(result, evaluate_fn)
            while self._training.round < num_rounds:
                log.info("[ROUND %s/%s]", self._training.round + 1, num_rounds)
                self._round(result, grid, timeout, train_config or ConfigRecord())
                if self.fraction_evaluate:
                    self._evaluate_there(result, grid, timeout, evaluate_config or ConfigRecord())
                self._evaluate_here(result, evaluate_fn)
        finally:
            self._training.close()
        result.arrays = self._record(self._training.output)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask for training, to the nodes that shall take part."""
        training, t = self._training, server_round - 1
        came_late = {owed.client for owed, _ in self._exchange.arrived("train") if self.late}
        nodes = self._free_nodes(except_for=came_late)
        for client in nodes:
            self._book.enter(client, "available")
        drawn = torch.tensor(self._drawn(sorted(nodes), self.fraction_train), dtype=torch.int64)
        cohort = self.algorithm.cohort(training.state, drawn)
        cohort = cohort[torch.isin(cohort, torch.tensor(sorted(nodes)))]
        told = self.algorithm.instruct(training.state, cohort)
        if told.model is not training.model:
            arrays = self._record(told.model)
        training.sent[t] = told.model
        messages = []
        for i, client in enumerate(cohort.tolist()):
            correction = None if told.correction is None else self._record(told.correction[i])
            content = train_content(
                arrays,
                told,
                correction,
                round=t,
                client=self._roster.names[client],
                taken=int(training.taken[client]),
                accepted=int(training.accepted[client]),
                form=self._form,
                requires_plain_sgd=self.algorithm.requires_plain_sgd,
                config=config,
            )
            messages.append(self._message(content, nodes[client], MessageType.TRAIN, t))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold in the replies, step, and return the new model and the mean of the figures."""
        reports: dict[int, Report] = {}
        for reply in replies:
            report = self._report(reply, server_round - 1)
            if report is None:
                continue
            there = reports.get(report.client)
            if there is None or there.asked < report.asked:
                reports[report.client] = report
        for report in reports.values():
            self._book.enter(report.client, "used", 1.0 / len(reports), report.asked)
        self._training.end_round(reports.values())
        log.info("%d updates used", len(reports))
        parts = [(report.samples, report.metrics) for report in reports.values()]
        return self._record(self._training.model), mean_figures(parts)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask for an evaluation."""
        nodes, told = self._free_nodes(), ConfigRecord(dict(config))
        told["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": told})
        return [
            self._message(content, nodes[client], MessageType.EVALUATE, server_round - 1)
            for client in self._drawn(sorted(nodes), self.fraction_evaluate)
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean of the clients' figures, weighted by their samples."""
        found = [figures(reply) for reply in replies if reply.has_content()]
        return mean_figures([one for one in found if one is not None])

    def summary(self) -> None:
        """Log how the strategy is set."""
        log.info("\t├──> Method: %s", self.algorithm)
        log.info("\t├──> Late updates: %s", "used" if self.late else "dropped")
        log.info("\t├──> State: %s", self._state or "in memory only")
        log.info("\t└──> Rounds that have ended: %d", self._training.round)

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Begin the training, or go on with the saved one."""
        layout, x = layout_of(initial_arrays)
        roster = NodeRegistry.of(self._clients)
        training = TrainingSession(
            self.algorithm, roster, layout, x, self._state, patience=_WAITS_FOR_ANOTHER_RUN
        )
        if training.run != grid.run.run_id:  # nobody can ask for another run's replies
            training.outstanding.messages.clear()
            training.run = grid.run.run_id
        self._training, self._roster = training, roster
        self._judge = ReplyValidator(layout, roster.names, reads_steps(self.algorithm))
        self._exchange = Exchange(grid, training.outstanding, self._clock)
        self._meeting = Meeting(self._exchange, roster, self.ttl)
        self._answered: dict[str, Owed] = {}

    def _round(self, result: Result, grid: Grid, timeout: float, config: ConfigRecord) -> None:
        """Run a round, and write it down."""
        training, exchange = self._training, self._exchange
        t, tick = training.round, self._clock.tick
        self._book = RoundLog(t, self._roster.names, self._clock.now)
        # 1. What arrived since the last round, and who is there.
        self._meeting.hold(t, self.min_available_nodes, tick() + timeout)
        # 2. Ask.
        messages = list(self.configure_train(t + 1, self._record(training.model), config, grid))
        asked = exchange.send(messages, self._owed("train", t))
        for owed in asked:
            assert owed.client is not None
            self._book.enter(owed.client, "selected")
        # 3. Wait.
        self._await(asked, self.close_after or len(asked), tick() + timeout)
        # 4. Fold in and step.
        answered = exchange.take("train")
        self._answered = {owed.message: owed for owed, _ in answered}
        _, metrics = self.aggregate_train(t + 1, [reply for _, reply in answered])
        # 5. Write down: the state holds the entries, in case the ledger is not reached.
        training.entries, training.ended_at = self._book.entries(), self._clock.now()
        training.save()
        if self._ledger is not None:
            self._ledger.commit(t, training.entries, training.ended_at)
        if metrics is not None:
            result.train_metrics_clientapp[t + 1] = metrics

    def _repair_ledger(self) -> None:
        """Add the last saved round, if a crash came between the state and the ledger."""
        if self._ledger is None:
            return
        ended, there = self._training.round, self._ledger.ended
        if there > ended or 0 < there < ended - 1:
            raise InvalidInputError(
                f"ledger: it has {there} rounds of {self._ledger.federation!r}, the state {ended}; "
                "restore those that belong together, or choose another name for the federation"
            )
        if ended:
            self._ledger.commit(ended - 1, self._training.entries, self._training.ended_at)

    def _report(self, reply: Message, t: int) -> Report | None:
        """Return what a reply reports, or None where it is not used in round t."""
        owed = self._answered.get(reply.metadata.reply_to_message_id)
        if owed is None or owed.client is None or owed.kind != "train":
            return None
        try:
            report = self._judge.report(reply, owed, self._training.sent[owed.round])
        except DeclinedReplyError:
            if owed.round == t:
                self._book.strike(owed.client)
            return None
        except RejectedReplyError as reason:
            log.warning("reply of %s not used: %s", self._roster.names[owed.client], reason)
            if reply.has_content():
                self._book.enter(owed.client, "reported", asked=owed.round)
            return None
        if owed.round == t or self.late:
            return report
        self._book.enter(owed.client, "reported", asked=owed.round)
        return None

    def _free_nodes(self, except_for: Iterable[int | None] = ()) -> dict[int, int]:
        """Return the node of each known client that is online and owes nothing."""
        busy = self._training.outstanding.busy
        online = [n.node_id for n in self._exchange.nodes() if n.node_id not in busy]
        known = {self._roster.number(node): node for node in online}
        return {n: node for n, node in known.items() if n is not None and n not in except_for}

    def _drawn(self, clients: list[int], fraction: float) -> list[int]:
        """Return a share of the clients, sorted."""
        size = min(len(clients), max(int(len(clients) * fraction), self.min_train_nodes))
        if size == len(clients):
            return clients
        draws = generator(self.seed, "flower", self._training.round)
        return sorted(draws.choice(np.array(clients), size, replace=False).tolist())

    def _message(self, content: RecordDict, node: int, kind: str, t: int) -> Message:
        return Message(content, node, kind, ttl=self.ttl, group_id=str(t + 1))

    def _owed(self, kind: Kind, t: int) -> Callable[[Message], Owed]:
        """Return what describes a message of this round as something that is owed."""
        sent = self._clock.now()

        def describe(message: Message) -> Owed:
            to, client = message.metadata, self._roster.number(message.metadata.dst_node_id)
            plain = kind != "train" or is_plain(message.content)
            return Owed(to.message_id, to.dst_node_id, kind, client, t, sent, plain)

        return describe

    def _await(self, asked: list[Owed], wanted: int, deadline: float) -> None:
        """Wait until so many of these messages are answered, or for the deadline."""
        owed, pending = {one.message for one in asked}, self._training.outstanding.messages
        self._exchange.collect(
            deadline, lambda: len(owed - pending.keys()) >= min(wanted, len(owed))
        )

    def _record(self, x: torch.Tensor) -> ArrayRecord:
        return record_of(x, self._training.layout)

    def _evaluate_there(
        self, result: Result, grid: Grid, timeout: float, config: ConfigRecord
    ) -> None:
        """Let clients evaluate the new model."""
        ended = self._training.round
        arrays = self._record(self._training.output)
        messages = list(self.configure_evaluate(ended, arrays, config, grid))
        asked = self._exchange.send(messages, self._owed("evaluate", ended - 1))
        self._await(asked, len(asked), self._clock.tick() + timeout)
        replies = [r for owed, r in self._exchange.take("evaluate") if owed.round == ended - 1]
        metrics = self.aggregate_evaluate(ended, replies)
        if metrics is not None:
            result.evaluate_metrics_clientapp[ended] = metrics

    def _evaluate_here(self, result: Result, evaluate_fn: EvaluateFn | None) -> None:
        """Evaluate the model on the server, if that is wanted."""
        if evaluate_fn is None:
            return
        ended = self._training.round
        found = evaluate_fn(ended, self._record(self._training.output))
        if found is not None:
            log.info("Evaluation after round %d: %s", ended, found)
            result.evaluate_metrics_serverapp[ended] = found
