"""What the server holds of large models beside the replies of a round."""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedtide as ft
from fedtide.flower.arrays import arrays_to_vector, params_to_arrays, vector_to_arrays
from fedtide.flower.server.node_registry import NodeRegistry
from fedtide.flower.server.session import TrainingSession
from fedtide.flower.server.strategy import FedTide
from fedtide.flower.server.validated_updates import ValidatedUpdate
from fedtide.problems.layout import Layout

from .driver import N, deploy, federation, node_of
from .fake_grid import FakeGrid, Node

A = ft.algorithms
SIZE = 2_100_000  # numbers; updates of more than 8 MB are not stacked
LAYOUT = Layout.from_params({"x": torch.zeros(SIZE)})


def peak(call: Callable[[], object]) -> int:
    """Return how many bytes of memory the process has taken in addition during a call, at most."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        pytest.skip("needs the peak memory of a process, as on Linux")
    ctypes.CDLL(None).mallopt(-3, 1_000_000)  # M_MMAP_THRESHOLD: freed blocks are returned
    holes = [torch.empty(SIZE - 1024) for _ in range(32)]  # of the heap: the call gets new memory
    reset.write_text("5", encoding="ascii")  # forget the former peak

    def read(name: str) -> int:
        [line] = [one for one in status.read_text("ascii").splitlines() if one.startswith(name)]
        return 1024 * int(line.split()[1])

    before = read("VmRSS")
    call()
    taken = read("VmHWM") - before
    del holes
    return taken


def update(client: int) -> ValidatedUpdate:
    return ValidatedUpdate(client, 1, torch.full((SIZE,), 1.0 + client), 1, 0.0, 0)


@pytest.mark.parametrize(
    ("method", "models"),
    [
        (A.FedAvg(), 1),  # beside x: the sum, which becomes the next model
        (A.FedAU(cutoff=3), 1),
        (A.KnownRates(rates=[0.5] * N), 1),
        # beside x, memory and sum: the replaced rows, the step and the next model, and in float64
        # the sum of changes and the next sum
        (A.MIFA(), N + 6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, A.Algorithm) else "",
)
def test_a_round_of_averaging_needs_one_model_beside_the_present_one_and_the_replies(
    method, models
):
    session = TrainingSession(method, NodeRegistry.from_clients(N), LAYOUT, torch.zeros(SIZE))
    session.end_round([update(client) for client in range(N)])
    updates = [update(client) for client in range(N)]
    taken = min(peak(lambda: session.end_round(updates)) for _ in range(2))
    assert taken < (models + 0.3) * 4 * SIZE


@pytest.mark.parametrize("origin", [None, torch.ones(SIZE)])
def test_a_model_is_read_into_one_of_its_size(origin):
    arrays = ArrayRecord({"x": Array(np.full(SIZE, 3.0, dtype=np.float32))})
    like = torch.ones(SIZE)
    assert peak(lambda: arrays_to_vector(arrays, LAYOUT, like, origin)) < 1.3 * 4 * SIZE
    found = arrays_to_vector(arrays, LAYOUT, like, origin)
    assert (found == (3 if origin is None else 2)).all()


def test_a_model_is_written_into_one_of_its_size():
    x = torch.ones(SIZE)
    assert peak(lambda: vector_to_arrays(x, LAYOUT)) < 1.3 * 4 * SIZE


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (4, 1, 2)], ids=str)
def test_arrays_are_written_as_flower_writes_them(shape, dtype):
    values = np.arange(math.prod(shape), dtype=dtype).reshape(shape)
    for layout in (values, values.T):
        found = params_to_arrays({"x": torch.from_numpy(layout)})["x"]
        assert found == Array(np.ascontiguousarray(layout).reshape(layout.shape))
        assert (found.numpy() == layout).all()


@pytest.mark.parametrize("method", [A.FedAvg(), A.FedAU(cutoff=3)], ids=["FedAvg", "FedAU"])
def test_a_federation_needs_one_model_beside_the_present_one_and_the_updates(method):
    update = ArrayRecord({"x": Array(np.ones(SIZE, dtype=np.float32))})

    def answer(message, context):
        grid.sent.clear()
        if message.metadata.message_type != "train":
            name = {"name": str(context.node_config["number"])}
            return Message(RecordDict({"config": ConfigRecord(name)}), reply_to=message)
        records = {"update": update, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(records), reply_to=message)

    clients = 3
    grid = FakeGrid({n: Node(answer, {"number": n}) for n in range(2, clients + 2)})

    def train(rounds):
        strategy = FedTide(method, clients=clients, clock=grid.clock)
        strategy.start(grid, update, rounds)
        assert (strategy.training.model == 1 + rounds).all()

    train(1)  # libraries take memory when they are first used
    taken = min(peak(lambda: train(2)) for _ in range(2))
    assert taken < (1 + clients + 1 + 0.3) * 4 * SIZE


@pytest.mark.parametrize("method", [A.FedAvg(), A.MIFA()], ids=["unused", "used"])
def test_models_of_ended_rounds_are_kept_only_where_late_updates_are_used(method):
    grid = federation()
    node_of(grid, 0).seconds = lambda number: (
        1e4 * number
    )  # it tells its name, and then owes a reply
    strategy = deploy(grid, method, rounds=4, timeout=5.0)
    kept = [0] if method.traits.accepts_stale_updates else []
    assert strategy._transport.rounds == {0}
    assert list(strategy._sent_models) == kept
