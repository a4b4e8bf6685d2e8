"""Messages over Flower's grid, and which of them are still unanswered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from logging import getLogger
from typing import Any, Literal

from flwr.app import Message
from flwr.serverapp import Grid

from fedtide.flower._flwr_private import OnlineNode, list_nodes, pull_replies
from fedtide.flower.protocol import asks_for_gradients, is_plain, requested_rate

log = getLogger("flwr")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between two polls
_PAUSE_SHARE = 0.03  # a pause, as a share of the time waited so far: bounds what polling adds

Kind = Literal["train", "evaluate", "name"]


@dataclass(frozen=True)
class Clock:
    """The time, and how to wait.

    Args:
        now: seconds since 1970; may jump when the system clock is set.
        tick: seconds that only increase.
        sleep: waits for so many seconds.
    """

    now: Callable[[], float] = time.time
    tick: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class PendingReply:
    """A message that waits for its reply.

    Args:
        message_id: Flower's id of the message.
        node_id: the node to which it went.
        kind: what it asks for: training, an evaluation, or the client's name.
        client: the number of the client at that node; None if the message asks for its name.
        round: t, in which it was sent.
        sent_at: when, in seconds since 1970.
        plain: whether an ordinary Flower client does all that it asks for.
        lr: the local learning rate that it asks for; 0: the client's own.
        gradients: whether it asks for gradients, too.
    """

    message_id: str
    node_id: int
    kind: Kind
    client: int | None
    round: int
    sent_at: float
    plain: bool = True
    lr: float = 0.0
    gradients: bool = False


@dataclass
class PendingReplies:
    """All messages that wait for a reply, by message id."""

    messages: dict[str, PendingReply] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[PendingReply]:
        return iter(list(self.messages.values()))

    def add(self, sent: Iterable[PendingReply]) -> None:
        """Add messages that were sent."""
        self.messages |= {pending.message_id: pending for pending in sent}

    def settle(self, message_id: str) -> PendingReply | None:
        """Remove a message that was answered or is given up; None: it was not pending."""
        return self.messages.pop(message_id, None)

    @property
    def busy_nodes(self) -> set[int]:
        """The ids of the nodes that owe a reply."""
        return {pending.node_id for pending in self.messages.values()}

    @property
    def rounds(self) -> set[int]:
        """The rounds in which a pending request to train was sent."""
        return {p.round for p in self.messages.values() if p.kind == "train"}

    def to_json(self) -> list[dict[str, Any]]:
        """Return everything as plain data; node ids as text, for they take 64 bits."""
        return [asdict(pending) | {"node_id": str(pending.node_id)} for pending in self]

    @classmethod
    def from_json(cls, plain: list[dict[str, Any]]) -> PendingReplies:
        """Return what `to_json` was called on."""
        pending = cls()
        pending.add(PendingReply(**{**one, "node_id": int(one["node_id"])}) for one in plain)
        return pending


Answered = tuple[PendingReply, Message]
"""A message that was sent, and the reply to it."""


class Transport:
    """Sends the messages of one run and collects the replies.

    Args:
        grid: Flower's.
        pending: the unanswered messages of this run.
        clock: the time.
        client_at: returns the number of the client at a node id; None: unknown.

    Attributes:
        inbox: replies that were received and not taken yet.
        malformed: requests that were answered with what cannot be read, not taken yet.
    """

    def __init__(
        self,
        grid: Grid,
        pending: PendingReplies,
        clock: Clock,
        client_at: Callable[[int], int | None],
    ) -> None:
        self.grid, self.pending, self.clock, self._client_at = grid, pending, clock, client_at
        self.inbox: list[Answered] = []
        self.malformed: list[PendingReply] = []

    def list_nodes(self) -> list[OnlineNode]:
        """Return the nodes that are online, sorted by id."""
        return list_nodes(self.grid)

    def send(self, messages: Sequence[Message], kind: Kind, t: int) -> list[PendingReply]:
        """Send the messages of round t and return those that Flower accepted, now pending."""
        if not messages:
            return []
        sent_at = self.clock.now()
        accepted = set(self.grid.push_messages(messages))
        sent = []
        for message in messages:
            message_id, node_id = message.metadata.message_id, message.metadata.dst_node_id
            if message_id in accepted:
                client = self._client_at(node_id)
                pending = PendingReply(message_id, node_id, kind, client, t, sent_at)
                if kind == "train":
                    content = message.content
                    pending = replace(
                        pending,
                        plain=is_plain(content),
                        lr=requested_rate(content),
                        gradients=asks_for_gradients(content),
                    )
                sent.append(pending)
        if len(sent) < len(messages):
            log.warning("%d messages could not be sent", len(messages) - len(sent))
        self.pending.add(sent)
        return sent

    def drop_restarted(self, nodes: Sequence[OnlineNode]) -> None:
        """Give up messages to nodes that restarted since: the new process does not have them."""
        activated = {node.node_id: node.activated_at for node in nodes}
        for pending in self.pending:
            if activated.get(pending.node_id, 0.0) > pending.sent_at:
                self.pending.settle(pending.message_id)

    def collect(self, deadline: float, is_enough: Callable[[], bool]) -> None:
        """Receive replies until they are enough, or until `deadline` by the clock's tick."""
        began = self.clock.tick()
        while True:
            self.receive()
            now = self.clock.tick()
            if is_enough() or now >= deadline:
                return
            pause = min(max(_SHORTEST_PAUSE, _PAUSE_SHARE * (now - began)), _LONGEST_PAUSE)
            self.clock.sleep(min(pause, deadline - now))

    def receive(self) -> None:
        """Move the replies that have arrived into the inbox; one that is malformed is dropped."""
        if not self.pending.messages:
            return
        pulled = pull_replies(self.grid, sorted(self.pending.messages))
        for request_id, reason in pulled.unreadable.items():
            pending = self.pending.settle(request_id)
            if pending is not None:
                log.warning("the reply of node %d cannot be read: %s", pending.node_id, reason)
                self.malformed.append(pending)
        for reply in pulled.messages:
            pending = self.pending.settle(reply.metadata.reply_to_message_id)
            if pending is not None:
                self.inbox.append((pending, reply))

    def arrived(self, kind: Kind) -> list[Answered]:
        """Return the replies of a kind in the inbox."""
        return [answered for answered in self.inbox if answered[0].kind == kind]

    def take(self, kind: Kind) -> list[Answered]:
        """Remove the replies of a kind from the inbox and return them."""
        taken = self.arrived(kind)
        self.inbox = [answered for answered in self.inbox if answered[0].kind != kind]
        return taken

    def take_malformed(self, kind: Kind) -> list[PendingReply]:
        """Remove the requests of a kind that got a malformed reply, and return them."""
        taken = [pending for pending in self.malformed if pending.kind == kind]
        self.malformed = [pending for pending in self.malformed if pending.kind != kind]
        return taken
