"""Which clients are online: maps Flower's node ids, which come and go, to the clients 0..N-1.

A node that the operator registered with a name (`fedtide flower register KEY.pub NAME`) is known by
that name: the SuperLink admits only the holder of the key. Of several keys with one name, which
Flower itself allows, the one that has been online longest is the client. Any other node is asked
for its name. Such a name is only a claim: the latest node that makes it takes the client's place. A
node whose app does not know the question is known by its node id, as long as that id lasts.

Flower logs a traceback at a site whose app does not know a question. As all sites run the same app,
that of the submission, one is asked first, and if its app does not know, no other is asked. This is
not so where the names are given: there, nodes without one of them do not take part anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from fedtide.errors import InvalidInputError
from fedtide.flower._flwr import OnlineNode, SuperLinkError, is_app_error, lacks_query
from fedtide.flower.protocol import NAME_QUERY, draw_nonce, select_records
from fedtide.flower.server.node_registry import NodeRegistry
from fedtide.flower.server.reply_validation import NO_ANSWER, RejectedReplyError, check_sender
from fedtide.flower.server.round_log import LimitedWarnings
from fedtide.flower.server.transport import Transport

_PAUSE = 1.0  # seconds between two checks for nodes while there are too few
_PATIENCE, _LONGEST_PATIENCE = 60.0, 3600.0
"""Seconds until a node that did not tell its name is asked again: at first, and at most."""
_HEAD_START = 20.0  # seconds for the first node to answer before the others are asked


@dataclass
class _Unknown:
    """A node that is online and whose client is not known, or may have changed.

    Args:
        activated_at: when it connected.
        ask_at: when to ask it next, by the clock's tick.
        failures: how many questions it did not answer with a name.
        question: the id of the last one; "": none.
        reason: why it does not take part, as logged last; "": nothing was logged.
        lost: the name that another node took from it: it is asked again when that one leaves.
    """

    activated_at: float
    ask_at: float = 0.0
    failures: int = 0
    question: str = ""
    reason: str = ""
    lost: str = ""


class Discovery:
    """Finds the nodes that are online and identifies their clients, independently of the rounds.

    A node that does not tell its name is asked again after 1, 2, 4, ... minutes, in the end every
    hour, or as soon as it reconnects; one whose name is rejected, only when it reconnects. One that
    told its name is asked again when it reconnects, as its operator may have corrected the name;
    until it answers, it stays the client that it was. Nothing is kept about nodes that are offline.

    Args:
        transport: of this run.
        registry: the clients known so far; kept up to date.
    """

    def __init__(self, transport: Transport, registry: NodeRegistry) -> None:
        self._transport, self._registry = transport, registry
        self._unknown: dict[int, _Unknown] = {}
        self._round = -1
        # Whether the sites' app knows the question; None: not known yet.
        self._app_answers: bool | None = None if registry.open else True
        self._others_at = math.inf  # when to ask other nodes than the first one
        self._absent = LimitedWarnings("%d further nodes do not take part")

    def wait_for_nodes(self, t: int, wanted: int, deadline: float, shut_out: Set[int]) -> None:
        """Wait until `wanted` known nodes are online and not busy, or until the deadline.

        Unless `wanted` is 0, one of them must be that of a client not shut out of the training.

        While no known client is online, as at the start, nodes that are asked for the first time
        have a minute to answer, so that all of them can be in the first round.

        While the SuperLink fails to list its nodes, this waits, too: else rounds would follow one
        another at once, with nodes that may long be offline.

        Raises:
            InvalidInputError: it still fails at the deadline, and no node is known or training.
        """
        transport, clock = self._transport, self._transport.clock
        while True:
            if not self._known(self.identify(t)):
                patience = min(deadline, clock.tick() + _PATIENCE)
                transport.collect(patience, self._has_first_answers, lambda: self.identify(t))
            free = self._known(self.identify(t)) - transport.busy_nodes
            useful = any(self._registry.client_at(one) not in shut_out for one in free)
            if len(free) >= wanted and (useful or not wanted) and not transport.unlisted:
                return
            if clock.tick() >= deadline:
                break
            clock.sleep(_PAUSE)
        if transport.unlisted and not free and not transport.rounds:
            raise InvalidInputError(
                f"grid: the SuperLink cannot list its nodes ({transport.unlisted}); see its log, "
                "then submit the run again"
            )

    def identify(self, t: int) -> list[OnlineNode]:
        """Read the answers that have arrived, ask nodes that are due, and return all nodes."""
        if t != self._round:  # log how many warnings of the last round were only counted
            self._absent.close()
            self._round = t
        self._transport.receive()
        nodes = self._transport.list_nodes()
        self._transport.drop_restarted()
        self._find_unknown(nodes)
        self.read_answers()
        self._ask(nodes, t)
        return nodes

    def free_nodes(self) -> dict[int, int]:
        """Return the node of each known client that is online and has no pending request."""
        busy = self._transport.busy_nodes
        online = [n.node_id for n in self._transport.list_nodes() if n.node_id not in busy]
        known = {self._registry.client_at(node_id): node_id for node_id in online}
        return {n: node_id for n, node_id in known.items() if n is not None}

    def await_replies(
        self, ids: set[str], deadline: float, is_enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until these messages are answered, `is_enough`, or the deadline; identify nodes."""
        pending = self._transport.pending
        self._transport.collect(
            deadline,
            lambda: ids.isdisjoint(pending) or is_enough(),
            lambda: self.identify(self._round),
        )

    def read_answers(self) -> None:
        """Bind the nodes to the names in the answers that have arrived."""
        for question, reply in self._transport.take("name"):
            unknown = self._unknown.get(question.node_id)
            # else it answered before it restarted, perhaps with another name
            if unknown is not None and unknown.question == question.message_id:
                self._read_answer(question.node_id, reply)

    def _known(self, nodes: list[OnlineNode]) -> set[int]:
        return {node.node_id for node in nodes} & self._registry.nodes.keys()

    def _has_first_answers(self) -> bool:
        """Return whether every node has answered its first question, or used up its time."""
        pending = self._transport.pending
        unknown = self._unknown.values()
        waits = self._app_answers is None and self._transport.clock.tick() < self._others_at
        return not any(
            node.failures == 0 and (node.question in pending or (waits and not node.question))
            for node in unknown
        )

    def _find_unknown(self, nodes: list[OnlineNode]) -> None:
        """Forget nodes that have left, and their questions; add those that have come."""
        previous, self._unknown = self._unknown, {}
        for node in nodes:
            if not self._registry.is_known(node.node_id, node.activated_at):
                unknown = previous.get(node.node_id)
                if unknown is None or unknown.activated_at != node.activated_at:
                    unknown = _Unknown(node.activated_at)
                self._unknown[node.node_id] = unknown
        open_questions = {unknown.question for unknown in self._unknown.values()}
        for pending in list(self._transport.pending.values()):
            if pending.kind == "name" and pending.message_id not in open_questions:
                del self._transport.pending[pending.message_id]

    def _ask(self, nodes: list[OnlineNode], t: int) -> None:
        """Take the names of the nodes that are due from their registration, or ask for them."""
        now, messages = self._transport.clock.tick(), []
        online = {node.node_id for node in nodes}
        for node in sorted(nodes, key=lambda node: node.activated_at):
            unknown = self._unknown.get(node.node_id)
            if unknown is None or unknown.ask_at > now:
                continue
            if node.name:
                self._bind_registered(node, online)
                continue
            if unknown.lost and self._registry.node_of(unknown.lost) in online:
                continue
            if self._app_answers is False:
                self._bind_unnamed(node.node_id)
                continue
            if self._app_answers is None and now < self._others_at < math.inf:
                continue
            if self._transport.pending.pop(unknown.question, None):
                self._fail(node.node_id, NO_ANSWER)
            pause = min(_PATIENCE * 2 ** min(unknown.failures, 10), _LONGEST_PATIENCE)
            unknown.ask_at = now + pause
            self._others_at = min(self._others_at, now + _HEAD_START)
            content = RecordDict({"config": ConfigRecord(draw_nonce())})
            messages.append(
                Message(content, node.node_id, NAME_QUERY, ttl=pause, group_id=str(t + 1))
            )
        with suppress(SuperLinkError):  # they are asked again when they are due
            for question in self._transport.send(messages, "name", t):
                self._unknown[question.node_id].question = question.message_id

    def _bind_registered(self, node: OnlineNode, online: Set[int]) -> None:
        """Bind a node to its registered name, unless another key with this name is online."""
        first = self._registry.node_of(node.name)
        if node.name in self._registry.registered and first in online - {node.node_id}:
            text = f"node {first} has been online longer as {node.name!r}; give each key its own"
            self._fail(node.node_id, f"{text} name")
        else:
            self._bind(node.node_id, node.name, registered=True)

    def _read_answer(self, node_id: int, reply: Message) -> None:
        """Bind a node to the name in its reply."""
        if reply.has_error() and is_app_error(reply.error):  # its app does not know the query
            if lacks_query(reply.error) and self._app_answers is None:
                self._app_answers = False
            self._bind_unnamed(node_id)
            return
        try:
            check_sender(reply, node_id)
            name = select_records(reply.content, ConfigRecord)["config"]["name"]
        except RejectedReplyError as reason:
            self._fail(node_id, str(reason))
            return
        except (KeyError, ValueError):
            name = None
        self._app_answers = True
        self._bind(node_id, name if isinstance(name, str) else "", registered=False)

    def _bind_unnamed(self, node_id: int) -> None:
        former = self._registry.nodes.get(node_id, f"node-{node_id}")
        self._bind(node_id, former, registered=False)

    def _bind(self, node_id: int, name: str, registered: bool) -> None:
        unknown, former = self._unknown[node_id], self._registry.node_of(name)
        reason = self._registry.bind(node_id, name, registered, unknown.activated_at)
        if reason is not None:
            unknown.ask_at = math.inf
            self._fail(node_id, reason)
            return
        del self._unknown[node_id]
        if former is None or former == node_id or former in self._unknown:
            return  # nobody loses the name, or only one who is asked for it anyway
        activated_at = self._transport.activated.get(former)
        if activated_at is not None:  # else it is offline
            self._unknown[former] = _Unknown(activated_at, lost=name)
            self._report_absent(former, f"node {node_id} has taken its place as {name!r}")

    def _fail(self, node_id: int, reason: str) -> None:
        """Count a question that brought no name, and log the reason once."""
        unknown = self._unknown[node_id]
        unknown.failures += 1
        if node_id not in self._registry.nodes and unknown.reason != reason:
            unknown.reason = reason
            self._report_absent(node_id, reason)

    def _report_absent(self, node_id: int, reason: str) -> None:
        self._absent.warn("node %d does not take part: %s", node_id, reason)
