"""What goes wrong in a federation: each survived, with the model and the ledger right."""

import math
import sqlite3
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedtide as ft
from fedtide.flower.server.session import TrainingSession
from fedtide.flower.server.transport import Exchange
from fedtide.participation.log.ledger import Ledger, read_ledger, read_rounds

from .driver import deploy, federation, model, prepared, quadratic, scripted
from .fake import FakeGrid

A = ft.algorithms
TASK = prepared(quadratic())
LOCAL = ft.LocalTraining(steps=3, lr=0.1)
N = TASK.population.clients


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def rows(url: str) -> list[tuple]:
    """Return (round, client, stage, asked) of the ledger."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        query = "SELECT round, client, stage, asked FROM participation ORDER BY round, client"
        return connection.execute(query).fetchall()


def update_of(client: int, x: np.ndarray) -> np.ndarray:
    """Return Δ of three local steps on the quadratic, written out."""
    problem, y = quadratic(), x.copy()
    for _ in range(3):
        y = y - 0.1 * problem.matrices[client] @ (y - problem.centers[client])
    return y - x


def node_of(grid: FakeGrid, client: int):
    return next(node for node in grid.nodes.values() if node.config["partition-id"] == client)


# ---------------------------------------------------------------- replies that come late, or never


@pytest.mark.parametrize("algorithm", [A.MIFA(), A.FedAvg(), A.FedVARP()], ids=repr)
def test_a_slow_client_is_never_starved_and_counts_as_its_method_says(algorithm, url):
    grid = federation(TASK, LOCAL, seconds=lambda number: 20.0)
    slow = node_of(grid, 3)
    slow.seconds = lambda number: 0.1 if number == 0 else 70.0  # it tells its name at once
    strategy = deploy(grid, TASK, algorithm, rounds=12, timeout=30.0, ledger=url)

    history = [TASK.start.numpy()]
    memory, late = np.zeros((N, 3)), []
    for t in range(12):
        used = [
            (int(client), t if asked is None else asked)
            for round, client, stage, asked in rows(url)
            if round == t and stage == "used"
        ]
        late += [(client, t - asked) for client, asked in used if asked != t]
        x = history[-1]
        updates = {client: update_of(client, history[asked]) for client, asked in used}
        if not updates:
            pass
        elif isinstance(algorithm, A.FedAvg):
            x = x + np.mean(list(updates.values()), axis=0)
        elif isinstance(algorithm, A.FedVARP):
            news = [updates[client] - memory[client] for client in updates]
            x = x + memory.mean(axis=0) + np.mean(news, axis=0)
        for client, update in updates.items():
            memory[client] = update
        if isinstance(algorithm, A.MIFA):
            x = x + memory.mean(axis=0)
        history.append(x)
    np.testing.assert_allclose(model(strategy), history[-1], rtol=1e-9)

    of_slow = [(stage, asked) for _, client, stage, asked in rows(url) if client == "3"]
    if isinstance(algorithm, A.FedAvg):
        assert late == []
        assert ("used", None) not in of_slow
        assert sum(stage == "reported" for stage, _ in of_slow) >= 2
    else:
        assert {client for client, _ in late} == {3}
        assert len(late) >= 2
        assert {lag for _, lag in late} <= {2, 3}


def test_a_node_that_owes_a_reply_is_not_asked_again():
    grid = federation(TASK, LOCAL, seconds=lambda number: 10.0 + 45.0 * (number % 3))
    deploy(grid, TASK, A.MIFA(), rounds=15, timeout=30.0)
    for node_id in grid.nodes:
        asked = [m for m in grid.sent if m.metadata.dst_node_id == node_id]
        assert len(asked) > 2
        for earlier, later in pairwise(m.metadata.message_id for m in asked):
            assert grid.answered[earlier] <= grid.pushed[later]


def test_a_round_ends_with_enough_replies(url):
    grid = federation(TASK, LOCAL)
    for client in range(N):
        node_of(grid, client).seconds = lambda number, c=client: (
            0.1 if number == 0 else 5.0 * (c + 1)
        )
    deploy(grid, TASK, A.FedAvg(), rounds=1, close_after=2, ledger=url)
    used = {client for _, client, stage, _ in rows(url) if stage == "used"}
    assert used == {"0", "1"}
    assert {client for _, client, stage, _ in rows(url) if stage == "selected"} == {"2", "3", "4"}


def test_a_node_that_died_and_came_back_is_asked_again(url):
    """Its message was delivered to a process that is gone: nobody will ever answer it."""
    grid = federation(TASK, LOCAL, seconds=lambda number: 5.0)
    lost = node_of(grid, 2)
    lost.seconds = lambda number: math.inf if number == 1 else 5.0
    beginning = grid.now

    class Restarting(FakeGrid):
        def get_nodes(self):
            if self.now > beginning + 100 and not lost.started:
                lost.started, lost.free_at = self.now, self.now
            return super().get_nodes()

    grid = Restarting(grid.nodes)
    deploy(grid, TASK, A.FedAvg(), rounds=30, timeout=30.0, ledger=url)
    stages = [(round, stage) for round, client, stage, _ in rows(url) if client == "2"]
    assert stages[0] == (0, "selected")
    assert stages[1][1] == "used"
    assert stages[1][0] > 3
    assert [round for round, _ in stages[1:]] == list(range(stages[1][0], 30))


def test_no_nodes_for_some_rounds_and_then_three(url):
    grid = federation(TASK, LOCAL)
    beginning = grid.now
    for client in range(N):
        arrives = 95.0 if client < 3 else math.inf
        node_of(grid, client).online = lambda now, at=arrives: now >= beginning + at
    strategy = deploy(grid, TASK, A.FedAU(cutoff=2), rounds=6, timeout=30.0, ledger=url)
    assert read_rounds(url)["round"].to_list() == list(range(6))
    used = [(round, client) for round, client, stage, _ in rows(url) if stage == "used"]
    assert used == [(t, str(n)) for t in (3, 4, 5) for n in (0, 1, 2)]
    # Intervals of the three: 2 (cut off), 2 by coming in round 3, then 1 by coming in round 4.
    x = TASK.start.numpy()
    for weight in (2.0, 2.0, 5.0 / 3):
        x = x + weight * sum(update_of(n, x) for n in range(3)) / N
    np.testing.assert_allclose(model(strategy), x, rtol=1e-12)


# ------------------------------------------------------------------------------- replies that lie


def changed(**records) -> Callable[[Message], Message]:
    """Return what puts other records into the replies to training."""

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "train" and reply.has_content():
            for name, record in records.items():
                new = record(reply) if callable(record) else record
                reply.content.pop(name, None)
                if new is not None:
                    reply.content[name] = new
        return reply

    return tamper


def claims(**told) -> Callable[[Message], ConfigRecord]:
    return lambda reply: ConfigRecord({**reply.content.config_records["config"], **told})


def figures(**told) -> Callable[[Message], MetricRecord]:
    return lambda reply: MetricRecord({**reply.content.metric_records["metrics"], **told})


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
    "negative samples": changed(metrics=figures(**{"num-examples": -5})),
    "a list of samples": changed(metrics=figures(**{"num-examples": [5, 5]})),
    "no learning rate": changed(metrics=MetricRecord({"num-examples": 1, "steps": 3})),
    "half a step": changed(metrics=figures(steps=0.5)),
    "nan rate": changed(metrics=figures(lr=math.nan)),
    "another client": changed(config=claims(client="4")),
    "another round": changed(config=claims(**{"server-round": 99})),
    "a former round": changed(config=claims(**{"server-round": 0})),
    "does not follow": changed(config=None),
    "another node": another_sender,
    "nothing at all": changed(update=None, metrics=None, config=None),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_that_cannot_be_believed_is_not_used(lie, url):
    """The others' model is as if the liar had not come."""
    grid = federation(TASK, LOCAL)
    node_of(grid, 1).tamper = LIES[lie]
    algorithm = A.Scaffold()  # its instructions go beyond the model, and it reads rates and steps
    strategy = deploy(grid, TASK, algorithm, rounds=4, ledger=url)
    there = np.ones((4, N), dtype=bool)
    there[:, 1] = False
    honest = deploy(federation(TASK, LOCAL, there), TASK, algorithm, rounds=4)
    np.testing.assert_array_equal(model(strategy), model(honest))
    stages = {(client, stage) for _, client, stage, _ in rows(url)}
    assert stages == {("1", "reported")} | {(str(n), "used") for n in (0, 2, 3, 4)}


def test_an_app_that_raises_is_not_used_and_reported_nothing(url):
    grid = federation(TASK, LOCAL)

    def crash(message, context):
        if message.metadata.message_type == "train":
            raise RuntimeError("out of memory")
        return app(message, context)

    app, node_of(grid, 1).app = node_of(grid, 1).app, crash
    deploy(grid, TASK, A.FedAvg(), rounds=3, ledger=url)
    assert {stage for _, client, stage, _ in rows(url) if client == "1"} == {"selected"}


def test_a_reply_that_cannot_even_be_pulled_does_not_stop_the_others(url):
    class Choking(FakeGrid):
        def pull_messages(self, message_ids):
            ids = list(message_ids)
            chokes = [i for i in ids if i in self.pending and self._of_client_1(i)]
            if chokes and len(ids) == 1:
                del self.pending[ids[0]]
            if chokes:
                raise ValueError("malformed object tree")
            return super().pull_messages(ids)

        def _of_client_1(self, message_id):
            due, reply = self.pending[message_id]
            node = self.nodes[reply.metadata.src_node_id]
            train = reply.metadata.message_type == "train"
            return train and due <= self.now and node.config["partition-id"] == 1

    grid = Choking(federation(TASK, LOCAL).nodes)
    deploy(grid, TASK, A.FedAvg(), rounds=3, timeout=30.0, ledger=url)
    used = {(round, client) for round, client, stage, _ in rows(url) if stage == "used"}
    assert used == {(t, str(n)) for t in range(3) for n in (0, 2, 3, 4)}


# --------------------------------------------------------------------------------------- crashes


class Killed(BaseException):
    """What ends the server without any warning."""


def kill_in_call(monkeypatch, owner: type, name: str, number: int, after: bool) -> None:
    """Raise in the call with this number of a method, before or after it has worked."""
    original, calls = getattr(owner, name), []

    def called(self, *arguments, **named):
        calls.append(1)
        if len(calls) == number and not after:
            raise Killed
        result = original(self, *arguments, **named)
        if len(calls) == number:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (Exchange, "send", 3),
        (Exchange, "collect", 4),
        (TrainingSession, "end_round", 3),
        (TrainingSession, "save", 3),
        (Ledger, "commit", 3),
        (Ledger, "commit", 1),
    ],
)
@pytest.mark.parametrize(
    "algorithm",
    [A.Amplified(period=3, factor=1.5, inner=A.FedAU(cutoff=2)), A.AmplifiedScaffold(3, 1.2)],
    ids=["amplified", "amplified-scaffold"],
)
def test_a_run_killed_anywhere_and_submitted_again_ends_the_same(
    algorithm, owner, name, number, after, tmp_path, url, monkeypatch
):
    there = scripted(8, N)
    whole = deploy(federation(TASK, LOCAL, there), TASK, algorithm, rounds=8)
    options = {"rounds": 8, "state": tmp_path / "state", "ledger": url}
    with monkeypatch.context() as patch:
        kill_in_call(patch, owner, name, number, after)
        with pytest.raises(Killed):
            deploy(federation(TASK, LOCAL, there), TASK, algorithm, **options)
    again = deploy(federation(TASK, LOCAL, there), TASK, algorithm, **options)
    np.testing.assert_array_equal(model(again), model(whole))
    assert read_rounds(url)["round"].to_list() == list(range(8))
    used = read_ledger(url).filter(pl.col("stage") == "used")
    assert used.select("round", "client").rows() == [
        (t, str(n)) for t in range(8) for n in range(N) if there[t, n]
    ]


def test_a_finished_run_submitted_again_does_nothing_and_more_rounds_go_on(tmp_path, url):
    there = scripted(8, N)
    options = {"state": tmp_path / "state", "ledger": url}
    first = deploy(federation(TASK, LOCAL, there), TASK, A.MIFA(), rounds=5, **options)
    idle = federation(TASK, LOCAL, there)
    second = deploy(idle, TASK, A.MIFA(), rounds=5, **options)
    np.testing.assert_array_equal(model(first), model(second))
    assert idle.sent == []
    third = deploy(federation(TASK, LOCAL, there), TASK, A.MIFA(), rounds=8, **options)
    whole = deploy(federation(TASK, LOCAL, there), TASK, A.MIFA(), rounds=8)
    np.testing.assert_array_equal(model(third), model(whole))


def test_the_order_of_replies_changes_nothing():
    torch.manual_seed(0)
    models = []
    for order in ([0.1] * N, [0.5, 0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.1, 0.5]):
        grid = federation(TASK, LOCAL)
        for client in range(N):
            node_of(grid, client).seconds = lambda number, s=order[client]: s
        models.append(model(deploy(grid, TASK, A.FedAU(), rounds=5)))
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], models[2])


# ------------------------------------------------------------------------ an ordinary Flower app


def test_an_ordinary_flower_client_is_understood(url):
    """It returns its model and its number of examples, and knows nothing of fedtide."""
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        x = message.content["arrays"].to_numpy_ndarrays()[0]
        client = context.node_config["partition-id"]
        record = ArrayRecord({"x": Array(x + update_of(client, x))})
        metrics = MetricRecord({"num-examples": 10 * (client + 1), "loss": float(client)})
        return Message(RecordDict({"model": record, "found": metrics}), reply_to=message)

    grid = federation(TASK, LOCAL)
    for node in grid.nodes.values():
        node.app = app
    algorithm = A.FedAvg(weights="data")
    strategy = deploy(grid, TASK, algorithm, rounds=3, clients=N, ledger=url)
    x = TASK.start.numpy()
    weights = np.arange(1, N + 1) / np.arange(1, N + 1).sum()
    for _ in range(3):
        x = x + sum(w * update_of(n, x) for n, w in enumerate(weights))
    np.testing.assert_allclose(model(strategy), x, rtol=1e-12)
    assert {client for _, client, _, _ in rows(url)} == {f"node-{n}" for n in grid.nodes}


def test_an_ordinary_client_cannot_follow_corrections(url):
    grid = federation(TASK, LOCAL)
    node_of(grid, 1).tamper = changed(config=None)
    deploy(grid, TASK, A.FedProx(mu=0.1), rounds=2, ledger=url)
    assert {stage for _, client, stage, _ in rows(url) if client == "1"} == {"reported"}
