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
        registered: names given by the operator whose keys have connected; no other node can claim
            them.
    """

    size: int
    names: list[str] = field(default_factory=list)
    open: bool = True
    nodes: dict[int, str] = field(default_factory=dict)
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
        if isinstance(clients, str):
            raise InvalidInputError(f"clients: {clients!r} is text; give N, or a list of names")
        if isinstance(clients, bool | Set) or not isinstance(clients, int | Iterable):
            raise InvalidInputError(f"clients: {clients!r} is invalid; give N, or a list of names")
        if isinstance(clients, int):
            if clients < 1:
                raise InvalidInputError(f"clients: {clients} clients; at least 1 is needed")
            return cls(clients)
        names = list(clients)
        if not all(isinstance(name, str) for name in names):
            raise InvalidInputError("clients: not all names are text; give a list of names, or N")
        counts = Counter(names)
        for name in names:
            if not is_name(name) or counts[name] > 1:
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
        if name not in self._numbers:
            if not self.open:
                return f"{name!r} is not among the federation's clients"
            if len(self.names) == self.size:
                return (
                    f"{name!r} joins after all {self.size} clients; submit the run again with "
                    "more to let it take part"
                )
            self._numbers[name] = len(self.names)
            self.names.append(name)
        if registered:
            self.registered.add(name)
        former = self.node_of(name)
        if former is not None:
            del self.nodes[former]
        self.nodes[node_id], self._places[name] = name, node_id
        return None

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
        nodes = {str(node_id): name for node_id, name in self.nodes.items()}
        return {"names": self.names, "nodes": nodes, "registered": sorted(self.registered)}

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
        self.registered = set(plain["registered"])
        self.__post_init__()
