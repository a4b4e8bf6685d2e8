"""Sending and receiving over Flower's grid, with a memory of who still owes a reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from logging import getLogger

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedtide.flower.server.pending import Kind, Owed, PendingReplies

log = getLogger("flwr")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_PAUSE_SHARE = 0.03  # of what was waited already: what looking seldom may add to a round


@dataclass(frozen=True)
class Clock:
    """What time it is, and how to let it pass.

    Args:
        now: seconds since 1970, which may be set anew.
        tick: seconds that only go forward.
        sleep: waits for so many seconds.
    """

    now: Callable[[], float] = time.time
    tick: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


Answered = tuple[Owed, Message]
"""What was asked, and the reply to it."""


class Exchange:
    """The messages of one run.

    Args:
        grid: Flower's.
        outstanding: what is owed, of this run.
        clock: the time.

    Attributes:
        inbox: replies that nobody has taken yet.
    """

    def __init__(self, grid: Grid, outstanding: PendingReplies, clock: Clock) -> None:
        self.grid, self.outstanding, self.clock = grid, outstanding, clock
        self.inbox: list[Answered] = []

    def nodes(self) -> list[NodeInfo]:
        """Return who is online, in a fixed order."""
        return sorted(self.grid.get_nodes(), key=lambda node: node.node_id)

    def send(self, messages: Sequence[Message], owed: Callable[[Message], Owed]) -> list[Owed]:
        """Send messages and return what is owed for them now; `owed` describes one."""
        if not messages:
            return []
        sent = set(self.grid.push_messages(messages))
        accepted = [owed(m) for m in messages if m.metadata.message_id in sent]
        if len(accepted) < len(messages):
            log.warning("%d messages could not be sent", len(messages) - len(accepted))
        self.outstanding.add(accepted)
        return accepted

    def forget_restarted(self, nodes: Sequence[NodeInfo]) -> None:
        """Give up what is owed by nodes that started again since: they know nothing of it."""
        started = {node.node_id: _seconds(node.last_activated_at) for node in nodes}
        for owed in self.outstanding:
            if started.get(owed.node, 0.0) > owed.sent:
                self.outstanding.settle(owed.message)

    def collect(self, deadline: float, enough: Callable[[], bool]) -> None:
        """Receive replies until there are enough of them, or until `deadline` by the tick."""
        began = self.clock.tick()
        while True:
            self.receive()
            now = self.clock.tick()
            if enough() or now >= deadline:
                return
            pause = min(max(_SHORTEST_PAUSE, _PAUSE_SHARE * (now - began)), _LONGEST_PAUSE)
            self.clock.sleep(min(pause, deadline - now))

    def receive(self) -> None:
        """Put the replies that are there now into the inbox."""
        for reply in self._pull(sorted(self.outstanding.messages)):
            owed = self.outstanding.settle(reply.metadata.reply_to_message_id)
            if owed is not None:
                self.inbox.append((owed, reply))

    def arrived(self, kind: Kind) -> list[Answered]:
        """Return what the inbox holds of a kind."""
        return [answered for answered in self.inbox if answered[0].kind == kind]

    def take(self, kind: Kind) -> list[Answered]:
        """Return what the inbox holds of a kind, and remove it."""
        taken = self.arrived(kind)
        self.inbox = [answered for answered in self.inbox if answered[0].kind != kind]
        return taken

    def _pull(self, ids: list[str]) -> list[Message]:
        """Return replies; one that cannot even be read does not keep the others away."""
        if not ids:
            return []
        try:
            return list(self.grid.pull_messages(ids))
        except (ValueError, TypeError, KeyError) as error:
            log.warning("a reply cannot be read: %s", error)
        replies: list[Message] = []
        for one in ids:
            try:
                replies += self.grid.pull_messages([one])
            except (ValueError, TypeError, KeyError):
                self.outstanding.settle(one)
        return replies


def _seconds(moment: str) -> float:
    """Return when that was, in seconds since 1970; 0 where nothing is said."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0
