"""Replies that lie or fail are left out; ordinary Flower clients are understood."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedtide as ft
from fedtide.flower import FedTide, custom_client
from fedtide.flower.ledger.ledger import read_ledger
from fedtide.flower.protocol import ECHO

from .driver import (
    TASK,
    N,
    deploy,
    federation,
    model,
    node_of,
    prepare,
    quadratic,
    rows,
    update_of,
)
from .fake_grid import FakeGrid, Node

A = ft.algorithms


def changed(**records) -> Callable[[Message], Message]:
    """Return a function that replaces records of the replies to training."""

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "train" and reply.has_content():
            for name, record in records.items():
                new = record(reply) if callable(record) else record
                reply.content.pop(name, None)
                if new is not None:
                    reply.content[name] = new
        return reply

    return tamper


def claims(**values) -> Callable[[Message], ConfigRecord]:
    return lambda reply: ConfigRecord({**reply.content.config_records["config"], **values})


def metrics(**values) -> Callable[[Message], MetricRecord]:
    return lambda reply: MetricRecord({**reply.content.metric_records["metrics"], **values})


def arrays(**named) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in named.items()})


def another_sender(reply: Message) -> Message:
    if reply.metadata.message_type == "train":
        reply.metadata.__dict__["_src_node_id"] = 101
    return reply


def broken_bytes(reply: Message) -> ArrayRecord:
    broken = Array(dtype="float64", shape=(3,), stype="numpy.ndarray", data=b"\x93NUMPY nonsense")
    return ArrayRecord({"x": broken})


LIES = {
    "nan": ("not finite", changed(arrays=arrays(x=[1.0, math.nan, 2.0]))),
    "too large": ("not finite", changed(arrays=arrays(x=[1.0, 1e200, 2.0]))),
    "a shape that broadcasts": ("malformed", changed(arrays=arrays(x=np.zeros(1)))),
    "wrong name": ("malformed", changed(arrays=arrays(y=np.zeros(3)))),
    "one array more": ("malformed", changed(arrays=arrays(x=np.zeros(3), y=np.zeros(3)))),
    "integers": ("malformed", changed(arrays=arrays(x=np.zeros(3, dtype=np.int64)))),
    "no arrays": ("malformed", changed(arrays=None)),
    "two sets of arrays": (
        "malformed",
        changed(arrays=None, first=arrays(x=np.zeros(3)), second=arrays(x=np.zeros(3))),
    ),
    "broken bytes": ("malformed", changed(arrays=broken_bytes)),
    "no metrics": ("malformed", changed(metrics=None)),
    "an update that is nan": ("not finite", changed(update=arrays(x=[1.0, math.nan, 2.0]))),
    "an update of a wrong shape": ("malformed", changed(update=arrays(x=np.zeros((3, 1))))),
    "no samples": ("invalid", changed(metrics=MetricRecord({"lr": 0.1, "steps": 3}))),
    "negative samples": ("invalid", changed(metrics=metrics(**{"num-examples": -5}))),
    "more samples than exist": ("invalid", changed(metrics=metrics(**{"num-examples": 1e19}))),
    "a list of samples": ("invalid", changed(metrics=metrics(**{"num-examples": [5, 5]}))),
    "more steps than one can take": ("invalid", changed(metrics=metrics(steps=1e300))),
    "half a step": ("invalid", changed(metrics=metrics(steps=0.5))),
    "too many metrics": ("invalid", changed(metrics=metrics(**{f"m{i}": 1.0 for i in range(101)}))),
    "too many numbers": ("invalid", changed(metrics=metrics(curve=[1.0] * 10_001))),
    "a forged line": ("invalid", changed(metrics=metrics(**{"x\nINFO: all is well": 1.0}))),
    "a rate that divides to infinity": ("learning rate", changed(metrics=metrics(lr=1e-320))),
    "another rate than all others": ("learning rate", changed(metrics=metrics(lr=0.2))),
    "nan rate": ("learning rate", changed(metrics=metrics(lr=math.nan))),
    "another client": ("false claim", changed(config=claims(client="4"))),
    "another round": ("false claim", changed(config=claims(**{"server-round": 99}))),
    "another node": ("false claim", another_sender),
    "another request": ("false claim", changed(config=claims(**{ECHO: 1}))),
    "does not follow": ("not followed", changed(config=None)),
}
"""What the ledger says of each lie, and the lie."""


def reasons(url: str, client: str) -> list[str | None]:
    """Return why the client's update was not used, by round."""
    return read_ledger(url).filter(client=client)["reason"].to_list()


@pytest.fixture(scope="module")
def model_without_client_1() -> np.ndarray:
    present = np.ones((4, N), dtype=bool)
    present[:, 1] = False
    return model(deploy(federation(present=present), A.Scaffold(), rounds=4))


@pytest.mark.parametrize("lie", LIES)
def test_a_false_reply_is_left_out(lie, url, model_without_client_1):
    """Scaffold sends corrections and reads learning rates and steps, so all of these matter."""
    grid = federation()
    reason, node_of(grid, 1).tamper = LIES[lie]
    strategy = deploy(grid, A.Scaffold(), rounds=4, ledger=url)
    np.testing.assert_array_equal(model(strategy), model_without_client_1)
    stages = {(client, stage) for _, client, stage, _ in rows(url)}
    assert stages == {("1", "reported")} | {(str(n), "used") for n in (0, 2, 3, 4)}
    assert reasons(url, "1") == [reason] * 4
    assert set(reasons(url, "2")) == {None}


def test_a_node_that_names_another_one_as_the_sender_counts_for_nobody(url):
    """A site with a key may send in another's name, and knows node and message, not the request.

    As if it were an ordinary Flower client, it repeats nothing of the request.
    """
    grid = federation()

    def in_its_name(reply: Message) -> Message:
        return changed(config=None, arrays=arrays(x=np.full(3, 9.0)))(reply)

    present = np.ones((4, N), dtype=bool)
    present[2:, 1] = False
    wanted = model(deploy(federation(present=present), A.FedAvg(), rounds=4))
    victim, sent = node_of(grid, 1), []

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type != "train":
            return reply
        sent.append(reply)
        return reply if len(sent) <= 2 else in_its_name(reply)

    victim.tamper = tamper
    strategy = deploy(grid, A.FedAvg(), rounds=4, ledger=url)
    np.testing.assert_array_equal(model(strategy), wanted)
    assert reasons(url, "1") == [None, None, "false claim", "false claim"]


def lose_training(grid, client: int, code: int) -> None:
    """Let the SuperLink answer each request to train a client with an error."""
    push, lost = grid._push, node_of(grid, client)

    def answer(message):
        message_id = push(message)
        to_client = grid.nodes[message.metadata.dst_node_id] is lost
        if to_client and message.metadata.message_type == "train":
            reply = Message(Error(code, "of the SuperLink"), reply_to=message)
            grid.pending[message_id] = (grid.now + 1, reply)
        return message_id

    grid._push = answer


def test_the_ledger_says_who_went_offline_who_is_slow_and_who_came_too_late(url):
    grid = federation()
    node_of(grid, 2).seconds = lambda number: 60.05 if number == 1 else 0.1  # timeout: 60
    lose_training(grid, 1, code=5)
    deploy(grid, A.FedAvg(), rounds=3, ledger=url)
    assert reasons(url, "1") == ["offline"] * 3
    assert reasons(url, "2") == ["no reply", "late", None]
    assert set(reasons(url, "3")) == {None}


def test_an_ordinary_flower_client_is_understood(url):
    """It returns its model and its number of examples, and knows nothing of fedtide."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        x = message.content["arrays"].to_numpy_ndarrays()[0]
        client = context.node_config["partition-id"]
        record = ArrayRecord({"x": Array(x + update_of(client, x))})
        metrics = MetricRecord({"num-examples": 10 * (client + 1), "loss": float(client)})
        return Message(RecordDict({"model": record, "found": metrics}), reply_to=message)

    grid = federation()
    for node in grid.nodes.values():
        node.app = app
    algorithm = A.FedAvg(weights="data")
    strategy = deploy(grid, algorithm, rounds=3, clients=N, ledger=url)
    x = TASK.start.numpy()
    weights = np.arange(1, N + 1) / np.arange(1, N + 1).sum()
    for _ in range(3):
        x = x + sum(w * update_of(n, x) for n, w in enumerate(weights))
    np.testing.assert_allclose(model(strategy), x, rtol=1e-12)
    assert {client for _, client, _, _ in rows(url)} == {f"node-{n}" for n in grid.nodes}


@pytest.mark.parametrize("method", [A.MIFA(), A.FedAvgM(), A.FedVARP(), A.FedLaAvg()], ids=repr)
def test_an_update_that_would_grow_in_the_state_later_is_left_out(method, url):
    """Nobody answers after it, and some methods add it again in every round."""
    task, present = prepare(quadratic(), dtype=torch.float32), np.ones((15, N), dtype=bool)
    present[2:] = False
    without = present.copy()
    without[1, 1] = False
    honest = model(deploy(federation(task, present=without), method, task=task, rounds=15))
    grid, huge = federation(task, present=present), np.full(3, 5e18, dtype=np.float32)
    node = node_of(grid, 1)
    send = changed(arrays=arrays(x=huge))
    node.tamper = lambda reply: send(reply) if node.handled == 3 else reply
    strategy = deploy(grid, method, task=task, rounds=15, ledger=url)
    np.testing.assert_array_equal(model(strategy), honest)
    assert (1, "1", "reported", None) in rows(url)


@pytest.mark.parametrize("lie", ["sender", "client", "round"])
def test_false_claims_in_replies_to_evaluations_are_not_used(lie):
    def make(loss: float, claims: dict) -> ClientApp:
        app = custom_client(lambda context: None, available=lambda t, context: False)

        @app.evaluate()
        def evaluate(message, context):
            metrics = MetricRecord({"loss": loss, "num-examples": 10})
            content = RecordDict({"metrics": metrics, "config": ConfigRecord(claims)})
            return Message(content, reply_to=message)

        return app

    def forge(reply):
        if lie == "sender" and reply.metadata.message_type == "evaluate":
            reply.metadata.__dict__["_src_node_id"] = 101
        return reply

    claims = {"sender": {}, "client": {"client": "0"}, "round": {"server-round": 99}}[lie]
    honest = Node(make(1.0, {"client": "0", "server-round": 1}), {"partition-id": 0})
    liar = Node(make(1e9, claims), {"partition-id": 1}, tamper=forge)
    grid = FakeGrid({101: honest, 102: liar})
    strategy = FedTide(A.FedAvg(), clients=["0", "1"], clock=grid.clock, fraction_evaluate=1.0)
    found = strategy.start(grid, ArrayRecord({"x": Array(np.zeros(1))}), 1, 60.0)
    assert dict(found.evaluate_metrics_clientapp[1]) == {"loss": 1.0, "clients": 1}
