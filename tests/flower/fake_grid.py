"""A Flower grid in this process, whose nodes run apps and are offline or slow by a script.

It behaves as Flower's SuperLink and SuperNodes do: only nodes that are online are listed; a node
handles one message at a time; the SuperLink (node 1) answers a message to a node that is offline
with error 5; the node answers with error 2 if its app raises; each message is answered once;
message ids of another run are refused.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedtide.flower.server.transport import Clock

NODE_UNAVAILABLE, APP_RAISED, MESSAGE_UNAVAILABLE = 5, 2, 3
_runs = count(1)


@dataclass
class Node:
    """One SuperNode.

    Args:
        app: what it runs.
        config: its node config.
        seconds: how long it takes over a message, by the message's number (0, 1, ...).
        online: whether it is connected at a time.
        name: the one with which the operator registered it.
        started: when it was started.
        error: the code of the error with which it answers in place of its app; 0: none.
        tamper: changes a reply before it is sent.
        state: what its app keeps between the messages of a run.
    """

    app: ClientApp
    config: dict
    seconds: Callable[[int], float] = lambda number: 0.1
    online: Callable[[float], bool] = lambda now: True
    name: str = ""
    started: float = 1.0  # Flower leaves a time that is unknown empty, which is read as 0
    error: int = 0
    tamper: Callable[[Message], Message] = lambda reply: reply
    state: RecordDict = field(default_factory=RecordDict)
    handled: int = 0
    free_at: float = 0.0


@dataclass
class FakeGrid(Grid):
    """The grid; `now` is the time, which advances when its clock sleeps.

    `wall` returns what the clocks on the wall show then, which somebody may set.
    """

    nodes: dict[int, Node]
    now: float = 1_000.0
    wall: Callable[[float], float] = lambda now: now
    run_id: int = field(default_factory=lambda: next(_runs))
    sent: list[Message] = field(default_factory=list)
    pending: dict[str, tuple[float, Message]] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: count(1))
    pushed: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    run_config: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Flower sets these when a ServerApp's process starts, and stamps messages with them.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, 1, 1

    @property
    def clock(self) -> Clock:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return Clock(now=lambda: self.wall(self.now), tick=lambda: self.now, sleep=sleep)

    @property
    def run(self):
        return SimpleNamespace(run_id=self.run_id)

    def set_run(self, run):
        self.run_id = run.run_id

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def send_and_receive(self, messages, *, timeout=None):
        ids = self.push_messages(messages)
        last = max((self.pending[one][0] for one in ids), default=self.now)
        self.now = min(last, math.inf if timeout is None else self.now + timeout)
        return self.pull_messages(ids)

    def get_nodes(self):
        return [
            NodeInfo(
                node_id=node_id,
                name=node.name,
                last_activated_at=datetime.fromtimestamp(self.wall(node.started), UTC).isoformat(),
            )
            for node_id, node in self.nodes.items()
            if node.online(self.now)
        ]

    def get_node_ids(self):
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message_id = f"{self.run_id}-{next(self.ids)}"
        message.metadata.__dict__["_message_id"] = message_id
        self.sent.append(message)
        self.pushed[message_id] = self.now
        node = self.nodes[message.metadata.dst_node_id]
        start = max(self.now, node.free_at)
        if not node.online(start):
            reply = Message(Error(NODE_UNAVAILABLE, "offline"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            self.pending[message_id] = (start, reply)
            return message_id
        node.free_at = start + node.seconds(node.handled)
        node.handled += 1
        expires = self.now + message.metadata.ttl
        if node.free_at > expires:
            reply = Message(Error(MESSAGE_UNAVAILABLE, "expired"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            self.pending[message_id] = (expires, reply)
            return message_id
        self.pending[message_id] = (node.free_at, node.tamper(self._answer(node, message)))
        return message_id

    def _answer(self, node: Node, message: Message) -> Message:
        if node.error:
            return Message(Error(node.error, "cannot be loaded"), reply_to=message)
        context = Context(
            run_id=self.run_id,
            node_id=message.metadata.dst_node_id,
            node_config=node.config,
            state=node.state,
            run_config=self.run_config,
        )
        try:
            return node.app(deepcopy(message), context)  # a message's content is never shared
        except Exception as error:
            return Message(Error(APP_RAISED, repr(error)), reply_to=message)

    def pull_messages(self, message_ids):
        foreign = [one for one in message_ids if not one.startswith(f"{self.run_id}-")]
        if foreign:
            raise ValueError("`message_ids` contains invalid IDs")
        due = [
            one for one in message_ids if one in self.pending and self.pending[one][0] <= self.now
        ]
        self.answered |= dict.fromkeys(due, self.now)
        return [self.pending.pop(one)[1] for one in due]


class WireGrid(FakeGrid, HttpGrid):
    """The same with Flower's own code for pulling: replies travel as bytes and are decoded here.

    As at the SuperLink, a reply is deleted when it is pulled. `corrupt` changes the objects of a
    reply, by id, after the SuperLink has checked its envelope, as a hostile node can. `withheld`
    says until when the upload of an object is not complete; the SuperLink waits 180 s for it.
    """

    def __init__(self, nodes: dict[int, Node], corrupt: Callable[[Message, dict], None]) -> None:
        FakeGrid.__init__(self, nodes)
        self.corrupt, self.node = corrupt, NodeProto(node_id=1)
        self.objects: dict[str, bytes] = {}
        self.withheld: dict[str, float] = {}
        self.announced: dict[str, float] = {}
        self.fetched: list[str] = []

    @property
    def _run(self):
        return SimpleNamespace(run_id=self.run_id)

    @property
    def _runtime_client(self):
        return self

    def pull_messages(self, message_ids):
        return HttpGrid.pull_messages(self, message_ids)

    def PullMessages(self, request):
        response = PullAppMessagesResponse()
        for message in FakeGrid.pull_messages(self, request.message_ids):
            message.metadata.__dict__["_message_id"] = message.object_id
            response.messages_list.append(message_to_proto(remove_content_from_message(message)))
            response.message_object_trees.append(get_object_tree(message))
            objects = {i: o.deflate() for i, o in get_all_nested_objects(message).items()}
            self.corrupt(message, objects)
            self.objects |= objects
            self.announced |= dict.fromkeys(objects, self.now)
        return response

    def PullObject(self, request):
        one = request.object_id
        content = self.objects[one]
        if self.withheld.get(one, 0.0) > self.now:
            found = self.now < self.announced[one] + 180.0
            return PullObjectResponse(object_found=found, object_available=False)
        self.fetched.append(one)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        pass
