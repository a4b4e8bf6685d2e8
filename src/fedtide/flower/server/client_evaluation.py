"""The evaluation of a model by clients, on their own data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedtide.flower._flwr import SuperLinkError
from fedtide.flower.protocol import draw_nonce
from fedtide.flower.server.client_metrics import MetricsAggregator, aggregate_metrics
from fedtide.flower.server.discovery import Discovery
from fedtide.flower.server.reply_validation import (
    DeclinedReplyError,
    RejectedReplyError,
    ReplyValidator,
)
from fedtide.flower.server.round_log import LimitedWarnings
from fedtide.flower.server.saved_selection import draw_share
from fedtide.flower.server.transport import Transport

log = getLogger("flwr")


@dataclass(frozen=True)
class ClientEvaluation:
    """Has clients evaluate a model, and aggregates their metrics.

    Args:
        transport, discovery, validator: of this run.
        ttl: seconds after which a request is given up.
        aggregator: combines the metrics; None: means weighted by samples.
    """

    transport: Transport
    discovery: Discovery
    validator: ReplyValidator
    ttl: float
    aggregator: MetricsAggregator | None

    def configure(
        self,
        arrays: ArrayRecord,
        config: ConfigRecord,
        fraction: float,
        draws: tuple[int, str, int],
    ) -> list[Message]:
        """Return the requests to evaluate a model.

        Args:
            arrays: the model.
            config: sent along.
            fraction: the share of the clients that are free.
            draws: seed, purpose and round of the random draws; Flower's number of the round.
        """
        nodes, server_round = self.discovery.free_nodes(), draws[2]
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
