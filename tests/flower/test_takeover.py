"""Clients whose place another node takes, and what a stranger in their place leaves behind."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp

import fedtide as ft
from fedtide.flower import ClientSideMemory, FedTide, Update, custom_client

from .driver import deploy, federation, rows
from .fake_grid import FakeGrid, Node

A = ft.algorithms
OLD, NEW = 101, 103


def constant(value: float, memory=None, steps: int = 1) -> ClientApp:
    """Return an app whose update is `value` in every entry."""

    def train(model, request):
        update = {name: torch.full_like(x, value) for name, x in model.items()}
        return Update(update, samples=1, lr=0.1, steps=steps)

    folder = None if memory is None else lambda context: memory
    return custom_client(lambda context: train, memory=folder)


@pytest.mark.parametrize("method", [A.MIFA(), ClientSideMemory(A.MIFA())], ids=repr)
def test_a_late_reply_of_the_former_node_replaces_no_newer_update(method, tmp_path, url):
    """MIFA steps by the mean of the latest updates: 2 of site-b, and of site-a 100, then 4."""
    old = Node(
        constant(100.0, tmp_path / "a"),
        {"name": "site-a"},
        seconds=lambda number: 100.0 if number == 3 else 0.1,  # 0 is the question for its name
        online=lambda now: now < 1130,
    )
    new = Node(
        constant(4.0, tmp_path / "a"),
        {"name": "site-a"},
        online=lambda now: 1040 <= now < 1080 or now > 1135,
        started=1040.0,
    )
    other = Node(constant(2.0, tmp_path / "b"), {"name": "site-b"}, seconds=lambda number: 10.0)
    grid = FakeGrid({OLD: old, 102: other, NEW: new})
    strategy = FedTide(method, clients=["site-a", "site-b"], ledger=url, clock=grid.clock)
    models = []
    strategy.start(
        grid,
        ArrayRecord({"x": Array(np.zeros(1))}),
        16,
        20.0,
        evaluate_fn=lambda t, arrays: models.append(arrays["x"].numpy()[0]),
    )
    steps = np.diff(models).tolist()
    assert steps == [51.0] * 3 + [3.0] * 13
    used = [row for row in rows(url) if row[1:3] == ("site-a", "used")]
    assert {asked for *_, asked in used} == {None}
    assert used[-1][0] == 15  # it is not locked out


def test_an_update_that_is_no_newer_than_the_last_one_is_late(url, tmp_path):
    strategy = deploy(federation(), A.MIFA(), 1, ledger=url, state=tmp_path)
    strategy.training.accepted_rounds[2] = 1
    strategy.training.save()
    deploy(federation(), A.MIFA(), 2, ledger=url, state=tmp_path)
    late = [(t, name) for t, name, stage, _ in rows(url) if stage == "reported"]
    assert late == [(1, "2")]
