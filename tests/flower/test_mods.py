"""Flower's client-side mods do what they promise with fedtide's clients, or are refused by name."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)

import fedtide as ft
from fedtide.flower import ClientSideMemory

from .driver import TASK, N, deploy, federation, model, node_of, rows, scripted, update_of
from .fake_grid import WireGrid

A = ft.algorithms
NORM = 1.0
CONFIG = ConfigRecord({"clipping_norm": NORM})
DP = LocalDpMod(clipping_norm=NORM, sensitivity=0.02, epsilon=3.0, delta=1e-3)
STD = 0.02 * np.sqrt(2 * np.log(1.25 / 1e-3)) / 3.0
CHANGING = [fixedclipping_mod, adaptiveclipping_mod, DP]
SIZES = [message_size_mod, arrays_size_mod]
AVERAGING = [A.FedAU(cutoff=3), A.MIFA(), A.FedLaAvg(), A.Amplified(2, 1.2, A.FedProx(mu=0.3))]
DERIVING = {
    A.Scaffold(): "derives gradients",
    A.Scaffold(option=1): "needs gradients",
    A.WaitForAll(period=2, mode="gradient"): "derives gradients",
    ClientSideMemory(A.MIFA()): "has clients remember",
    ClientSideMemory(A.FedAU(cutoff=3)): "has clients remember",
}


def clip(delta: np.ndarray) -> np.ndarray:
    return delta * min(1.0, NORM / np.linalg.norm(delta))


def by_hand(rounds: int, change, x: np.ndarray | None = None) -> np.ndarray:
    """Return FedAvg's model if each client's update is changed before it is sent."""
    x = TASK.start.numpy() if x is None else x
    for _ in range(rounds):
        x = x + np.mean([change(update_of(n, x)) for n in range(N)], axis=0)
    return x


@pytest.mark.parametrize("method", AVERAGING, ids=repr)
def test_a_clipped_update_counts_as_if_the_client_had_clipped_it_itself(method):
    """The method gets the same updates either way, in rounds with and without each client."""
    present = scripted(6, N)

    def clip_update(message, context, call_next):
        reply = call_next(message, context)
        if "arrays" in reply.content:
            x = message.content["arrays"]["x"].numpy()
            y = x + clip(reply.content["arrays"]["x"].numpy() - x)
            reply.content["arrays"] = ArrayRecord({"x": Array(y)})
        return reply

    grids = [federation(present=present, mods=[mod]) for mod in (fixedclipping_mod, clip_update)]
    first, second = (deploy(grid, method, 6, train_config=CONFIG) for grid in grids)
    np.testing.assert_allclose(model(first), model(second), rtol=1e-12)
    assert not first._transport.pending  # declining passes the mods, too


def seed(monkeypatch) -> Callable[[float, float, int], np.ndarray]:
    """Seed the draws of Flower's mods, and return a function that draws the same again."""
    monkeypatch.setattr(np.random, "normal", np.random.default_rng(3).normal)
    return np.random.default_rng(3).normal


@pytest.mark.parametrize("method", DERIVING, ids=repr)
def test_methods_that_cannot_work_with_a_mod_refuse_it(method, url, tmp_path):
    grid = federation(memory=tmp_path, mods=SIZES)
    for n, mod in enumerate(CHANGING):
        app = node_of(federation(memory=tmp_path, mods=[*SIZES, mod]), n).app
        node_of(grid, n).app = app
    strategy = deploy(grid, method, rounds=2, ledger=url, train_config=CONFIG)
    assert not strategy._transport.pending
    stages = {(client, stage) for t, client, stage, _ in rows(url) if t == 0}
    assert stages == {(c, "selected") for c in "012"} | {(c, "used") for c in "34"}


def halve_arrays(message, context, call_next):
    """A mod of a user's own, which puts new arrays into the record."""
    reply = call_next(message, context)
    for record in reply.content.values():
        if isinstance(record, ArrayRecord):
            for name, array in list(record.items()):
                record[name] = Array(array.numpy() / 2)
    return reply


@pytest.mark.parametrize("method", DERIVING, ids=repr)
def test_an_own_mod_is_refused_where_it_changes_what_updates_are_needed_for(
    method, url, tmp_path, caplog
):
    seen = []

    def note(message, context, call_next):
        seen.append(message)
        return call_next(message, context)

    grid = federation(memory=tmp_path, mods=[note])
    node_of(grid, 0).app = federation(memory=tmp_path, mods=[note, halve_arrays]).nodes[100].app
    deploy(grid, method, rounds=2, ledger=url)
    stages = {(client, stage) for _, client, stage, _ in rows(url)}
    assert stages == {("0", "selected")} | {(c, "used") for c in "1234"}
    lines = [r.getMessage() for r in caplog.records if "reply of 0 not used" in r.getMessage()]
    assert len(lines) == 2
    text = (
        f"one of note, halve_arrays changed the update, and the server's method {DERIVING[method]}"
    )
    assert all(text in line for line in lines)
    assert len(seen) == 2 * N


def test_what_mods_return_travels_through_flowers_own_messages(monkeypatch):
    mods = [message_size_mod, arrays_size_mod, DP, fixedclipping_mod, adaptiveclipping_mod]
    grid = WireGrid(federation(mods=mods).nodes, corrupt=lambda reply, objects: None)
    draw = seed(monkeypatch)
    strategy = deploy(grid, A.FedAvg(), rounds=3, train_config=CONFIG)
    wanted = by_hand(3, lambda delta: clip(delta) + draw(0, STD, 3))
    np.testing.assert_allclose(model(strategy), wanted, rtol=1e-12)
