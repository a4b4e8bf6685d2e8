"""Who owes a reply: the messages that were sent and not yet answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["train", "evaluate", "name"]


@dataclass(frozen=True)
class Owed:
    """A message that waits for its reply.

    Args:
        message: its id.
        node: to whom it went.
        kind: what it asks for: to train, to evaluate, or for the client's name.
        client: the number of the client there; None where that is what is asked.
        round: t, in which it was sent.
        sent: when, in seconds since 1970.
        plain: whether it asks for nothing that an ordinary Flower client would not do.
    """

    message: str
    node: int
    kind: Kind
    client: int | None
    round: int
    sent: float
    plain: bool = True


@dataclass
class PendingReplies:
    """All messages that wait for a reply, by id."""

    messages: dict[str, Owed] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Owed]:
        return iter(list(self.messages.values()))

    def add(self, owed: Iterable[Owed]) -> None:
        """Note messages that were sent."""
        self.messages |= {one.message: one for one in owed}

    def settle(self, message: str) -> Owed | None:
        """Strike out a message that was answered or is given up; None: nobody owed it."""
        return self.messages.pop(message, None)

    @property
    def busy(self) -> set[int]:
        """The nodes that owe something."""
        return {owed.node for owed in self.messages.values()}

    @property
    def rounds(self) -> set[int]:
        """The rounds whose training is still owed by somebody."""
        return {owed.round for owed in self.messages.values() if owed.kind == "train"}

    def plain(self) -> list[dict[str, Any]]:
        """Return everything as JSON has it; node ids as text, for they take 64 bits."""
        return [asdict(owed) | {"node": str(owed.node)} for owed in self]

    @classmethod
    def of_plain(cls, plain: list[dict[str, Any]]) -> PendingReplies:
        """Return what `plain` was taken of."""
        outstanding = cls()
        outstanding.add(Owed(**{**one, "node": int(one["node"])}) for one in plain)
        return outstanding
