"""The evaluation of a model by clients on their own data, and the median of clients' metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import getLogger
from statistics import median

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedtide.errors import printable
from fedtide.flower._flwr import SuperLinkError
from fedtide.flower.protocol import draw_nonce
from fedtide.flower.server.discovery import Discovery
from fedtide.flower.server.reply_validation import (
    DeclinedReplyError,
    RejectedReplyError,
    ReplyValidator,
)
from fedtide.flower.server.round_log import LimitedWarnings
from fedtide.flower.server.saved_selection import draw_share
from fedtide.flower.server.transport import Transport
from fedtide.flower.server.validated_updates import MAX_METRICS, SAMPLES, Metrics

log = getLogger("flwr")

MetricsAggregator = Callable[[list[RecordDict], str], MetricRecord]
"""Flower's: combines several clients' records into one, given the name of the weight in them."""

_LONGEST_TEXT = 200


@dataclass(frozen=True)
class ClientEvaluation:
    """Has clients evaluate a model, and aggregates their metrics.

    Args:
        transport, discovery, validator: of this run.
        ttl: seconds after which a request is given up.
        aggregator: combines the metrics; None: medians over the clients.
    """

    transport: Transport
    discovery: Discovery
    validator: ReplyValidator
    ttl: float
    aggregator: MetricsAggregator | None

    def configure(
        self,
        nodes: dict[int, int],
        arrays: ArrayRecord,
        config: ConfigRecord,
        fraction: float,
        draws: tuple[int, str, int],
    ) -> list[Message]:
        """Return the requests to evaluate a model.

        Args:
            nodes: the node of each client that may be asked.
            arrays: the model.
            config: sent along.
            fraction: the share of these clients that is asked.
            draws: seed, purpose and round of the random draws; Flower's number of the round.
        """
        server_round = draws[2]
        record = ConfigRecord({**config, **draw_nonce(), "server-round": server_round})
        content, kind = RecordDict({"arrays": arrays, "config": record}), MessageType.EVALUATE
        return [
            Message(content, nodes[client], kind, ttl=self.ttl, group_id=str(server_round))
            for client in draw_share(sorted(nodes), fraction, 1, draws)
        ]

    def collect(
        self, requests: list[Message], server_round: int, deadline: float
    ) -> Iterable[Message]:
        """Send the requests and return the replies that arrive before the deadline."""
        try:
            sent = self.transport.send(requests, "evaluate", server_round - 1)
        except SuperLinkError as error:
            log.warning("No evaluation: the SuperLink fails: %s", error)
            return ()
        self.discovery.await_replies({one.message_id for one in sent}, deadline)
        return self.transport.drain("evaluate")

    def aggregate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the metrics of the clients that have evaluated the model, aggregated."""
        parts, unused = [], LimitedWarnings("Further evaluations not used: %d")
        for reply in replies:
            asked = self.transport.answered[reply.metadata.reply_to_message_id]
            if asked.round != server_round - 1:
                continue
            try:
                parts.append(self.validator.read_metrics(reply, asked))
            except DeclinedReplyError:
                continue
            except RejectedReplyError as error:
                unused.warn("evaluation by node %d not used: %s", asked.node_id, error)
        unused.close()
        return aggregate_metrics(parts, self.aggregator)


def aggregate_metrics(
    parts: list[tuple[int, Metrics]], function: MetricsAggregator | None
) -> MetricRecord | None:
    """Return the clients' metrics, combined by the user's function, or else their medians.

    The function gets one RecordDict for each client, whose only record, "metrics", has the metrics
    and "num-examples". What clients sent may make it raise: that is logged, and the round has no
    metrics.

    Args:
        parts: the number of samples and the metrics of each client; if empty, the result is None.
        function: the user's; None: medians over the clients.
    """
    if not parts:
        return None
    if function is None:
        return _take_medians([metrics for _, metrics in parts])
    records = [
        RecordDict({"metrics": MetricRecord({**metrics, SAMPLES: samples})})
        for samples, metrics in parts
    ]
    try:
        found = function(records, SAMPLES)
        if not isinstance(found, MetricRecord):
            raise TypeError(f"it returned a {type(found).__name__} instead of a MetricRecord")
    except Exception as error:  # one client's odd metrics must not end the training
        reason = printable(f"{type(error).__name__}: {error}", _LONGEST_TEXT)
        name = getattr(function, "__name__", type(function).__name__)
        log.warning("no metrics: %s failed: %s", name, reason)
        return None
    return found


def _take_medians(parts: list[Metrics]) -> MetricRecord:
    """Return the median of each metric over the clients that give it.

    A minority of clients cannot move it beyond what the others report, which a mean, weighted by
    what each claims to hold, lets a single one do. Lists are left out, and so are all but the most
    frequent names if there are very many. The metric "clients" is the number of clients, whatever
    they send under this name.
    """
    counts = Counter(name for metrics in parts for name in metrics)
    found = MetricRecord()
    for name, _ in counts.most_common(MAX_METRICS):
        values = [metrics[name] for metrics in parts if name in metrics]
        if numbers := [value for value in values if not isinstance(value, list)]:
            found[name] = median(numbers)
    fewer = [f"{name} ({counts[name]})" for name in found if counts[name] < len(parts)]
    if fewer:
        text = printable(", ".join(fewer), _LONGEST_TEXT)
        log.info("Metrics that not all of the %d clients gave: %s", len(parts), text)
    found["clients"] = len(parts)
    return found
