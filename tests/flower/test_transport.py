"""Late, lost and undecodable replies: each survived, with the model and the ledger right."""

import json
import math
import time
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.app.message.arraychunk import ArrayChunk

import fedtide as ft
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.clients.app import custom_client
from fedtide.flower.ledger.ledger import read_ledger
from fedtide.flower.protocol import NAME_QUERY
from fedtide.flower.server.strategy import FedTide

from .driver import (
    LOCAL,
    TASK,
    N,
    deploy,
    federation,
    model,
    node_of,
    rows,
    train_like_the_simulator,
    update_of,
)
from .fake_grid import WireGrid

A = ft.algorithms


@pytest.mark.parametrize("algorithm", [A.MIFA(), A.FedAvg(), A.FedVARP()], ids=repr)
def test_a_slow_client_is_never_starved_and_counts_as_its_method_says(algorithm, url):
    grid = federation(seconds=lambda number: 20.0)
    slow = node_of(grid, 3)
    slow.seconds = lambda number: 0.1 if number == 0 else 70.0  # it tells its name at once
    strategy = deploy(grid, algorithm, rounds=12, timeout=30.0, ledger=url)

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


def send_a_false_count(reply):
    if reply.has_content() and "metrics" in reply.content:
        reply.content["metrics"]["num-examples"] = -5
    return reply


@pytest.mark.parametrize("how", ["false count", "error", "declined"])
def test_only_updates_that_can_be_used_end_a_round(how, url):
    """Two clients that answered at once with anything ended every round before any update."""
    grid = federation(seconds=lambda number: 5.0)
    train = train_like_the_simulator(TASK, LOCAL, seed=0)
    for client in (0, 1):
        node = node_of(grid, client)
        node.seconds = lambda number: 0.1
        if how == "false count":
            node.tamper = send_a_false_count
        elif how == "error":
            node.app = custom_client(lambda context: 1 / 0)
        else:
            node.app = custom_client(train, available=lambda t, client: False)
    deploy(grid, A.FedAvg(), rounds=3, close_after=2, ledger=url)
    used = [client for _, client, stage, _ in rows(url) if stage == "used"]
    assert len(used) >= 6
    assert not {"0", "1"} & set(used)


def repeat_chunks(objects, times, size):
    """Let each array of a reply name one chunk of so many bytes again and again."""
    for one, content in list(objects.items()):
        if content.startswith(b"ArrayChunk "):
            objects[one] = ArrayChunk(memoryview(bytes(size))).deflate()
        elif content.startswith(b"Array "):
            head, _, body = content.partition(b"\x00")
            text = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * times}).encode()
            kind, children, _ = head.split(b" ")
            objects[one] = b" ".join([kind, children, str(len(text)).encode()]) + b"\x00" + text


@pytest.mark.parametrize("bomb", ["chunks", "numbers"])
@pytest.mark.parametrize("kind", ["train", NAME_QUERY])
def test_a_reply_that_is_too_large_only_when_it_is_decoded_is_not_decoded(kind, bomb, url, caplog):
    """A few megabytes that name one chunk hundreds of times would fill the server's memory."""

    def add_a_record(reply):
        if reply.metadata.message_type == kind:
            record = ConfigRecord({"x": [True] * (4_000_000 if bomb == "numbers" else 1)})
            reply.content["junk"] = ArrayRecord({"x": Array(np.zeros(10))})
            reply.content["numbers"] = record
        return reply

    def corrupt(message, objects):
        from_bad = message.metadata.src_node_id == bad_id
        if bomb == "chunks" and message.metadata.message_type == kind and from_bad:
            repeat_chunks(objects, 100, 1_000_000)

    grid = federation()
    bad = node_of(grid, 1)
    bad.tamper = add_a_record
    [bad_id] = [one for one, node in grid.nodes.items() if node is bad]
    grid = WireGrid(grid.nodes, corrupt)
    tracemalloc.start()
    try:
        deploy(grid, A.FedAvg(), rounds=1, ledger=url)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "cannot be read: it is larger than 16 MB" in caplog.text
    used = [client for _, client, stage, _ in rows(url) if stage == "used"]
    assert used == ["0", "2", "3", "4"]
    assert bomb == "numbers" or taken < 50e6


def garbage(message, objects):
    """The head is kept, for the SuperLink checks it; the body is not a message."""
    head, zero, body = objects[message.object_id].partition(b"\x00")
    objects[message.object_id] = head + zero + b"\xff" * len(body)


def record_instead_of_a_message(message, objects):
    objects[message.object_id] = next(iter(objects.values()))


def missing_children(message, objects):
    name, _, length = objects[message.object_id].partition(b"\x00")[0].split(b" ")
    body = objects[message.object_id].partition(b"\x00")[2]
    objects[message.object_id] = b" ".join([name, b"", length]) + b"\x00" + body


def unknown_array_type(message, objects):
    for one, content in objects.items():
        objects[one] = content.replace(b"numpy.ndarray", b"numpy.pickled")


def answers_for_another_client(message, objects):
    """The body claims to be the reply of another node to that node's request."""
    declared, fields = message.object_id, message.metadata.__dict__
    sender, fields["_src_node_id"] = fields["_src_node_id"], VICTIM
    objects[declared] = message.deflate()
    fields["_src_node_id"] = sender


VICTIM = 100
CORRUPTIONS = [
    garbage,
    record_instead_of_a_message,
    missing_children,
    unknown_array_type,
    answers_for_another_client,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda f: f.__name__)
def test_a_malformed_reply_costs_only_its_sender_though_pulled_replies_are_deleted(corrupt, url):
    nodes = federation().nodes
    (bad,) = [node_id for node_id, node in nodes.items() if node.config["partition-id"] == 1]
    assert bad != VICTIM

    def corrupt_training(message, objects):
        if message.metadata.message_type == "train" and message.metadata.src_node_id == bad:
            corrupt(message, objects)

    grid = WireGrid(nodes, corrupt_training)
    strategy = deploy(grid, A.FedAvg(), rounds=3, timeout=30.0, ledger=url)
    stages = {(t, client): stage for t, client, stage, _ in rows(url)}
    assert stages == {
        (t, str(n)): "reported" if n == 1 else "used" for t in range(3) for n in range(N)
    }
    x = TASK.start.numpy()
    for _ in range(3):
        x = x + np.mean([update_of(n, x) for n in (0, 2, 3, 4)], axis=0)
    np.testing.assert_allclose(model(strategy), x, rtol=1e-12)
    assert grid.now < 1_030.0  # no round waited for its deadline


@pytest.mark.parametrize("seconds", [25.0, math.inf])
@pytest.mark.parametrize("algorithm", [A.FedAvg(), A.MIFA()], ids=repr)
def test_a_withheld_upload_delays_no_round_beyond_its_deadline(algorithm, seconds, url):
    """Client 1 announces its reply of round 1 and completes it 25 s later, or never."""
    nodes = federation(seconds=lambda number: 7.0).nodes
    (slow,) = [node_id for node_id, node in nodes.items() if node.config["partition-id"] == 1]
    held = []

    def withhold(message, objects):
        trains = message.metadata.message_type == "train" and message.metadata.src_node_id == slow
        if trains and message.metadata.group_id == "2":
            held.append(message.object_id)
            largest = max(objects, key=lambda one: len(objects[one]))
            grid.withheld[largest] = grid.now + seconds

    grid = WireGrid(nodes, withhold)
    began, ended = time.monotonic(), []
    strategy = FedTide(algorithm, clients=[str(n) for n in range(N)], clock=grid.clock, ledger=url)
    start = vector_to_arrays(TASK.start, TASK.layout)
    strategy.start(grid, start, 35, 10.0, evaluate_fn=lambda t, arrays: ended.append(grid.now))
    assert time.monotonic() - began < 60.0  # nor does it wait by another clock
    assert max(np.diff(ended)[1:]) < 10.5  # the first round asks for names as well
    used = {(t, client): asked for t, client, stage, asked in rows(url) if stage == "used"}
    assert all((t, "0") in used for t in range(35))
    # Flower gives up an upload after 180 s, and the client is asked again.
    freed = math.ceil(min(seconds, 180.0) / 7.0) + 3
    assert all((t, "1") in used for t in range(freed, 35))
    assert not any((t, "1") in used for t in range(1, int(min(seconds, 180.0) / 10.5)))
    late = [asked for (_, client), asked in used.items() if client == "1" and asked is not None]
    assert late == ([1] if math.isfinite(seconds) and isinstance(algorithm, A.MIFA) else [])
    assert grid.fetched.count(held[0]) == 1  # what has arrived is not fetched again


def test_a_reply_that_cannot_be_decoded_forges_no_lines_of_the_log(caplog):
    """Flower's error quotes what the client wrote in place of the type of a record."""

    def corrupt(message, objects):
        if message.metadata.message_type == "train" and message.metadata.src_node_id == 101:
            head, zero, body = objects[message.object_id].partition(b"\x00")
            _, children, length = head.split(b" ")
            forged = b"\x1b[2J\x1b[31mfine\r" + b"x" * 1000
            objects[message.object_id] = b" ".join([forged, children, length]) + zero + body

    with caplog.at_level("WARNING", "flwr"):
        deploy(WireGrid(federation().nodes, corrupt), A.FedAvg(), rounds=1)
    (quoted,) = [text for text in caplog.messages if "cannot be read" in text]
    assert quoted.isprintable()
    assert "fine" in quoted
    assert len(quoted) < 600


def test_late_replies_that_are_dropped_are_counted_in_the_log(url, caplog):
    grid = federation()
    node_of(grid, 2).seconds = lambda number: 60.05 if number == 1 else 0.1  # timeout: 60
    node_of(grid, 4).seconds = lambda number: 60.05 if number == 1 else 0.1
    deploy(grid, A.FedAvg(), rounds=3, ledger=url)
    late = [r.getMessage() for r in caplog.records if "rounds have ended" in r.getMessage()]
    assert late == ["Replies not used, as their rounds have ended: 2"]
    assert len(read_ledger(url).filter(stage="used")) == 3 * N - 4
