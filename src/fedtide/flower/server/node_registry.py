"""The clients of a federation, numbered 0..N-1, and the nodes on which they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fedtide.errors import InvalidInputError, printable
from fedtide.flower.protocol import is_name


@dataclass
class NodeRegistry:
    """The clients of a federation and the nodes on which they run.

    Args:
        size: N.
        names: the clients' names by number; an open registry appends newcomers.
        open: whether unknown clients may join until there are N.
        nodes: the name of the client at each node id.
        connected: when each of these nodes had connected as it told its name, by the SuperLink's
            clock; 0: unknown.
        registered: names given by the operator whose keys have connected; no other node can claim
            them.
    """

    size: int
    names: list[str] = field(default_factory=list)
    open: bool = True
    nodes: dict[int, str] = field(default_factory=dict)
    connected: dict[int, float] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._places = {name: node_id for node_id, name in self.nodes.items()}

    @classmethod
    def from_clients(cls, clients: int | Sequence[str]) -> NodeRegistry:
        """Return a registry for any N clients, or for exactly those named.

        Raises:
            InvalidInputError: no clients, a duplicate name, or an invalid one.
        """
        if isinstance(clients, int) and not isinstance(clients, bool):
            if clients < 1:
                raise InvalidInputError(f"clients: {clients} clients; at least 1 is needed")
            return cls(clients)
        if isinstance(clients, str | bool | Set) or not isinstance(clients, Iterable):
            raise InvalidInputError(f"clients: {clients!r} is invalid; give N, or a list of names")
        names = list(clients)
        counts = Counter(names)
        for name in names:
            if not is_name(name) or counts[name] > 1:
                raise InvalidInputError(
                    f"clients: {name!r} is no name or a duplicate; give each client its own name"
                )
        if not names:
            raise InvalidInputError("clients: no names; at least 1 is needed")
        return cls(len(names), names, open=False)

    def bind(self, node_id: int, name: str, registered: bool, connected: float = 0.0) -> str | None:
        """Record which client is at a node; return why the node is rejected, or None.

        A node that is rejected is no longer at the client that it was at before.

        Args:
            node_id: Flower's id.
            name: the client's.
            registered: whether the operator gave the name, and the node does not merely claim it.
            connected: when the node had connected, see the class.
        """
        reason = None
        if not is_name(name):
            reason = "its name is empty, too long, or not printable"
        elif name in self.registered and not registered:
            reason = f"it claims to be {name!r}, a registered client"
        elif name not in self._numbers and not self.open:
            reason = f"{name!r} is not among the federation's clients"
        elif name not in self._numbers and len(self.names) == self.size:
            reason = (
                f"{name!r} joins after all {self.size} clients; submit the run again with more to "
                "let it take part"
            )
        if reason is not None:
            self._free(node_id)
            return reason
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        if registered:
            self.registered.add(name)
        former = self.node_of(name)
        if former is not None:
            self._free(former)
        self.nodes[node_id], self.connected[node_id] = name, connected
        self._places[name] = node_id
        return None

    def _free(self, node_id: int) -> None:
        self.nodes.pop(node_id, None)
        self.connected.pop(node_id, None)

    def is_known(self, node_id: int, connected: float) -> bool:
        """Return whether a node is at a client, and need not be asked whether it still is.

        It is asked when it has connected again: its operator may have corrected the name, and
        restarted it. A registered name stays.
        """
        if node_id not in self.nodes:
            return False
        before = self.connected.get(node_id, 0.0)
        is_new = before > 0 and connected > 0 and connected != before
        return not is_new or self.nodes[node_id] in self.registered

    def node_of(self, name: str) -> int | None:
        """Return the id of a client's latest node; None: it has had none."""
        node_id = self._places.get(name)
        return node_id if node_id is not None and self.nodes.get(node_id) == name else None

    def client_at(self, node_id: int) -> int | None:
        """Return the number of the client at a node; None: unknown."""
        name = self.nodes.get(node_id)
        return None if name is None else self._numbers[name]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "names": self.names,
            "nodes": {str(node_id): name for node_id, name in self.nodes.items()},
            "connected": {str(node_id): moment for node_id, moment in self.connected.items()},
            "registered": sorted(self.registered),
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Continue from what `to_json` returned; new clients come after those in it.

        Raises:
            InvalidInputError: a registry of other clients.
        """
        names: list[str] = plain["names"]
        if len(names) > self.size or (not self.open and names != self.names[: len(names)]):
            raise InvalidInputError(
                f"clients: the saved state has {printable(', '.join(names), 200) or 'none'}; give "
                "these in this order, further ones after them, or another folder"
            )
        if self.open:
            self.names = names
        self.nodes = {int(node_id): name for node_id, name in plain["nodes"].items()}
        self.connected = {int(node_id): moment for node_id, moment in plain["connected"].items()}
        self.registered = set(plain["registered"])
        self.__post_init__()
