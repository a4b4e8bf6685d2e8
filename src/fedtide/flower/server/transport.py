"""Messages over Flower's grid, and which of them are still unanswered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Literal

from flwr.app import Message
from flwr.serverapp import Grid

from fedtide.errors import InvalidInputError, quantify
from fedtide.flower._flwr import (
    OBJECT_BYTES,
    OnlineNode,
    PartialReply,
    SuperLinkError,
    list_nodes,
    pull_replies,
    superlink_errors,
)
from fedtide.flower.protocol import describe_request, read_nonce
from fedtide.problems.layout import Layout

log = getLogger("flwr")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between two polls
_PAUSE_SHARE = 0.03  # a pause as a share of the time waited so far: bounds the delay by polling
_RESEND_PAUSE = 10.0  # seconds between attempts to send when the SuperLink fails
_MEANWHILE = 10.0  # seconds between two checks for nodes while replies are awaited

_REPLY_MODELS, _LARGEST_REPLY = 3, 16_000_000  # see `largest_reply`

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


Answered = tuple[PendingReply, Message]
"""A message that was sent, and its reply."""


class Transport:
    """Sends the messages of one run and collects the replies.

    Args:
        grid: Flower's.
        clock: the time.
        client_at: returns the number of the client at a node id; None: unknown.
        largest: the largest size of a reply in bytes; larger ones are not read.

    Attributes:
        pending: the unanswered messages of this run, by id.
        activated: by node id, when each node that was online at the last check had connected.
        unlisted: how the SuperLink failed to list its nodes at the last check; "": it did not.
        inbox: replies that were received and not taken yet.
        answered: the requests whose replies were drained last, by id.
    """

    def __init__(
        self,
        grid: Grid,
        clock: Clock,
        client_at: Callable[[int], int | None],
        largest: int,
    ) -> None:
        self.grid, self.clock, self._client_at, self._largest = grid, clock, client_at, largest
        self.pending: dict[str, PendingReply] = {}
        self.activated: dict[int, float] = {}
        self.unlisted, self._unpulled = "", ""
        self._nodes: list[OnlineNode] = []
        self.inbox: list[Answered] = []
        self.answered: dict[str, PendingReply] = {}
        self._partial: dict[str, PartialReply] = {}
        self._began = clock.now() - clock.tick()

    def now(self) -> float:
        """Return the time in seconds since 1970; it never decreases, even if the clock is set."""
        return self._began + self.clock.tick()

    @property
    def busy_nodes(self) -> set[int]:
        """The ids of the nodes that owe a reply.

        A known client that is asked whether its name is still the same can train meanwhile.
        """
        return {
            pending.node_id
            for pending in self.pending.values()
            if pending.kind != "name" or pending.client is None
        }

    @property
    def rounds(self) -> set[int]:
        """The rounds in which a pending request to train was sent."""
        return {one.round for one in self.pending.values() if one.kind == "train"}

    def list_nodes(self) -> list[OnlineNode]:
        """Return the nodes that are online, sorted by id.

        While the SuperLink fails to list them, these are the nodes of the last check.
        """
        try:
            self._nodes, failure = list_nodes(self.grid), ""
        except SuperLinkError as error:
            failure = str(error)
        _report("Nodes", "listed", self.unlisted, failure)
        self.unlisted = failure
        self.activated = {node.node_id: node.activated_at for node in self._nodes}
        return self._nodes

    def send(self, messages: Sequence[Message], kind: Kind, t: int) -> list[PendingReply]:
        """Send the messages of round t and return those that Flower accepted, now pending.

        Raises:
            SuperLinkError: the SuperLink fails.
        """
        if not messages:
            return []
        # These are the same for all requests of a round, except their nonces.
        facts = describe_request(messages[0].content) if kind == "train" else {}
        with superlink_errors():
            accepted = {one for one in self.grid.push_messages(messages) if one}
        sent = []
        for message in messages:
            message_id, node_id = message.metadata.message_id, message.metadata.dst_node_id
            if message_id in accepted:
                client, activated_at = self._client_at(node_id), self.activated.get(node_id, 0.0)
                if kind == "train":
                    facts["nonce"] = read_nonce(message.content)
                pending = PendingReply(message_id, node_id, kind, client, t, activated_at, **facts)
                sent.append(pending)
        if len(sent) < len(messages):
            log.warning("Could not send %s", quantify(len(messages) - len(sent), "message"))
        self.pending |= {one.message_id: one for one in sent}
        return sent

    def send_until(
        self, deadline: float, messages: Sequence[Message], kind: Kind, t: int
    ) -> list[PendingReply]:
        """Send messages, again until the deadline if the SuperLink fails.

        Replies are received between attempts: the cause may be an upload that has stopped, which
        the SuperLink drops only when its reply is pulled.

        Raises:
            InvalidInputError: it still fails. Otherwise one round without clients would follow
                another.
        """
        while True:
            try:
                return self.send(messages, kind, t)
            except SuperLinkError as error:
                now = self.clock.tick()
                if now >= deadline:
                    raise InvalidInputError(
                        f"grid: the SuperLink fails at every request ({error}); see its log, then "
                        "submit the run again"
                    ) from None
                log.warning("Requests are sent again, as the SuperLink fails: %s", error)
                self.collect(min(now + _RESEND_PAUSE, deadline), lambda: False, lambda: None)

    def drop_restarted(self) -> None:
        """Give up messages to nodes that restarted since: the new process does not have them.

        Only the SuperLink's own times are compared: its clock may differ from ours, or be set. A
        time that is unknown, 0, says nothing.
        """
        for pending in list(self.pending.values()):
            connected = self.activated.get(pending.node_id, 0.0)
            if connected and pending.activated_at and connected != pending.activated_at:
                del self.pending[pending.message_id]

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
        """Move the replies that have arrived into the inbox, except to requests given up."""
        if not self.pending:
            return
        pulled: list[Message] = []
        failure, ids = "", sorted(self.pending)
        try:
            pulled = pull_replies(self.grid, ids, self._partial, self._largest)
        except SuperLinkError as error:
            failure = str(error)
        _report("Replies", "received", self._unpulled, failure)
        self._unpulled = failure
        for reply in pulled:
            pending = self.pending.pop(reply.metadata.reply_to_message_id, None)
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

    def drain(self, kind: Kind) -> Iterator[Message]:
        """Yield the replies of a kind; each is released as soon as the next one is asked for."""
        taken = self.take(kind)[::-1]
        self.answered = {pending.message_id: pending for pending, _ in taken}
        while taken:
            yield taken.pop()[1]


def largest_reply(layout: Layout) -> int:
    """Return the largest size of a reply in bytes.

    It may hold three models in float64 (an update, gradients, and one to spare), of each array at
    least two objects, and 16 MB for metrics and headers.
    """
    model = 8 * layout.size + 2 * OBJECT_BYTES * len(layout.shapes)
    return _LARGEST_REPLY + _REPLY_MODELS * model


def _report(what: str, done: str, before: str, now: str) -> None:
    """Log when the SuperLink begins to fail, and when it no longer does."""
    if now and not before:
        log.warning("%s cannot be %s, as the SuperLink fails: %s", what, done, now)
    elif before and not now:
        log.info("%s can be %s again", what, done)
