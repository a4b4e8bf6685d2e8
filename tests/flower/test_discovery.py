"""Who is who: registered names, claimed names, and nodes that are rejected."""

import math
from itertools import pairwise

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import read_ledger
from fedtide.flower.protocol import NAME_QUERY
from fedtide.flower.server.node_registry import NodeRegistry

from .driver import N, deploy, federation, node_of
from .fake_grid import APP_RAISED, NODE_UNAVAILABLE, FakeGrid, Node

FedAvg = ft.algorithms.FedAvg


def test_a_registered_name_cannot_be_claimed():
    registry = NodeRegistry.from_clients(3)
    assert registry.bind(1, "site-a", registered=True) is None
    assert "registered client" in registry.bind(2, "site-a", registered=False)
    assert registry.client_at(1) == 0
    assert registry.client_at(2) is None


def test_a_full_or_closed_registry_rejects_other_clients():
    full, closed = NodeRegistry.from_clients(1), NodeRegistry.from_clients(["a"])
    full.bind(1, "a", registered=False)
    assert "all 1 clients" in full.bind(2, "b", registered=False)
    assert "not among" in closed.bind(2, "b", registered=True)


def test_a_registry_survives_as_plain_data():
    registry, again = NodeRegistry.from_clients(4), NodeRegistry.from_clients(4)
    registry.bind(2**63 + 7, "a", registered=True)
    registry.bind(5, "b", registered=False)
    again.restore(registry.to_json())
    assert again == registry
    with pytest.raises(InvalidInputError, match=r"^clients: the saved state has a, b; give these"):
        NodeRegistry.from_clients(["x"]).restore(registry.to_json())


def add_mute(grid, node_id, arrives, leaves=math.inf):
    """Add a node that never answers."""
    grid.nodes[node_id] = Node(
        grid.nodes[100].app,
        {"partition-id": 0},
        seconds=lambda number: math.inf,
        online=lambda now: arrives <= now < leaves,
        started=arrives,
    )


def questions(grid, node_id):
    """Return when a node was asked for its name."""
    names = [m for m in grid.sent if m.metadata.message_type == NAME_QUERY]
    asked = [m.metadata.message_id for m in names if m.metadata.dst_node_id == node_id]
    return [grid.pushed[one] for one in asked]


def id_of(grid, client):
    """Return the id of a client's node."""
    return next(i for i, node in grid.nodes.items() if node.config["partition-id"] == client)


@pytest.mark.parametrize("error", [0, 1, 8])
def test_a_node_without_an_answer_is_asked_ever_more_rarely_and_logged_once(error, caplog):
    """A mute one, one whose app cannot be loaded, one whose process dies."""
    grid = federation(seconds=lambda number: 500.0 if number else 0.1)
    add_mute(grid, 1000, arrives=1_010.0)
    if error:
        grid.nodes[1000].error, grid.nodes[1000].seconds = error, lambda number: 1.0
    deploy(grid, FedAvg(), rounds=24, timeout=600.0)
    pauses = [later - earlier for earlier, later in pairwise(questions(grid, 1000))]
    doubled = [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert pauses == [pytest.approx(pause, abs=15) for pause in doubled[: len(pauses)]]
    assert len(pauses) >= 7
    about = [r.getMessage() for r in caplog.records if "node 1000 " in r.getMessage()]
    assert len(about) == 1
    assert "does not take part" in about[0]
    assert ("did not answer" in about[0]) == (not error)


def test_a_flood_of_new_nodes_leaves_no_trace(tmp_path, url, caplog):
    """In each round, 30 nodes come and go: mute, failing, and with names that are rejected."""
    grid = federation(seconds=lambda number: 5.0 if number else 0.1)
    for number in range(450):
        arrives = 1_001.0 + 5 * (number // 30)
        add_mute(grid, 1_000 + number, arrives, leaves=arrives + 8)
        node = grid.nodes[1_000 + number]
        if number % 3:
            node.seconds, node.error = lambda number: 0.5, number % 3 - 1
            node.config = {"name": f"stranger {number}"}
    strategy = deploy(grid, FedAvg(), rounds=20, ledger=url, state=tmp_path / "state")
    flooded = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(flooded) <= 11 * 15
    assert {len(questions(grid, 1_000 + number)) for number in range(0, 450, 15)} == {1}
    assert len(strategy._transport.pending) == 0
    assert len(strategy.training.registry.nodes) == N
    assert not strategy._discovery._unknown
    assert len(read_ledger(url).filter(stage="used")) == 20 * N


def misnamed(corrected: float, url: str, **options) -> tuple[FakeGrid, dict[str, list[int]]]:
    """Run a federation whose site 0 starts as "1", until a time; site 1 comes at 1,060 s.

    Returns:
        The grid, and the rounds in which each of these clients has a row.
    """
    grid = federation(seconds=lambda number: 5.0)
    wrong, late = node_of(grid, 0), node_of(grid, 1)
    wrong.config["name"] = "1"
    late.online = lambda now: now >= 1_060.0
    late.started = 1_060.0

    class Correcting(FakeGrid):
        def get_nodes(self):
            if self.now >= corrected and "name" in wrong.config:
                wrong.started = self.now
                del wrong.config["name"]
            return super().get_nodes()

    grid = Correcting(grid.nodes)
    deploy(grid, FedAvg(), rounds=20, timeout=60.0, ledger=url, **options)
    ledger = read_ledger(url)
    return grid, {n: ledger.filter(client=n)["round"].to_list() for n in ("0", "1")}


@pytest.mark.parametrize("corrected", [1_030.0, 1_090.0], ids=["before", "after"])
def test_a_node_that_was_another_client_is_asked_again_when_it_restarts(corrected, url):
    """Its id stays the same if it has a key, as here; site 1 comes later, and takes its place."""
    grid, rounds = misnamed(corrected, url)
    assert rounds["0"] == list(range(rounds["0"][0], 20))
    assert rounds["0"][0] <= (corrected - 1_000.0) / 5 + 2
    assert rounds["1"][-1] == 19
    assert len(questions(grid, id_of(grid, 0))) == 2


class Restarting(FakeGrid):
    """Client 3's node restarts at 1,030 s, and may answer the question for its name otherwise."""

    def get_nodes(self):
        node = node_of(self, 3)
        if self.now > 1_030 and node.started < 1_000:
            node.started = self.now
        return super().get_nodes()

    def _answer(self, node, message):
        if node.started > 1_030 and message.metadata.message_type == NAME_QUERY:
            return self.answer_again(message)
        return super()._answer(node, message)

    def answer_again(self, message):
        return Message(Error(NODE_UNAVAILABLE, "offline"), reply_to=message)


def rounds_of(client: str, url: str, stage: str = "used") -> list[int]:
    return read_ledger(url).filter(client=client, stage=stage)["round"].to_list()


def test_a_node_whose_app_fails_when_it_is_asked_again_stays_the_client_that_it_was(url, caplog):
    """As while its memory is full; an app that does not know the question fails likewise."""

    class Failing(Restarting):
        def answer_again(self, message):
            return Message(Error(APP_RAISED, "out of memory"), reply_to=message)

    grid = Failing(federation(seconds=lambda number: 5.0).nodes)
    strategy = deploy(grid, FedAvg(), rounds=30, ledger=url, clients=N + 2)
    assert len(strategy.training.registry.names) == N
    assert len(rounds_of("3", url)) >= 28
    assert "does not take part" not in caplog.text


@pytest.mark.parametrize("corrected", ["0", "\x1b[31m"], ids=["another name", "no name"])
def test_a_node_comes_back_when_the_one_with_its_name_no_longer_has_it(corrected, url):
    grid = federation(seconds=lambda number: 5.0)
    wrong = node_of(grid, 0)
    wrong.config["name"] = "1"
    wrong.online = lambda now: now >= 1_030.0
    wrong.started = 1_030.0

    class Correcting(FakeGrid):
        def get_nodes(self):
            if self.now >= 1_060.0 and wrong.config["name"] == "1":
                wrong.started, wrong.config["name"] = self.now, corrected
            return super().get_nodes()

    deploy(Correcting(grid.nodes), FedAvg(), rounds=40, timeout=60.0, ledger=url)
    rounds = rounds_of("1", url)
    assert rounds[-1] == 39
    assert len(rounds) >= 36
    assert bool(rounds_of("0", url)) == (corrected == "0")


@pytest.mark.parametrize("corrected", ["0", "\x1b[31m"], ids=["another name", "no name"])
@pytest.mark.parametrize("seconds", [5.0, 40.0])
def test_no_update_of_a_renamed_node_counts_for_the_client_that_it_was(corrected, seconds, url):
    """Neither one that arrives with the name nor one that comes later."""
    grid = federation(seconds=lambda number: seconds)
    wrong, right = node_of(grid, 0), node_of(grid, 1)
    wrong.config["name"] = "1"
    right.online = lambda now: False
    trained = {}

    class Correcting(FakeGrid):
        def get_nodes(self):
            if self.now >= 1_100.0 and wrong.config["name"] == "1":
                wrong.started, wrong.config["name"] = self.now, corrected
                wrong.free_at = self.now
            return super().get_nodes()

        def _push(self, message):
            if message.metadata.dst_node_id == id_of(self, 0):
                trained[int(message.metadata.group_id) - 1] = wrong.config["name"]
            return super()._push(message)

    deploy(Correcting(grid.nodes), FedAvg(), rounds=60 if seconds < 10 else 8, ledger=url)
    used = rounds_of("1", url)
    assert used
    assert all(trained[t] == "1" for t in used)


@pytest.mark.parametrize("started", [(5.0, 7.0), (7.0, 5.0)])
def test_of_two_keys_with_one_name_the_one_online_first_is_the_client_until_it_goes(
    started, url, caplog
):
    """Flower registers any number of keys under one name."""
    grid = federation(seconds=lambda number: 5.0)
    first, second = sorted(grid.nodes)[:2]
    if started[0] > started[1]:
        first, second = second, first
    one, other = grid.nodes[first], grid.nodes[second]
    one.started, other.started = sorted(started)
    one.name = other.name = "site-a"
    began = grid.now
    one.online = lambda now: now < began + 102
    deploy(grid, FedAvg(), rounds=40, clients=5, ledger=url)
    trained = [m for m in grid.sent if m.metadata.dst_node_id in (first, second)]
    assert all(m.metadata.message_type == "train" for m in trained)
    assert [m.metadata.dst_node_id for m in trained] == [first] * 21 + [second] * 19
    assert read_ledger(url).filter(client="site-a")["round"].to_list() == list(range(40))
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text for text in warnings if "longer as 'site-a'" in text] == [
        f"node {second} does not take part: node {first} has been online longer as 'site-a'; "
        "give each key its own name"
    ]


@pytest.mark.parametrize("first_hangs", [False, True])
def test_one_site_is_asked_whether_an_ordinary_app_knows_its_name(first_hangs, url):
    """Flower logs a traceback at every site that is asked in vain; others ask after 20 s."""
    grid = federation(seconds=lambda number: 5.0)
    app = ClientApp()

    @app.train()
    def train(message, context):
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    for node_id, node in grid.nodes.items():
        node.app, node.started = app, float(node_id)
    first = grid.nodes[min(grid.nodes)]
    if first_hangs:
        first.seconds = lambda number: math.inf
    deploy(grid, FedAvg(), rounds=3, clients=N, ledger=url)
    asked = [node_id for node_id in grid.nodes if questions(grid, node_id)]
    used = read_ledger(url).filter(stage="used")
    assert len(used) == 3 * (N - first_hangs)
    assert set(used["client"]) <= {f"node-{node_id}" for node_id in grid.nodes}
    assert asked == [*grid.nodes] if first_hangs else asked == [min(grid.nodes)]
