"""Finding out who is online, and who they are."""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedtide.flower.protocol import NAME_QUERY
from fedtide.flower.server.pending import Owed
from fedtide.flower.server.registry import NodeRegistry
from fedtide.flower.server.transport import Exchange

log = getLogger("flwr")

_APP_RAISED = 2  # Flower's code for an app that raised, as one does that has no answer
_PAUSE = 1.0


class Meeting:
    """Keeps the roster up to date.

    Args:
        exchange: of messages.
        roster: who is known.
        ttl: seconds after which an unanswered question is given up.
    """

    def __init__(self, exchange: Exchange, roster: NodeRegistry, ttl: float) -> None:
        self._exchange, self._roster, self._ttl = exchange, roster, ttl
        self._turned_away: set[int] = set()

    def hold(self, t: int, wanted: int, deadline: float) -> None:
        """Wait until so many known nodes are online and owe nothing, or for the deadline."""
        exchange = self._exchange
        while True:
            exchange.receive()
            nodes = exchange.nodes()
            exchange.forget_restarted(nodes)
            self._greet(nodes, t, deadline)
            free = {node.node_id for node in nodes} - exchange.outstanding.busy
            if len(free & self._roster.nodes.keys()) >= wanted or exchange.clock.tick() >= deadline:
                return
            exchange.clock.sleep(_PAUSE)

    def _greet(self, nodes: Sequence[NodeInfo], t: int, deadline: float) -> None:
        """Learn the names of newcomers, from the operator or from themselves."""
        unknown = [node for node in nodes if self._is_new(node)]
        for node in unknown:
            if node.name:
                self._bind(node.node_id, node.name, registered=True)
        asked = self._exchange.send(
            [self._question(node.node_id, t) for node in unknown if not node.name],
            lambda message: self._owed(message, t),
        )
        pending, outstanding = {owed.message for owed in asked}, self._exchange.outstanding
        if pending:
            self._exchange.collect(deadline, lambda: pending.isdisjoint(outstanding.messages))
        for owed, reply in self._exchange.take("name"):
            self._hear(owed.node, reply)

    def _is_new(self, node: NodeInfo) -> bool:
        known = node.node_id in self._roster.nodes or node.node_id in self._turned_away
        return not known and node.node_id not in self._exchange.outstanding.busy

    def _question(self, node: int, t: int) -> Message:
        return Message(RecordDict(), node, NAME_QUERY, ttl=self._ttl, group_id=str(t + 1))

    def _owed(self, message: Message, t: int) -> Owed:
        to, now = message.metadata, self._exchange.clock.now()
        return Owed(to.message_id, to.dst_node_id, "name", None, t, now)

    def _hear(self, node: int, reply: Message) -> None:
        """Take in the answer of a node."""
        if reply.has_error():
            if reply.error.code == _APP_RAISED:  # an ordinary Flower app
                self._bind(node, f"node-{node}", registered=False)
            return
        if reply.metadata.src_node_id != node:
            return
        try:
            name = reply.content.config_records["config"]["name"]
        except (KeyError, ValueError):
            name = ""
        self._bind(node, str(name), registered=False)

    def _bind(self, node: int, name: str, registered: bool) -> None:
        reason = self._roster.bind(node, name, registered)
        if reason is not None:
            self._turned_away.add(node)
            log.warning("node %d does not take part: %s", node, reason)
