"""Replies that lie or fail are left out; ordinary Flower clients are understood."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedtide as ft

from .driver import TASK, N, deploy, federation, model, node_of, rows, update_of

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
    "nan": changed(update=arrays(x=[1.0, math.nan, 2.0])),
    "infinite": changed(update=arrays(x=[1.0, math.inf, 2.0])),
    "too large": changed(update=arrays(x=[1.0, 1e200, 2.0])),
    "wrong shape": changed(update=arrays(x=np.zeros((3, 1)))),
    "wrong name": changed(update=arrays(y=np.zeros(3))),
    "one array more": changed(update=arrays(x=np.zeros(3), y=np.zeros(3))),
    "integers": changed(update=arrays(x=np.zeros(3, dtype=np.int64))),
    "strings": changed(update=arrays(x=np.array(["a", "b", "c"]))),
    "no arrays": changed(update=None),
    "two sets of arrays": changed(
        update=None, first=arrays(x=np.zeros(3)), second=arrays(x=np.zeros(3))
    ),
    "broken bytes": changed(update=broken_bytes),
    "no metrics": changed(metrics=None),
    "no samples": changed(metrics=MetricRecord({"lr": 0.1, "steps": 3})),
    "negative samples": changed(metrics=metrics(**{"num-examples": -5})),
    "a list of samples": changed(metrics=metrics(**{"num-examples": [5, 5]})),
    "no learning rate": changed(metrics=MetricRecord({"num-examples": 1, "steps": 3})),
    "half a step": changed(metrics=metrics(steps=0.5)),
    "nan rate": changed(metrics=metrics(lr=math.nan)),
    "another client": changed(config=claims(client="4")),
    "another round": changed(config=claims(**{"server-round": 99})),
    "a former round": changed(config=claims(**{"server-round": 0})),
    "does not follow": changed(config=None),
    "another node": another_sender,
    "nothing at all": changed(update=None, metrics=None, config=None),
}


@pytest.fixture(scope="module")
def model_without_client_1() -> np.ndarray:
    present = np.ones((4, N), dtype=bool)
    present[:, 1] = False
    return model(deploy(federation(present=present), A.Scaffold(), rounds=4))


@pytest.mark.parametrize("lie", LIES)
def test_a_false_reply_is_left_out(lie, url, model_without_client_1):
    """Scaffold sends corrections and reads learning rates and steps, so all of these matter."""
    grid = federation()
    node_of(grid, 1).tamper = LIES[lie]
    strategy = deploy(grid, A.Scaffold(), rounds=4, ledger=url)
    np.testing.assert_array_equal(model(strategy), model_without_client_1)
    stages = {(client, stage) for _, client, stage, _ in rows(url)}
    assert stages == {("1", "reported")} | {(str(n), "used") for n in (0, 2, 3, 4)}


def test_an_app_that_raises_is_not_used_and_reported_nothing(url):
    grid = federation()

    def crash(message, context):
        if message.metadata.message_type == "train":
            raise RuntimeError("out of memory")
        return app(message, context)

    app, node_of(grid, 1).app = node_of(grid, 1).app, crash
    deploy(grid, A.FedAvg(), rounds=3, ledger=url)
    assert {stage for _, client, stage, _ in rows(url) if client == "1"} == {"selected"}


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


def test_an_ordinary_client_cannot_follow_corrections(url):
    grid = federation()
    node_of(grid, 1).tamper = changed(config=None)
    deploy(grid, A.FedProx(mu=0.1), rounds=2, ledger=url)
    assert {stage for _, client, stage, _ in rows(url) if client == "1"} == {"reported"}
