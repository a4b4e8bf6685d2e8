"""Which clients are online: from Flower's node ids, which come and go, to the clients 0..N-1.

A node that the operator registered with a name (`flwr supernode register KEY.pub --name NAME`) is
known by that name: the SuperLink admits only the holder of the key. Any other node is asked for
its name. Such a name is only a claim: the latest node that makes it takes the client's place. A
node whose app does not answer is known by its node id, as long as that id lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any

from flwr.app import Message, RecordDict

from fedtide.errors import InvalidInputError
from fedtide.flower._flwr_private import OnlineNode, is_app_error
from fedtide.flower.protocol import NAME_QUERY
from fedtide.flower.server.transport import Transport

log = getLogger("flwr")

LONGEST_NAME = 200
_PAUSE = 1.0  # seconds between two looks for nodes


@dataclass
class NodeRegistry:
    """The clients of a federation and the nodes at which they are.

    Args:
        size: N.
        names: the clients' names by number; an open registry appends newcomers.
        open: whether unknown clients may join until there are N.
        nodes: the name of the client at each node id.
        registered: names given by the operator, which no other node can claim.
    """

    size: int
    names: list[str] = field(default_factory=list)
    open: bool = True
    nodes: dict[int, str] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)

    @classmethod
    def from_clients(cls, clients: int | Sequence[str]) -> NodeRegistry:
        """Return the registry of any N clients, or of exactly these.

        Raises:
            InvalidInputError: no clients, a duplicate name, or an invalid one.
        """
        if isinstance(clients, int):
            if clients < 1:
                raise InvalidInputError(f"clients: {clients} clients; at least 1 is needed")
            return cls(clients)
        names = list(clients)
        for name in names:
            if not is_name(name) or names.count(name) > 1:
                raise InvalidInputError(
                    f"clients: {name!r} is invalid or a duplicate; give each client its own name"
                )
        if not names:
            raise InvalidInputError("clients: no names; at least 1 is needed")
        return cls(len(names), names, open=False)

    def bind(self, node_id: int, name: str, registered: bool) -> str | None:
        """Record which client is at a node; return why the node is rejected, or None."""
        if not is_name(name):
            return "its name is empty, too long, or not printable"
        if name in self.registered and not registered:
            return f"it claims to be {name!r}, a registered client"
        if name not in self.names:
            if not self.open:
                return f"{name!r} is not among the federation's clients"
            if len(self.names) == self.size:
                return f"{name!r} joins after all {self.size} clients"
            self.names.append(name)
        if registered:
            self.registered.add(name)
        for former in [n for n, other in self.nodes.items() if other == name]:
            del self.nodes[former]
        self.nodes[node_id] = name
        return None

    def client_at(self, node_id: int) -> int | None:
        """Return the number of the client at a node; None: unknown."""
        name = self.nodes.get(node_id)
        return None if name is None else self.names.index(name)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        nodes = {str(node_id): name for node_id, name in self.nodes.items()}
        return {"names": self.names, "nodes": nodes, "registered": sorted(self.registered)}

    def restore(self, plain: dict[str, Any]) -> None:
        """Continue from what `to_json` returned.

        Raises:
            InvalidInputError: a registry of other clients.
        """
        names: list[str] = plain["names"]
        if len(names) > self.size or (not self.open and names != self.names):
            raise InvalidInputError(
                "clients: the saved state has other clients; give the same ones"
            )
        self.names = names
        self.nodes = {int(node_id): name for node_id, name in plain["nodes"].items()}
        self.registered = set(plain["registered"])


def is_name(name: object) -> bool:
    """Return whether this can name a client: printable text of 1 to 200 characters."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()


class Discovery:
    """Finds the nodes that are online and identifies their clients.

    Args:
        transport: of this run.
        registry: the clients known so far; kept up to date.
        ttl: seconds after which an unanswered question is given up.
    """

    def __init__(self, transport: Transport, registry: NodeRegistry, ttl: float) -> None:
        self._transport, self._registry, self._ttl = transport, registry, ttl
        self._rejected: set[int] = set()
        self._claims: dict[int, str] = {}  # of registered names, by nodes without the key

    def wait_for_nodes(self, t: int, wanted: int, deadline: float) -> None:
        """Wait until so many known nodes are online and owe no reply, or until the deadline."""
        transport = self._transport
        while True:
            transport.receive()
            nodes = transport.list_nodes()
            transport.drop_restarted(nodes)
            self._identify(nodes, t, deadline)
            free = {node.node_id for node in nodes} - transport.pending.busy_nodes
            known = free & self._registry.nodes.keys()
            if len(known) >= wanted or transport.clock.tick() >= deadline:
                return
            transport.clock.sleep(_PAUSE)

    def claimed_clients(self) -> list[int]:
        """Return the clients that are not online, and whose registered name another node claims."""
        if not self._claims:
            return []
        online = {node.node_id for node in self._transport.list_nodes()}
        present = {name for node_id, name in self._registry.nodes.items() if node_id in online}
        claimed = {name for node_id, name in self._claims.items() if node_id in online}
        return sorted(self._registry.names.index(name) for name in claimed - present)

    def _identify(self, nodes: Sequence[OnlineNode], t: int, deadline: float) -> None:
        """Learn the names of new nodes, from the operator or from the nodes themselves."""
        unknown = [node for node in nodes if self._is_new(node)]
        for node in unknown:
            if node.name:
                self._bind(node.node_id, node.name, registered=True)
        messages = [self._query(node.node_id, t) for node in unknown if not node.name]
        queries = self._transport.send(messages, "name", t)
        asked, pending = {query.message_id for query in queries}, self._transport.pending
        if asked:
            self._transport.collect(deadline, lambda: asked.isdisjoint(pending.messages))
        for query, reply in self._transport.take("name"):
            self._read_name(query.node_id, reply)
        self._rejected |= {query.node_id for query in self._transport.take_malformed("name")}

    def _is_new(self, node: OnlineNode) -> bool:
        known = node.node_id in self._registry.nodes or node.node_id in self._rejected
        return not known and node.node_id not in self._transport.pending.busy_nodes

    def _query(self, node_id: int, t: int) -> Message:
        return Message(RecordDict(), node_id, NAME_QUERY, ttl=self._ttl, group_id=str(t + 1))

    def _read_name(self, node_id: int, reply: Message) -> None:
        """Bind a node to the name in its reply."""
        if reply.has_error():
            if is_app_error(reply.error):  # an ordinary Flower app does not know the query
                self._bind(node_id, f"node-{node_id}", registered=False)
            return
        if reply.metadata.src_node_id != node_id:
            return
        try:
            name = reply.content.config_records["config"]["name"]
        except (KeyError, ValueError):
            name = ""
        self._bind(node_id, str(name), registered=False)

    def _bind(self, node_id: int, name: str, registered: bool) -> None:
        reason = self._registry.bind(node_id, name, registered)
        if reason is not None:
            self._rejected.add(node_id)
            if name in self._registry.registered:
                self._claims[node_id] = name
            log.warning("node %d does not take part: %s", node_id, reason)
