"""What the server holds of large models beside the replies of a round."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedtide as ft
from fedtide.flower.server.strategy import FedTide

from .fake_grid import FakeGrid, Node

A = ft.algorithms
SIZE = 2_100_000  # numbers; updates of more than 8 MB are not stacked


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
