"""The strategy: runs any of fedtide's methods on a Flower federation with intermittent clients."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedtide.algorithms import Algorithm, Cohort
from fedtide.differential_privacy import Mechanism, make_private, shut_out
from fedtide.errors import InvalidInputError, printable, quantify
from fedtide.flower._flwr_messages import OBJECT_BYTES
from fedtide.flower._flwr_private import SuperLinkError, get_run_id
from fedtide.flower.arrays import ModelWriter, flatten_initial, widen_half
from fedtide.flower.ledger.ledger import Ledger
from fedtide.flower.protocol import build_round_config, build_train_content, draw_nonce
from fedtide.flower.server.client_metrics import MetricsAggregator, aggregate_metrics
from fedtide.flower.server.discovery import Discovery
from fedtide.flower.server.limited_warnings import LimitedWarnings
from fedtide.flower.server.memory import frozen_objects, return_freed_memory
from fedtide.flower.server.node_registry import NodeRegistry
from fedtide.flower.server.recovery import reconcile
from fedtide.flower.server.reply_validation import (
    DeclinedReplyError,
    RejectedReplyError,
    ReplyValidator,
)
from fedtide.flower.server.round_log import RoundLog
from fedtide.flower.server.session import TrainingSession
from fedtide.flower.server.transport import Clock, PendingReply, Transport
from fedtide.flower.server.validated_updates import ValidatedUpdate, find_odd_rates
from fedtide.locking import lock_folder
from fedtide.participation import Selection
from fedtide.problems.layout import Layout
from fedtide.randomness import generator
from fedtide.validation import require_number, require_positive, require_whole_number

log = getLogger("flwr")

_LOCK_PATIENCE = 180.0  # seconds; Flower ends a run whose server app died after about 70

_REPLY_MODELS = 3
"""How many models in float64 a reply may hold: an update, gradients, and one to spare."""
_LARGEST_REPLY = 16e6
"""How many further bytes a reply may have, for metrics and headers."""

_RESEND_PAUSE = 10.0  # seconds between attempts to send when the SuperLink fails at every request

_STEP_CYCLE = 2**31
"""Step counts are sent modulo this, as clients count in 32 bits: one that has reported a huge count
must still be able to train."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FedTide(Strategy):
    """Runs a method of `fedtide.algorithms` on a Flower federation.

    A round, t = 0, 1, ... (Flower's server_round is t + 1):

    1. List the nodes that are online. New ones are asked for their names (see `NodeRegistry`), but
       not waited for: a client takes part from the first round that begins after its answer.
    2. Ask nodes without a pending request to train, as the method instructs.
    3. Wait until all of them have answered, `close_after` of them have sent a usable update, or the
       deadline has passed.
    4. Aggregate the updates in the order of the clients' numbers; replies that are errors,
       malformed, not finite, or make a false claim are left out and logged. The method takes its
       server step even without any update.
    5. Save model, state, round and pending replies, then add the round to the ledger.

    A reply to an earlier round counts in the round in which it arrives if the method allows that
    (MIFA, FedLaAvg, FedVARP), and is dropped otherwise. The participation weight is q_t^n = 1 over
    the number of updates used. γ_t is the local learning rate that the clients report, or the last
    one reported if the round has no updates. A submission that finds a saved state resumes with the
    next round; `num_rounds` counts from the first submission.

    Keyword names are those of Flower's FedAvg where the meaning is the same.

    Args:
        algorithm: the method.
        clients: N, or the names of the clients; a client with another name, or beyond N, is not
            asked to train. Without names, clients are numbered as they join, so a method with a
            value for each client (rates, groups) needs the names. A later submission may add
            clients, with their names after the existing ones.
        state: the folder in which the state is kept; None keeps it in memory only, and a new
            submission starts from round 0. `privacy` requires it.
        ledger: the URL of the database for the participation log; None writes none.
        federation: the federation's name in the ledger.
        fraction_train: the share of the online clients without a pending request that is asked to
            train, sampled uniformly; with `privacy`, of those that may take part.
        fraction_evaluate: the same for evaluating the new model on clients; 0: no evaluation.
        min_train_nodes: ask at least this many clients to train, if so many are online; with
            `fraction_train=0.0`, exactly this many (Flower's FedAvg would not train at all).
        selection: chooses which of the online clients without a pending request are asked to
            train, such as `UniformOf(size=100)`; None: `fraction_train` and `min_train_nodes` say.
        min_available_nodes: a round begins once this many nodes are online without a pending
            request, or after `timeout`; 0 never waits, so that a federation without nodes runs
            through its rounds at once. With `privacy`, one of them must be a client with budget
            left.
        close_after: a round ends after this many updates, each valid by itself; None: it waits for
            the replies of all clients that were asked.
        train_metrics_aggr_fn: combines the metrics of the clients whose updates were used into one
            MetricRecord. It is called as by Flower's FedAvg: with a list of RecordDict, each with a
            client's metrics as its record "metrics", and the name "num-examples". None: means
            weighted by samples, and the number of clients. If it raises, the round has no metrics.
        evaluate_metrics_aggr_fn: the same for evaluations.
        ttl: seconds after which an unanswered request is given up; choose a few times what the
            slowest client needs.
        seed: of the sampling, or of the selection.
        privacy: clips updates and adds noise to the method's sums (`fedtide.privacy`). The noise
            comes from the operating system's cryptographic random source. Training ends early when
            no client may take part any more, counting the rounds of all submissions with this
            `state`. Client metrics and the ledger are not protected.
        clock: where the time comes from.
        metrics_port: the port at which the page and the metrics of `fedtide watch` are served from
            the ledger while `start` runs; None: they are not.
        metrics_host: the address to serve them at.

    Raises:
        InvalidInputError: a value outside its range; `privacy` without `state`; a database that
            cannot be written.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        *,
        clients: int | Sequence[str],
        state: str | Path | None = None,
        ledger: str | None = None,
        federation: str = "default",
        fraction_train: float = 1.0,
        selection: Selection | None = None,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 1,
        min_available_nodes: int = 1,
        close_after: int | None = None,
        train_metrics_aggr_fn: MetricsAggregator | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregator | None = None,
        ttl: float = 43_200.0,
        seed: int = 0,
        privacy: Mechanism | None = None,
        clock: Clock | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> None:
        registry = NodeRegistry.from_clients(clients)
        self._clients = registry.names or registry.size  # names may come from an iterator
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_available_nodes = min_train_nodes, min_available_nodes
        self.selection = selection
        self.close_after, self.ttl, self.seed = close_after, ttl, seed
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self._check_settings(registry.size)
        if not isinstance(clock, Clock | None):
            raise InvalidInputError(f"clock: {clock!r:.60} is not a Clock; leave it out")
        self._clock = clock or Clock()
        if not isinstance(state, str | Path | None):
            raise InvalidInputError(f"state: {state!r:.60} is not a path; give that of a folder")
        self._state = None if state is None else Path(state)
        if not isinstance(algorithm, Algorithm):
            raise InvalidInputError(
                f"algorithm: {algorithm!r} is not an algorithm; give one, such as FedAU(cutoff=50)"
            )
        self._private = privacy is not None
        if self._private and state is None:
            raise InvalidInputError(
                "state: with privacy, what clients lose must outlast a submission, or the next one "
                "begins with whole budgets; give a folder"
            )
        self.algorithm = algorithm if privacy is None else make_private(algorithm, privacy, None)
        self._watch: Callable[[], AbstractContextManager[object]] = nullcontext
        if metrics_port is not None:
            require_whole_number("metrics_port", metrics_port, low=0)
            if ledger is None:
                raise InvalidInputError("metrics_port: the page reads the ledger; give ledger, too")
            self._watch = partial(
                _watch, f"{ledger}#{federation}", self._clients, metrics_host, metrics_port
            )
        self._ledger = None if ledger is None else Ledger(ledger, federation)

    def _check_settings(self, clients: int) -> None:
        """Raise InvalidInputError for a value outside its range; `clients` is N."""
        _require_share("fraction_train", self.fraction_train)
        _require_share("fraction_evaluate", self.fraction_evaluate)
        require_whole_number("min_train_nodes", self.min_train_nodes, low=0)
        if not isinstance(self.selection, Selection | None):
            raise InvalidInputError(
                f"selection: {self.selection!r:.60} is not a selection; give one, such as "
                "fedtide.participation.UniformOf(size=100)"
            )
        if self.selection is not None and (self.fraction_train, self.min_train_nodes) != (1, 1):
            raise InvalidInputError(
                "selection: cannot be combined with fraction_train or min_train_nodes; leave these "
                "out"
            )
        require_whole_number("min_available_nodes", self.min_available_nodes, low=0)
        if self.min_available_nodes > clients:
            raise InvalidInputError(
                f"min_available_nodes: {self.min_available_nodes} nodes of "
                f"{quantify(clients, 'client')}, so every round would wait for its timeout; give "
                f"at most {clients}"
            )
        if self.close_after is not None:
            require_whole_number("close_after", self.close_after)
        _require_aggregator("train_metrics_aggr_fn", self.train_metrics_aggr_fn)
        _require_aggregator("evaluate_metrics_aggr_fn", self.evaluate_metrics_aggr_fn)
        require_positive("ttl", self.ttl)
        require_whole_number("seed", self.seed, low=0)

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
        """Train until `num_rounds` rounds have ended, including those of earlier submissions.

        Args:
            grid: Flower's.
            initial_arrays: x_0, by name.
            num_rounds: the total number of rounds.
            timeout: the longest time in seconds from a round's requests to its end, and the longest
                wait for nodes and for an evaluation.
            train_config: sent along with every model; "lr" in it overrides the learning rate of
                clients made by `fedtide.flower.client`.
            evaluate_config: the same for evaluations.
            evaluate_fn: evaluates the model on the server, before the first and after every round.

        Raises:
            InvalidInputError: arrays that are not a model; an "lr" that is not positive; a state
                or a ledger of another federation; a state folder that another run is using.
        """
        require_number("timeout", timeout)
        if not timeout >= 0:
            raise InvalidInputError(f"timeout: {timeout} is not a number of seconds")
        require_whole_number("num_rounds", num_rounds, low=0)
        _require_rate(train_config or ConfigRecord())
        return_freed_memory()
        with self._lock_state(), self._watch(), frozen_objects():
            self._begin(grid, initial_arrays)
            reconcile(self._training, self._ledger, self._private)
            self.summary()
            result = Result()
            self._evaluate_on_server(result, evaluate_fn)
            first = self._training.round
            while self._training.round < num_rounds:
                if self._training.is_finished:
                    log.info("The privacy budgets of all clients are spent: training ends")
                    break
                log.info("[ROUND %s/%s]", self._training.round + 1, num_rounds)
                self._run_round(result, grid, timeout, train_config or ConfigRecord())
                if self.fraction_evaluate:
                    config = evaluate_config or ConfigRecord()
                    self._evaluate_on_clients(result, grid, timeout, config)
                self._evaluate_on_server(result, evaluate_fn)
            _warn_without_updates(self._outcomes, self._training.round - first)
        result.arrays = self._writer.to_arrays(self._training.output)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests to train, one for each node of the cohort."""
        training, t, traits = self._training, server_round - 1, self.algorithm.traits
        nodes = self._free_nodes()
        if traits.accepts_stale_updates:  # clients that just answered late are not asked
            late = {pending.client for pending, _ in self._transport.arrived("train")}
            nodes = {client: node for client, node in nodes.items() if client not in late}
        for client in nodes:
            self._round_log.record(client, "available")
        cohort = self._select_cohort(sorted(nodes))
        instructions = training.driver.instruct(cohort)
        if instructions.model is not training.model:
            arrays = self._writer.to_request(instructions.model)
        training.sent_models[t] = widen_half(self._writer.narrow(instructions.model))
        config = build_round_config(
            instructions,
            t,
            form=traits.client_form,
            requires_plain_sgd=traits.requires_plain_sgd,
            run_config=config,
        )
        common = RecordDict({"arrays": arrays, "config": config})
        steps_taken = (training.steps_taken % _STEP_CYCLE).tolist()
        accepted = training.accepted_rounds.tolist()
        messages = []
        for i, client in enumerate(cohort.tolist()):
            correction = instructions.correction
            content = build_train_content(
                common,
                None if correction is None else self._writer.to_request(correction[i]),
                client=self._registry.names[client],
                steps_taken=steps_taken[client],
                accepted_round=accepted[client],
            )
            messages.append(self._message(content, nodes[client], MessageType.TRAIN, t))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies and step; return the new model and the clients' metrics."""
        metrics = self._end_round(replies, server_round - 1)
        return self._writer.to_arrays(self._training.model), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests to evaluate the model."""
        nodes, round_config = self._free_nodes(), ConfigRecord(dict(config) | draw_nonce())
        round_config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": round_config})
        return [
            self._message(content, nodes[client], MessageType.EVALUATE, server_round - 1)
            for client in self._sample(sorted(nodes), self.fraction_evaluate, "flower-evaluate")
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the clients' metrics, aggregated."""
        parts, unused = [], LimitedWarnings("Further evaluations not used: %d")
        for reply in replies:
            asked = self._answered.get(reply.metadata.reply_to_message_id)
            if asked is not None and asked.client is not None:
                try:
                    parts.append(self._validator.read_metrics(reply, asked))
                except DeclinedReplyError:
                    continue
                except RejectedReplyError as error:
                    unused.warn("evaluation by node %d not used: %s", asked.node_id, error)
        unused.close()
        return aggregate_metrics(parts, self.evaluate_metrics_aggr_fn)

    def summary(self) -> None:
        """Log the strategy's settings."""
        log.info("\t├──> Method: %s", self.algorithm)
        late = "used" if self.algorithm.traits.accepts_stale_updates else "dropped"
        log.info("\t├──> Late updates: %s", late)
        if self.selection is not None:
            log.info("\t├──> Selection: %s", self.selection)
        log.info("\t├──> State: %s", self._state or "in memory only")
        name = None if self._ledger is None else self._ledger.federation
        log.info("\t├──> Ledger: %s", "none" if name is None else f"federation {name!r}")
        log.info("\t└──> Rounds that have ended: %d", self._training.round)

    def _lock_state(self) -> AbstractContextManager[None]:
        """Keep other runs from the folder of the state."""
        if self._state is None:
            return nullcontext()
        hint = "stop it first (flwr stop)"
        return lock_folder(self._state, "state", hint, _LOCK_PATIENCE, log, mode=0o700)

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Begin the training, or resume the saved one."""
        registry = NodeRegistry.from_clients(self._clients)
        layout, x = flatten_initial(initial_arrays)
        training = TrainingSession(
            self.algorithm, registry, layout, x, self._state, self.selection, self.seed
        )
        run = get_run_id(grid)
        if training.run != run:  # replies to another run's messages cannot be pulled
            training.pending.messages.clear()
            training.run = run
        self._training, self._registry = training, registry
        self._validator = ReplyValidator(
            training.layout,
            registry.names,
            self.algorithm.traits.uses_local_lr,
            training.sent_models,
        )
        self._transport = Transport(
            grid,
            training.pending,
            self._clock,
            registry.client_at,
            largest=_LARGEST_REPLY + _REPLY_MODELS * _count_bytes(training.layout),
        )
        self._discovery = Discovery(self._transport, registry)
        self._answered: dict[str, PendingReply] = {}
        self._outcomes: Counter[str] = Counter()  # of clients in the rounds of this submission
        self._writer = ModelWriter(training.layout, sends_half=x.dtype == torch.float16)
        self._began = self._clock.now() - self._clock.tick()

    def _now(self) -> float:
        """Return the time in seconds since 1970; it never decreases, even if the clock is set."""
        return self._began + self._clock.tick()

    def _run_round(self, result: Result, grid: Grid, timeout: float, config: ConfigRecord) -> None:
        """Run a round and save it; the numbers are the steps of the class docstring."""
        training = self._training
        t, tick = training.round, self._clock.tick
        self._round_log = RoundLog(t, self._registry.names, self._now)
        # 1.
        spent = shut_out(training.driver.algorithm, training.driver.state)
        self._discovery.wait_for_nodes(t, self.min_available_nodes, tick() + timeout, spent)
        for client in self._discovery.claimed_clients():
            self._round_log.record(client, "available", reason="unregistered")
        # 2.
        self._writer.renew_blanks()
        arrays = self._writer.to_request(training.model)
        requests = self.configure_train(t + 1, arrays, config, grid)
        sent = self._send_requests(list(requests), t, tick() + timeout)
        del arrays, requests  # they may hold a model for each client
        for pending in sent:
            assert pending.client is not None
            self._round_log.record(pending.client, "selected", reason="no reply")  # until one comes
        # 3.
        self._await_updates(sent, tick() + timeout)
        # 4.
        metrics = self.aggregate_train(t + 1, _drain(self._take_updates()))[1]
        # 5. The state holds the entries too, in case of a crash before the ledger has them.
        training.entries, training.ended_at = self._round_log.close(), self._now()
        self._outcomes.update(entry.reason or entry.stage for entry in training.entries)
        training.save()
        if self._private:
            training.mark_published()
        if self._ledger is not None:
            self._ledger.commit(t, training.entries, training.ended_at)
        if metrics is not None:
            log.info("Training in round %d: %s", t + 1, printable(repr(metrics), 1000))
            result.train_metrics_clientapp[t + 1] = metrics

    def _send_requests(
        self, requests: Sequence[Message], t: int, deadline: float
    ) -> list[PendingReply]:
        """Send the requests of round t, again until the deadline if the SuperLink fails at all.

        Replies are received between attempts: the cause may be an upload that has stopped, which
        the SuperLink drops only when its reply is pulled.

        Raises:
            InvalidInputError: it still fails. Otherwise one round without clients would follow
                another.
        """
        while True:
            try:
                return self._transport.send(requests, "train", t)
            except SuperLinkError as error:
                now = self._clock.tick()
                if now >= deadline:
                    raise InvalidInputError(
                        f"grid: the SuperLink fails at every request ({error}); see its log, then "
                        "submit the run again"
                    ) from None
                log.warning("Requests are sent again, as the SuperLink fails at each: %s", error)
                until = min(now + _RESEND_PAUSE, deadline)
                self._transport.collect(until, lambda: False, lambda: None)

    def _take_updates(self) -> deque[Message]:
        """Take the replies to requests to train from the inbox; log those that cannot be read."""
        self._discovery.read_answers()  # a node may say that it is another client
        replies = deque[Message]()
        self._answered = {}
        for pending, reply in self._transport.take("train"):
            if isinstance(reply, Message):
                self._answered[pending.message_id] = pending
                replies.append(reply)
            else:
                assert pending.client is not None
                text = f"it cannot be read: {reply}"
                self._round_log.reject(pending.client, pending.round, "malformed", text)
        return replies

    def _end_round(self, replies: Iterable[Message], t: int) -> MetricRecord | None:
        """Aggregate the replies and step; return the clients' metrics.

        Models may be large: no update is kept when this returns.
        """
        updates = self._validate_all(replies, t)
        if self.algorithm.traits.uses_local_lr:
            for client in find_odd_rates(updates.values(), self._training.lr):
                text, asked = "its lr is not that of the other clients", updates.pop(client).round
                self._round_log.reject(client, asked, "learning rate", text)
        used = self._training.end_round(updates.values())
        for client in updates.keys() - {update.client for update in used}:
            text = "with it the state would exceed the range of its numbers"
            self._round_log.reject(client, updates[client].round, "unbounded", text)
        for update in used:
            self._round_log.record(update.client, "used", 1.0 / len(used), update.round)
        log.info("%s used", quantify(len(used), "update"))
        parts = [(update.samples, update.metrics) for update in used]
        return aggregate_metrics(parts, self.train_metrics_aggr_fn)

    def _validate_all(self, replies: Iterable[Message], t: int) -> dict[int, ValidatedUpdate]:
        """Return the newest valid update of each client, without keeping the replies."""
        updates: dict[int, ValidatedUpdate] = {}
        for reply in replies:
            update = self._validate(reply, t)
            if update is None:
                continue
            earlier = updates.get(update.client)
            if earlier is None or earlier.round < update.round:
                updates[update.client] = update
        return updates

    def _validate(self, reply: Message, t: int) -> ValidatedUpdate | None:
        """Return the update in a reply, or None if it is not used in round t."""
        pending = self._answered.get(reply.metadata.reply_to_message_id)
        if pending is None or pending.client is None:
            return None
        try:
            update = self._validator.validate(reply, pending)
            if update.round <= int(self._training.accepted_rounds[update.client]):
                text = f"it answers round {update.round + 1}; a newer update has been used already"
                raise RejectedReplyError("late", text)
            return update
        except DeclinedReplyError:
            if pending.round == t:
                self._round_log.remove(pending.client)
        except RejectedReplyError as error:
            end = self._round_log.reject if reply.has_content() else self._round_log.fail
            end(pending.client, pending.round, error.reason, str(error))
        return None

    def _select_cohort(self, present: list[int]) -> torch.Tensor:
        """Return which of the clients that are present are asked to train, shape (S,)."""
        candidates = present
        if self._private:  # else all sampled clients might be shut out, and the round be mere noise
            candidates = sorted(self._choose(present).tolist())
        training = self._training
        if training.selection is not None:
            sample = training.selection.select(training.round, candidates)
        else:
            sample = self._sample(candidates, self.fraction_train, "flower", self.min_train_nodes)
        cohort = self._choose(sample)
        return cohort[torch.isin(cohort, torch.tensor(present))]

    def _choose(self, clients: list[int]) -> torch.Tensor:
        """Return which clients the method asks to train if these are present, shape (S,)."""
        present = Cohort.uniform(torch.tensor(clients, dtype=torch.int64))
        return self._training.driver.choose_cohort(present).clients

    def _free_nodes(self) -> dict[int, int]:
        """Return the node of each known client that is online and has no pending request."""
        busy = self._training.pending.busy_nodes
        online = [n.node_id for n in self._transport.list_nodes() if n.node_id not in busy]
        known = {self._registry.client_at(node_id): node_id for node_id in online}
        return {n: node_id for n, node_id in known.items() if n is not None}

    def _sample(
        self, clients: list[int], fraction: float, purpose: str, least: int = 1
    ) -> list[int]:
        """Return a random share of the clients, sorted; draws for each purpose are independent."""
        size = min(len(clients), max(int(len(clients) * fraction), least))
        if size == len(clients):
            return clients
        draws = generator(self.seed, purpose, self._training.round)
        return sorted(draws.choice(np.array(clients), size, replace=False).tolist())

    def _message(self, content: RecordDict, node_id: int, kind: str, t: int) -> Message:
        return Message(content, node_id, kind, ttl=self.ttl, group_id=str(t + 1))

    def _await_updates(self, sent: list[PendingReply], deadline: float) -> None:
        """Wait until all of these requests are answered, or `close_after` with a usable update.

        Errors, refusals and unreadable replies come fast, and must not end the round before the
        updates arrive.
        """
        ids, usable, wanted = {one.message_id for one in sent}, dict[str, bool](), self.close_after

        def is_enough() -> bool:
            if wanted is None:
                return False
            for one, reply in self._transport.arrived("train"):
                if one.message_id in ids and one.message_id not in usable:
                    usable[one.message_id] = self._is_usable(reply, one)
            return sum(usable.values()) >= wanted

        self._await_replies(ids, deadline, is_enough)

    def _is_usable(self, reply: Message | str, pending: PendingReply) -> bool:
        if isinstance(reply, str):
            return False
        try:
            self._validator.validate(reply, pending)
        except (DeclinedReplyError, RejectedReplyError):
            return False
        return True

    def _await_replies(
        self, ids: set[str], deadline: float, is_enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until all of these messages are answered, `is_enough`, or until the deadline."""
        pending = self._training.pending.messages
        self._transport.collect(
            deadline,
            lambda: ids.isdisjoint(pending) or is_enough(),
            lambda: self._discovery.identify(self._training.round),
        )

    def _evaluate_on_clients(
        self, result: Result, grid: Grid, timeout: float, config: ConfigRecord
    ) -> None:
        ended = self._training.round
        self._writer.renew_blanks()
        arrays = self._writer.to_request(self._training.output)
        messages = list(self.configure_evaluate(ended, arrays, config, grid))
        try:
            sent = self._transport.send(messages, "evaluate", ended - 1)
        except SuperLinkError as error:
            log.warning("No evaluation: the SuperLink fails at every request: %s", error)
            return
        self._await_replies({one.message_id for one in sent}, self._clock.tick() + timeout)
        taken = [one for one in self._transport.take("evaluate") if one[0].round == ended - 1]
        self._answered = {pending.message_id: pending for pending, _ in taken}
        replies, unread = [], LimitedWarnings("Further evaluations that cannot be read: %d")
        for pending, reply in taken:
            if isinstance(reply, Message):
                replies.append(reply)
            else:
                unread.warn("evaluation by node %d cannot be read: %s", pending.node_id, reply)
        unread.close()
        metrics = self.aggregate_evaluate(ended, replies)
        if metrics is not None:
            text = printable(repr(metrics), 1000)
            log.info("Evaluation by clients after round %d: %s", ended, text)
            result.evaluate_metrics_clientapp[ended] = metrics

    def _evaluate_on_server(self, result: Result, evaluate_fn: EvaluateFn | None) -> None:
        if evaluate_fn is None:
            return
        ended = self._training.round
        metrics = evaluate_fn(ended, self._writer.to_arrays(self._training.output))
        if metrics is not None:
            log.info("Evaluation after round %d: %s", ended, metrics)
            result.evaluate_metrics_serverapp[ended] = metrics


def _require_share(name: str, share: object) -> None:
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InvalidInputError(f"{name}: {share!r:.60} is not within [0, 1]; give a share")


def _require_aggregator(name: str, function: object) -> None:
    if function is not None and not callable(function):
        raise InvalidInputError(
            f"{name}: {function!r:.60} is not a function; give one, or None for weighted means"
        )


def _require_rate(train_config: ConfigRecord) -> None:
    """Raise InvalidInputError for a learning rate that is not positive."""
    lr = train_config.get("lr", 1.0)
    if isinstance(lr, bool) or not isinstance(lr, int | float):
        raise InvalidInputError(f"train_config.lr: {lr!r:.60} is not a number; give a positive one")
    require_positive("train_config.lr", lr)


def _warn_without_updates(outcomes: Counter[str], rounds: int) -> None:
    """Log why no update was used, if there were rounds and none of them used any.

    Args:
        outcomes: how often each reason for leaving out a client, or else each stage, occurred.
        rounds: how many there were.
    """
    if not rounds or outcomes["used"]:
        return
    reasons = [f"{name} ({n})" for name, n in outcomes.most_common() if name != "available"]
    if not reasons:
        unasked = "available" in outcomes
        absent = "none of the clients was online, or all declined"
        reasons = ["no client was asked to train" if unasked else absent]
    text = ", ".join(reasons[:3])
    log.warning("No update was used in this submission (rounds: %d): %s", rounds, text)


def _count_bytes(layout: Layout) -> int:
    """Return the bytes of a model in float64; Flower makes at least two objects of each array."""
    return 8 * layout.size + 2 * OBJECT_BYTES * len(layout.shapes)


def _drain(replies: deque[Message]) -> Iterator[Message]:
    """Yield the replies; each is released as soon as the next one is asked for."""
    while replies:
        yield replies.popleft()


@contextmanager
def _watch(url: str, clients: int | Sequence[str], host: str, port: int) -> Iterator[None]:
    """Serve the page and the metrics of a ledger."""
    from fedtide.monitoring.monitor import Monitor, MonitorSettings  # needs fedtide[watch]
    from fedtide.monitoring.server import serve

    with serve(Monitor(url, MonitorSettings(clients)), host, port) as server:
        log.info("Page and metrics: %s", server.url)
        yield
