"""The strategy: runs any of fedtide's methods on a Flower federation with intermittent clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedtide.algorithms import Algorithm, FedAvg
from fedtide.differential_privacy import Mechanism, largest_epsilon, make_private, shut_out
from fedtide.errors import InvalidInputError, MissingExtraError, printable, quantify
from fedtide.flower.arrays import ModelWriter, flatten_initial, widen_half
from fedtide.flower.ledger.ledger import Ledger
from fedtide.flower.protocol import build_round_config, build_train_content
from fedtide.flower.server.client_evaluation import (
    ClientEvaluation,
    MetricsAggregator,
    aggregate_metrics,
)
from fedtide.flower.server.discovery import Discovery
from fedtide.flower.server.node_registry import NodeRegistry
from fedtide.flower.server.recovery import reconcile
from fedtide.flower.server.reply_validation import ReplyValidator
from fedtide.flower.server.round_log import RoundLog
from fedtide.flower.server.round_updates import UpdateReader
from fedtide.flower.server.saved_selection import draw_share
from fedtide.flower.server.session import TrainingSession, lock_state
from fedtide.flower.server.transport import Clock, Transport, largest_reply
from fedtide.participation import Selection
from fedtide.validation import (
    require_number,
    require_positive,
    require_whole_number,
)

log = getLogger("flwr")

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
    5. Save model, state and round, then add the round to the ledger.

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
        keep_every: the states after every so many rounds are kept, so that `fedtide ledger
            rollback` can go back to them; None: only the last two.
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
        train_metrics_aggr_fn: combines the metrics of the clients whose updates were used; called
            as by Flower's FedAvg. None: medians over the clients, and their number.
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
        keep_every: int | None = None,
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
        for name, share in (("train", fraction_train), ("evaluate", fraction_evaluate)):
            if not 0 <= share <= 1:
                raise InvalidInputError(
                    f"fraction_{name}: {share} is not within [0, 1]; give a share"
                )
        require_whole_number("min_train_nodes", min_train_nodes, low=0)
        require_whole_number("min_available_nodes", min_available_nodes, low=0)
        require_whole_number("close_after", 1 if close_after is None else close_after)
        require_whole_number("keep_every", 1 if keep_every is None else keep_every)
        require_positive("ttl", ttl)
        require_whole_number("seed", seed, low=0)
        if selection is not None and (fraction_train, min_train_nodes) != (1, 1):
            raise InvalidInputError(
                "selection: cannot be combined with fraction_train or min_train_nodes; leave these "
                "out"
            )
        if not isinstance(algorithm, Algorithm):
            raise InvalidInputError(
                f"algorithm: {algorithm!r} is not an algorithm; give one, such as FedAU(cutoff=50)"
            )
        if privacy is not None and state is None:
            raise InvalidInputError(
                "state: with privacy, what clients lose must outlast a submission, or the next one "
                "begins with whole budgets; give a folder"
            )
        if metrics_port is not None and ledger is None:
            raise InvalidInputError("metrics_port: the page reads the ledger; give ledger, too")
        self.algorithm = algorithm if privacy is None else make_private(algorithm, privacy, None)
        self.selection, self.close_after, self.ttl, self.seed = selection, close_after, ttl, seed
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_available_nodes = min_train_nodes, min_available_nodes
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self._private, self._clock = privacy is not None, clock or Clock()
        self._state, self._keep_every = None if state is None else Path(state), keep_every
        self._page = metrics_host, metrics_port, f"{ledger}#{federation}"
        self._ledger = None if ledger is None else Ledger(ledger, federation)
        self._quarantined: set[int] = set()

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
        config = train_config or ConfigRecord()
        require_number("train_config.lr", config.get("lr", 1.0))
        require_positive("train_config.lr", config.get("lr", 1.0))  # type: ignore[arg-type]
        with lock_state(self._state), self._serve_page():
            self._begin(grid, initial_arrays)
            reconcile(self._training, self._ledger, self._private)
            self.summary()
            result = Result()
            self._evaluate_on_server(result, evaluate_fn)
            while self._training.round < num_rounds:
                if self._training.is_finished:
                    log.info("The privacy budgets of all clients are spent: training ends")
                    break
                log.info("[ROUND %s/%s]", self._training.round + 1, num_rounds)
                self._run_round(result, grid, timeout, config)
                if self.fraction_evaluate:
                    self._evaluate_on_clients(result, grid, timeout, evaluate_config)
                self._evaluate_on_server(result, evaluate_fn)
            result.arrays = self._writer.to_arrays(self._training.output)
        return result

    def _run_round(self, result: Result, grid: Grid, timeout: float, config: ConfigRecord) -> None:
        """Run a round and save it; the numbers are the steps of the class docstring."""
        training, t, tick = self._training, self._training.round, self._clock.tick
        self._round_log = RoundLog(t, self._registry.names, self._transport.now)
        # 1.
        self._read_quarantine()
        out = shut_out(training.driver.algorithm, training.driver.state) | self._quarantined
        self._discovery.wait_for_nodes(t, self.min_available_nodes, tick() + timeout, out)
        # 2.
        self._writer.renew_blanks()
        arrays = self._writer.to_request(training.model)
        requests = list(self.configure_train(t + 1, arrays, config, grid))
        sent = self._transport.send_until(tick() + timeout, requests, "train", t)
        del arrays, requests  # they may hold a model for each client
        for one in sent:
            assert one.client is not None
            self._round_log.record(one.client, "selected", reason="no reply")  # until one comes
        # 3.
        self._updates.wait({one.message_id for one in sent}, tick() + timeout, self.close_after)
        # 4.
        self._discovery.read_answers()  # a node may say that it is another client
        _, metrics = self.aggregate_train(t + 1, self._transport.drain("train"))
        # 5. The state holds the entries too, in case of a crash before the ledger has them.
        training.entries, training.ended_at = self._round_log.close(), self._transport.now()
        uses_late = self.algorithm.traits.accepts_stale_updates
        for ended in self._sent_models.keys() - (self._transport.rounds if uses_late else set()):
            del self._sent_models[ended]
        training.save()
        if self._private:
            training.mark_published()
        if self._ledger is not None:
            self._ledger.commit(t, training.entries, training.ended_at)
        unused = Counter(entry.reason for entry in training.entries if entry.reason)
        why = "".join(f"; {reason}: {count}" for reason, count in unused.most_common())
        used = sum(entry.stage == "used" for entry in training.entries)
        log.info("%s used%s", quantify(used, "update"), why)
        self._keep("training", metrics, result.train_metrics_clientapp, "Training in round")
        if self._private and self._ledger is not None:
            with suppress(MissingExtraError):  # nothing but a budget needs dp-accounting
                epsilon = largest_epsilon(training.driver.algorithm, training.driver.state)
                self._ledger.record(t, "privacy", {"epsilon": epsilon or 0.0})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests to train, one for each node of the cohort."""
        training, t, traits = self._training, server_round - 1, self.algorithm.traits
        nodes = self._discovery.free_nodes()
        if traits.accepts_stale_updates:  # clients that just answered late are not asked
            late = {pending.client for pending, _ in self._transport.arrived("train")}
            nodes = {client: node for client, node in nodes.items() if client not in late}
        for client in nodes:
            self._round_log.record(client, "available")
        nodes = self._without_quarantined(nodes)
        least, draws = self.min_train_nodes, (self.seed, "flower", t)
        sample = partial(draw_share, fraction=self.fraction_train, least=least, draws=draws)
        cohort = training.select_cohort(sorted(nodes), sample, self._private)
        instructions = training.driver.instruct(cohort)
        if instructions.model is not training.model:
            arrays = self._writer.to_request(instructions.model)
        self._sent_models[t] = widen_half(self._writer.narrow(instructions.model))
        form, plain_sgd = traits.client_form, traits.requires_plain_sgd
        config = build_round_config(instructions, t, form, plain_sgd, run_config=config)
        common = RecordDict({"arrays": arrays, "config": config})
        steps_taken = (training.steps_taken % 2**31).tolist()  # clients count in 32 bits
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
            group, kind = str(server_round), MessageType.TRAIN
            messages.append(Message(content, nodes[client], kind, ttl=self.ttl, group_id=group))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies and step; return the new model and the clients' metrics."""
        metrics = self._end_round(replies, server_round - 1)
        return self._writer.to_arrays(self._training.model), metrics

    def _end_round(self, replies: Iterable[Message], t: int) -> MetricRecord | None:
        """Aggregate the replies and step; models may be large: no update is kept."""
        training = self._training
        self._read_quarantine()
        record, quarantined = self._round_log.record, self._quarantined
        updates = self._updates.read(replies, t, training.lr, self._round_log, quarantined)
        weights = training.end_round(updates.values())
        used = sorted(updates.values(), key=lambda update: update.client)
        for update in used:
            record(
                update.client,
                "used",
                1.0 / len(used),
                update.round,
                step_weight=weights.get(update.client),
                norm=None if self._private else update.norm,  # no noise protects it
            )
        parts = [(update.samples, update.metrics) for update in used]
        return aggregate_metrics(parts, self.train_metrics_aggr_fn)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests to evaluate the model."""
        draws = self.seed, "flower-evaluate", server_round
        nodes = self._without_quarantined(self._discovery.free_nodes())
        return self._evaluation.configure(nodes, arrays, config, self.fraction_evaluate, draws)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the clients' metrics, aggregated."""
        return self._evaluation.aggregate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's settings."""
        ledger = "none" if self._ledger is None else f"federation {self._ledger.federation!r}"
        log.info("\t├──> Method: %s", self.algorithm)
        log.info("\t├──> State: %s", self._state or "in memory only")
        log.info("\t├──> Ledger: %s", ledger)
        log.info("\t└──> Rounds that have ended: %d", self._training.round)
        if isinstance(self.algorithm, FedAvg) and self.algorithm.weights == "mean":
            log.info(
                "FedAvg averages the clients equally; with weights='data' it weighs them by "
                "num-examples, as Flower's own FedAvg does"
            )

    def _read_quarantine(self) -> None:
        """Read from the ledger which clients the operator has quarantined."""
        if self._ledger is not None:
            with suppress(InvalidInputError):  # the commit of the round will say it
                names, quarantined = self._registry.names, self._ledger.quarantined()
                self._quarantined = {n for n, name in enumerate(names) if name in quarantined}

    def _without_quarantined(self, nodes: dict[int, int]) -> dict[int, int]:
        return {client: node for client, node in nodes.items() if client not in self._quarantined}

    def _serve_page(self) -> AbstractContextManager[object]:
        """Serve the page and the metrics of the ledger, if a port is given."""
        host, port, url = self._page
        if port is None:
            return nullcontext()
        from fedtide.monitoring.server import serve_ledger  # needs fedtide[watch]

        return serve_ledger(url, self._clients, host, port)

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Begin the training, or resume the saved one."""
        registry = self._registry = NodeRegistry.from_clients(self._clients)
        layout, x = flatten_initial(initial_arrays)
        training = self._training = TrainingSession(
            self.algorithm,
            registry,
            layout,
            x,
            self._state,
            self.selection,
            self.seed,
            self._keep_every,
        )
        self._sent_models: dict[int, torch.Tensor] = {}  # by round; replies are relative to them
        needs_rate, sent = self.algorithm.traits.uses_local_lr, self._sent_models
        validator = ReplyValidator(training.layout, registry.names, needs_rate, sent)
        largest = largest_reply(training.layout)
        self._transport = Transport(grid, self._clock, registry.client_at, largest)
        self._discovery = Discovery(self._transport, registry)
        parts = self._transport, self._discovery, validator
        self._updates = UpdateReader(*parts, registry, training.accepted_rounds)
        self._evaluation = ClientEvaluation(*parts, self.ttl, self.evaluate_metrics_aggr_fn)
        self._writer = ModelWriter(training.layout, sends_half=x.dtype == torch.float16)

    def _evaluate_on_clients(
        self, result: Result, grid: Grid, timeout: float, config: ConfigRecord | None
    ) -> None:
        ended = self._training.round
        self._writer.renew_blanks()
        arrays = self._writer.to_request(self._training.output)
        requests = list(self.configure_evaluate(ended, arrays, config or ConfigRecord(), grid))
        replies = self._evaluation.collect(requests, ended, self._clock.tick() + timeout)
        metrics = self.aggregate_evaluate(ended, replies)
        kept = result.evaluate_metrics_clientapp
        self._keep("evaluation", metrics, kept, "Evaluation by clients, round")

    def _evaluate_on_server(self, result: Result, evaluate_fn: EvaluateFn | None) -> None:
        if evaluate_fn is not None:
            ended = self._training.round
            metrics = evaluate_fn(ended, self._writer.to_arrays(self._training.output))
            kept = result.evaluate_metrics_serverapp
            self._keep("server", metrics, kept, "Evaluation after round")

    def _keep(
        self,
        source: str,
        metrics: MetricRecord | None,
        results: dict[int, MetricRecord],
        what: str,
    ) -> None:
        """Log metrics of the last round that ended; put them into the results and the ledger."""
        if metrics is None:
            return
        ended = self._training.round
        log.info("%s %d: %s", what, ended, printable(repr(metrics), 1000))
        results[ended] = metrics
        if self._ledger is not None and ended:
            single = {n: float(v) for n, v in metrics.items() if not isinstance(v, list)}
            single.pop("clients", None)  # that is in the log
            self._ledger.record(ended - 1, source, single)
