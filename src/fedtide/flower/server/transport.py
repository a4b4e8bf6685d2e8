"""Messages over Flower's grid, and which of them are still unanswered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from logging import getLogger
from typing import Any, Literal

from flwr.app import Message
from flwr.serverapp import Grid

from fedtide.errors import quantify
from fedtide.flower._flwr_messages import PartialReply, pull_replies, push_messages
from fedtide.flower._flwr_private import OnlineNode, SuperLinkError, list_nodes
from fedtide.flower.protocol import describe_request, read_nonce

log = getLogger("flwr")

_FAILING_PATIENCE = 30.0  # seconds; a full disk or a locked database may recover
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between two polls
_PAUSE_SHARE = 0.03  # a pause as a share of the time waited so far: bounds the delay by polling
_MEANWHILE = 10.0  # seconds between two checks for nodes while replies are awaited

Kind = Literal["train", "evaluate", "name"]


@dataclass(frozen=True)
class Clock:
    """The time, and how to wait.

    Args:
        now: seconds since 1970; may jump when the system clock is set, and is read once in a run.
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
        client: the number of the client at that node; None: unknown, and asked for its name.
        round: t, in which it was sent.
        activated_at: when that node had connected, by the SuperLink's clock.
        plain: whether an ordinary Flower client can do all that it asks for.
        lr: the local learning rate that it asks for; 0: the client's own.
        gradients: whether it asks for gradients, too.
        nonce: the number in a request to train that the reply must repeat; 0: none.
    """

    message_id: str
    node_id: int
    kind: Kind
    client: int | None
    round: int
    activated_at: float = 0.0
    plain: bool = True
    lr: float = 0.0
    gradients: bool = False
    nonce: int = 0


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
        """The ids of the nodes that owe a reply.

        A known client that is asked whether its name is still the same can train meanwhile.
        """
        return {
            pending.node_id
            for pending in self.messages.values()
            if pending.kind != "name" or pending.client is None
        }

    @property
    def rounds(self) -> set[int]:
        """The rounds in which a pending request to train was sent."""
        return {p.round for p in self.messages.values() if p.kind == "train"}

    def to_json(self) -> list[dict[str, Any]]:
        """Return everything as plain data; node ids as text, since they take 64 bits."""
        return [asdict(pending) | {"node_id": str(pending.node_id)} for pending in self]

    @classmethod
    def from_json(cls, plain: list[dict[str, Any]]) -> PendingReplies:
        """Return what `to_json` was called on."""
        pending = cls()
        pending.add(PendingReply(**one | {"node_id": int(one["node_id"])}) for one in plain)
        return pending


Answered = tuple[PendingReply, Message | str]
"""A message that was sent, and its reply, or a text on why that cannot be read."""


class Transport:
    """Sends the messages of one run and collects the replies.

    Args:
        grid: Flower's.
        pending: the unanswered messages of this run.
        clock: the time.
        client_at: returns the number of the client at a node id; None: unknown.
        largest: the largest size of a reply in bytes; larger ones are not read.

    Attributes:
        activated: by node id, when each node that was online at the last check had connected.
        unlisted: how the SuperLink failed to list its nodes at the last check; "": it did not.
        inbox: replies that were received and not taken yet.
    """

    def __init__(
        self,
        grid: Grid,
        pending: PendingReplies,
        clock: Clock,
        client_at: Callable[[int], int | None],
        largest: float,
    ) -> None:
        self._largest = largest
        self.grid, self.pending, self.clock, self._client_at = grid, pending, clock, client_at
        self.activated: dict[int, float] = {}
        self.unlisted = ""
        self._nodes: list[OnlineNode] = []
        self.inbox: list[Answered] = []
        self._partial: dict[str, PartialReply] = {}
        self._failing: dict[str, float] = {}  # since when the SuperLink fails at a single reply
        self._is_failing = False

    def list_nodes(self) -> list[OnlineNode]:
        """Return the nodes that are online, sorted by id.

        While the SuperLink fails to list them, these are the nodes of the last check.
        """
        try:
            nodes = list_nodes(self.grid)
        except SuperLinkError as error:
            if not self.unlisted:
                log.warning("Nodes cannot be listed, as the SuperLink fails: %s", error)
            self.unlisted = str(error)
            return self._nodes
        if self.unlisted:
            log.info("Nodes can be listed again")
        self.unlisted, self._nodes = "", nodes
        self.activated = {node.node_id: node.activated_at for node in nodes}
        return nodes

    def send(self, messages: Sequence[Message], kind: Kind, t: int) -> list[PendingReply]:
        """Send the messages of round t and return those that Flower accepted, now pending.

        Raises:
            SuperLinkError: the SuperLink fails at each of them.
        """
        if not messages:
            return []
        # These are the same for all requests of a round, except their nonces.
        facts = describe_request(messages[0].content) if kind == "train" else {}
        accepted = push_messages(self.grid, messages)
        sent = []
        for message in messages:
            message_id, node_id = message.metadata.message_id, message.metadata.dst_node_id
            if message_id in accepted:
                client = self._client_at(node_id)
                activated_at = self.activated.get(node_id, 0.0)
                if kind == "train":
                    facts["nonce"] = read_nonce(message.content)
                pending = PendingReply(message_id, node_id, kind, client, t, activated_at, **facts)
                sent.append(pending)
        if len(sent) < len(messages):
            log.warning("Could not send %s", quantify(len(messages) - len(sent), "message"))
        self.pending.add(sent)
        return sent

    def drop_restarted(self) -> None:
        """Give up messages to nodes that restarted since: the new process does not have them.

        Only the SuperLink's own times are compared: its clock may differ from ours, or be set. A
        time that is unknown, 0, says nothing.
        """
        for pending in self.pending:
            connected = self.activated.get(pending.node_id, 0.0)
            if connected and pending.activated_at and connected != pending.activated_at:
                self.pending.settle(pending.message_id)

    def collect(
        self, deadline: float, is_enough: Callable[[], bool], meanwhile: Callable[[], Any]
    ) -> None:
        """Receive replies until `is_enough`, or until `deadline` by the clock's tick.

        `meanwhile` is called every ten seconds.
        """
        began = called = self.clock.tick()
        while True:
            self.receive()
            now = self.clock.tick()
            if is_enough() or now >= deadline:
                return
            if now - called >= _MEANWHILE:
                called = now
                meanwhile()
            pause = min(max(_SHORTEST_PAUSE, _PAUSE_SHARE * (now - began)), _LONGEST_PAUSE)
            self.clock.sleep(min(pause, deadline - now))

    def receive(self) -> None:
        """Move the replies that have arrived into the inbox."""
        if not self.pending.messages:
            return
        ids = sorted(self.pending.messages)
        pulled = pull_replies(self.grid, ids, self._partial, self._largest)
        self._report_failure(pulled.failure)
        now = self.clock.tick()
        self._failing = {one: self._failing.get(one, now) for one in pulled.failing}
        for one, since in self._failing.items():
            if now - since >= _FAILING_PATIENCE:
                reason = pulled.failing[one]
                pulled.unreadable[one] = f"the SuperLink cannot deliver it ({reason})"
        for request_id, reason in pulled.unreadable.items():
            self._accept(request_id, reason)
        for reply in pulled.messages:
            self._accept(reply.metadata.reply_to_message_id, reply)

    def _accept(self, request_id: str, reply: Message | str) -> None:
        """Put a reply into the inbox, unless its request was given up."""
        pending = self.pending.settle(request_id)
        if pending is not None:
            self.inbox.append((pending, reply))

    def _report_failure(self, failure: str) -> None:
        """Log when the SuperLink begins to fail at every pull, and when it no longer does."""
        if failure and not self._is_failing:
            log.warning("No replies can be received, as the SuperLink fails: %s", failure)
        elif self._is_failing and not failure:
            log.info("Replies can be received again")
        self._is_failing = bool(failure)

    def drop_updates(self, node_id: int) -> None:
        """Remove the replies of a node to requests to train from the inbox."""
        self.inbox = [
            answered
            for answered in self.inbox
            if answered[0].kind != "train" or answered[0].node_id != node_id
        ]

    def arrived(self, kind: Kind) -> list[Answered]:
        """Return the replies of a kind in the inbox."""
        return [answered for answered in self.inbox if answered[0].kind == kind]

    def take(self, kind: Kind) -> list[Answered]:
        """Remove the replies of a kind from the inbox and return them."""
        taken = self.arrived(kind)
        self.inbox = [answered for answered in self.inbox if answered[0].kind != kind]
        return taken
