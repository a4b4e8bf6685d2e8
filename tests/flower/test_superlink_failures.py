"""Replies and requests at which Flower's SuperLink fails: they cost one client its update."""

from collections import Counter
from types import SimpleNamespace

import httpx
import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower._flwr import OBJECT_BYTES
from fedtide.flower.arrays import initial_arrays
from fedtide.flower.clients.app import client
from fedtide.flower.ledger.ledger import read_ledger, read_rounds
from fedtide.flower.protocol import NAME_QUERY
from fedtide.flower.server.strategy import FedTide

from .driver import N, deploy, federation, node_of, rows
from .fake_grid import FakeGrid, Node, WireGrid

A = ft.algorithms
BAD = 1


def failure(status: int = 500) -> httpx.HTTPStatusError:
    """Return what Flower's grid raises if the SuperLink answers with this status."""
    request = httpx.Request("POST", "https://127.0.0.1:8000/v1/runtime")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


def bad_id(grid: FakeGrid) -> int:
    return next(one for one, node in grid.nodes.items() if node.config["partition-id"] == BAD)


class FailingPull(WireGrid):
    """Fails, as the SuperLink does, at every pull that would deliver a reply of the bad node."""

    kind, status = "train", 500

    def PullMessages(self, request):
        for one in request.message_ids:
            due, reply = self.pending.get(one, (float("inf"), None))
            of_bad = reply is not None and reply.metadata.src_node_id == bad_id(self)
            if due <= self.now and of_bad and reply.metadata.message_type == self.kind:
                raise failure(self.status)
        return super().PullMessages(request)


class FailingPush(FakeGrid):
    """Fails at every call with a request of this kind, before it has taken any."""

    kind = "train"

    def push_messages(self, messages):
        if any(message.metadata.message_type == self.kind for message in messages):
            raise failure()
        return super().push_messages(messages)


def used(url: str) -> dict[int, set[str]]:
    """Return by round the clients whose updates were used."""
    found: dict[int, set[str]] = {}
    for t, name, stage, _ in rows(url):
        if stage == "used":
            found.setdefault(t, set()).add(name)
    return found


HONEST = {str(n) for n in range(N)} - {str(BAD)}


@pytest.mark.parametrize("seconds", [0.1, 20.0])
def test_a_reply_at_which_the_superlink_fails_is_left_out(seconds, url):
    """One with NaN as its time to live made every pull fail, and ended the run."""
    grid = FailingPull(federation(seconds=lambda number: 1.0).nodes, lambda reply, objects: None)
    node_of(grid, BAD).seconds = lambda number: seconds if number else 0.1
    deploy(grid, A.FedAvg(), rounds=4, ledger=url)
    assert used(url) == dict.fromkeys(range(4), HONEST)
    reasons = read_ledger(url).filter(client=str(BAD))["reason"].to_list()
    assert reasons == ["no reply"]


def test_replies_are_kept_while_the_superlink_fails_at_every_pull(url, caplog):
    """As while its database is locked; it has not delivered them then."""

    class Failing(FailingPull):
        def PullMessages(self, request):
            calls.append(self.now)
            if 1_010.0 < self.now < 1_040.0:
                raise failure()
            return super().PullMessages(request)

    calls = []
    grid = Failing(federation(seconds=lambda number: 7.0).nodes, lambda reply, objects: None)
    deploy(grid, A.FedAvg(), rounds=2, ledger=url)
    assert used(url) == dict.fromkeys(range(2), HONEST)
    for text in ("Replies cannot be received, as the SuperLink fails: no", "received again"):
        assert caplog.text.count(text) == 1
    during = Counter(moment for moment in calls if 1_010.0 < moment < 1_040.0)
    assert max(during.values()) <= 4  # two calls at a look for replies, whatever the number of them


def test_a_pull_that_is_too_large_is_divided(url):
    class Limited(WireGrid):
        def PullMessages(self, request):
            if len(request.message_ids) > 2:
                raise failure(413)
            return super().PullMessages(request)

    grid = Limited(federation().nodes, lambda reply, objects: None)
    deploy(grid, A.FedAvg(), rounds=2, ledger=url)
    assert used(url) == {t: HONEST | {str(BAD)} for t in range(2)}


def test_a_superlink_that_fails_until_the_deadline_ends_the_run(url, tmp_path):
    """Else all rounds would be over in a moment, without anyone."""
    options = {"timeout": 60.0, "ledger": url, "state": tmp_path / "state"}
    grid = FailingPush(federation().nodes)
    with pytest.raises(InvalidInputError, match="grid: the SuperLink fails at every request"):
        deploy(grid, A.FedAvg(), rounds=100, **options)
    assert 1_060.0 <= grid.now < 1_075.0
    assert read_rounds(url).is_empty()
    deploy(federation(), A.FedAvg(), rounds=2, **options)
    assert used(url) == {t: HONEST | {str(BAD)} for t in range(2)}


def test_evaluations_that_cannot_be_sent_end_no_training(url):
    grid = FailingPush(federation().nodes)
    grid.kind = "evaluate"
    deploy(grid, A.FedAvg(), rounds=2, ledger=url, fraction_evaluate=1.0)
    assert used(url) == {t: HONEST | {str(BAD)} for t in range(2)}


class FailingList(FakeGrid):
    """Fails to list its nodes for a time, as the SuperLink does if its database is locked."""

    since, until, status = 0.0, 0.0, 500

    def get_nodes(self):
        if self.since <= self.now < self.until:
            raise failure(self.status)
        return super().get_nodes()


def failing_list(since: float, until: float, seconds: float = 1.0) -> FailingList:
    grid = FailingList(federation(seconds=lambda number: seconds).nodes)
    grid.since, grid.until = since, until
    return grid


def test_the_nodes_are_those_of_the_last_check_while_the_superlink_cannot_list_them(url, caplog):
    grid = failing_list(1_095.0, 1_150.0, seconds=45.0)
    deploy(grid, A.FedAvg(), rounds=4, timeout=600.0, ledger=url)
    assert used(url) == {t: HONEST | {str(BAD)} for t in range(4)}
    assert caplog.text.count("Nodes cannot be listed, as the SuperLink fails: no") == 1
    assert caplog.text.count("Nodes can be listed again") == 1


def test_a_reply_of_very_many_objects_is_not_fetched(url, caplog):
    """Each takes a call, so that very many hold up the server beyond the deadline."""
    own = set()

    def corrupt(reply, objects):
        if reply.metadata.message_type == "train" and reply.metadata.src_node_id == bad_id(grid):
            own.update(objects)

    def add_records(reply):
        if reply.metadata.message_type == "train":
            for i in range(int(16e6 / OBJECT_BYTES) + 100):
                reply.content[f"junk-{i}"] = ConfigRecord({"i": i})
        return reply

    grid = WireGrid(federation().nodes, corrupt)
    node_of(grid, BAD).tamper = add_records
    deploy(grid, A.FedAvg(), rounds=1, ledger=url)
    assert used(url) == {0: HONEST}
    assert not own & set(grid.fetched)
    assert "cannot be read: it has 16," in caplog.text


def records_of(kind: str, found: dict, *types: type) -> set[str]:
    """Return the ids of all records of these types in the messages of a kind."""
    return {
        one
        for message in found[kind]
        for one, part in get_all_nested_objects(message).items()
        if isinstance(part, types)
    }


def run_and_collect(**options) -> SimpleNamespace:
    """Return all messages of a federation whose clients train, decline and evaluate."""
    features, targets = torch.eye(4), torch.arange(4)
    app = client(
        lambda: torch.nn.Linear(4, 4),
        lambda context: (features, targets),
        ft.LocalTraining(steps=2, lr=0.1),
        available=lambda t, context: t == 0 or (t + context.node_id) % 2 == 0,
    )
    sent, replies = {}, {}

    class Collecting(FakeGrid):
        def push_messages(self, messages):
            for message in messages:
                sent.setdefault(message.metadata.message_type, []).append(message)
            return super().push_messages(messages)

        def pull_messages(self, ids):
            for reply in (found := super().pull_messages(ids)):
                replies.setdefault(reply.metadata.message_type, []).append(reply)
            return found

    torch.manual_seed(0)
    start = initial_arrays(torch.nn.Linear(4, 4))
    grid = Collecting({n: Node(app, {"partition-id": n}) for n in (1, 2)})
    grid.run_id = 1
    options |= {"clients": 2, "clock": grid.clock, "fraction_evaluate": 1.0}
    strategy = FedTide(A.Scaffold(), **options)
    strategy.start(grid, start, 3, 60.0)
    return SimpleNamespace(sent=sent, replies=replies)


def test_no_client_can_foresee_a_record_of_another_message():
    """Who registers it before, in another form, has the SuperLink refuse the message.

    Of replies, arrays are left out: what a client has trained, only it knows. Its loss others may
    know, too, if all evaluate on the same samples.
    """
    first, second = run_and_collect(), run_and_collect()
    for kind in (NAME_QUERY, "train", "evaluate"):
        everything = records_of(kind, first.sent, object)
        assert everything
        assert not everything & records_of(kind, second.sent, object)
        found = records_of(kind, first.replies, ConfigRecord, MetricRecord)
        assert found
        assert not found & records_of(kind, second.replies, ConfigRecord, MetricRecord)
