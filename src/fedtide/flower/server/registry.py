"""Who is who: between Flower's node ids, which come and go, and the clients 0..N-1.

A node that the operator registered with a name (`flwr supernode register KEY.pub --name NAME`) is
known by that name: the SuperLink lets only the holder of the key be it. Any other node is asked for
its name; such a name is a mere claim, and whoever makes the same claim later takes its place. A
node whose app does not tell a name is known by its node id, as long as that lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtide.errors import InvalidInputError

LONGEST_NAME = 200


@dataclass
class NodeRegistry:
    """The clients of a federation and the nodes at which they are.

    Args:
        size: N.
        names: of the clients by number; those of an open roster are added as they come.
        open: whether clients that are not in it may come, until there are N.
        nodes: the name of the client at each node id.
        registered: names that the operator gave, which nobody can claim.
    """

    size: int
    names: list[str] = field(default_factory=list)
    open: bool = True
    nodes: dict[int, str] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, clients: int | Sequence[str]) -> NodeRegistry:
        """Return the roster of N clients whoever they are, or of exactly these.

        Raises:
            InvalidInputError: no clients, a name twice, or one that is no name.
        """
        if isinstance(clients, int):
            if clients < 1:
                raise InvalidInputError(f"clients: {clients} clients; at least 1 is needed")
            return cls(clients)
        names = list(clients)
        for name in names:
            if not is_name(name) or names.count(name) > 1:
                raise InvalidInputError(
                    f"clients: {name!r} is no name, or twice; give each client one"
                )
        if not names:
            raise InvalidInputError("clients: no names; at least 1 is needed")
        return cls(len(names), names, open=False)

    def bind(self, node: int, name: str, registered: bool) -> str | None:
        """Note which client is at a node; return why it cannot take part, if so."""
        if not is_name(name):
            return "its name is empty, too long, or not printable"
        if name in self.registered and not registered:
            return f"it claims to be {name!r}, a registered client"
        if name not in self.names:
            if not self.open:
                return f"{name!r} is not on the roster"
            if len(self.names) == self.size:
                return f"{name!r} comes when there are {self.size} clients already"
            self.names.append(name)
        if registered:
            self.registered.add(name)
        for former in [n for n, other in self.nodes.items() if other == name]:
            del self.nodes[former]
        self.nodes[node] = name
        return None

    def number(self, node: int) -> int | None:
        """Return the client at a node, None where that is not known."""
        name = self.nodes.get(node)
        return None if name is None else self.names.index(name)

    def plain(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        nodes = {str(node): name for node, name in self.nodes.items()}
        return {"names": self.names, "nodes": nodes, "registered": sorted(self.registered)}

    def restore(self, plain: dict[str, Any]) -> None:
        """Go on from what `plain` returned.

        Raises:
            InvalidInputError: it was the roster of other clients.
        """
        names: list[str] = plain["names"]
        if len(names) > self.size or (not self.open and names != self.names):
            raise InvalidInputError(
                "clients: the saved state has other clients; give the same ones"
            )
        self.names = names
        self.nodes = {int(node): name for node, name in plain["nodes"].items()}
        self.registered = set(plain["registered"])


def is_name(name: object) -> bool:
    """Say whether this may be the name of a client: printable, up to 200 characters."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()
