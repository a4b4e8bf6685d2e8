"""A server killed anywhere and submitted again; what a saved state and a ledger must agree on."""

from functools import cache

import numpy as np
import polars as pl
import pytest
import torch

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import Ledger, read_ledger, read_rounds
from fedtide.flower.server.session import TrainingSession
from fedtide.flower.server.transport import Transport
from fedtide.locking import lock_folder

from .driver import (
    Killed,
    N,
    deploy,
    federation,
    kill_in_call,
    model,
    node_of,
    prepare,
    quadratic,
    scripted,
)

A = ft.algorithms


METHODS = {
    "amplified": A.Amplified(period=3, factor=1.5, inner=A.FedAU(cutoff=2)),
    "amplified-scaffold": A.AmplifiedScaffold(3, 1.2),
}
PRESENT = scripted(8, N)


@cache
def uninterrupted(method: str) -> np.ndarray:
    return model(deploy(federation(present=PRESENT), METHODS[method], rounds=8))


@pytest.mark.parametrize(
    ("owner", "name", "number", "after"),
    [
        (Transport, "send", 3, True),
        (Transport, "collect", 4, False),
        (TrainingSession, "end_round", 3, True),
        (TrainingSession, "save", 3, False),
        (TrainingSession, "save", 3, True),
        (Ledger, "commit", 3, False),
        (Ledger, "commit", 3, True),
        (Ledger, "commit", 1, False),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_anywhere_and_submitted_again_ends_the_same(
    method, owner, name, number, after, tmp_path, url, monkeypatch
):
    options = {"rounds": 8, "state": tmp_path / "state", "ledger": url}
    with monkeypatch.context() as patch:
        kill_in_call(patch, owner, name, number, after)
        with pytest.raises(Killed):
            deploy(federation(present=PRESENT), METHODS[method], **options)
    again = deploy(federation(present=PRESENT), METHODS[method], **options)
    np.testing.assert_array_equal(model(again), uninterrupted(method))
    assert read_rounds(url)["round"].to_list() == list(range(8))
    used = read_ledger(url).filter(pl.col("stage") == "used")
    assert used.select("round", "client").rows() == [
        (t, str(n)) for t in range(8) for n in range(N) if PRESENT[t, n]
    ]


def test_a_finished_run_submitted_again_does_nothing_and_more_rounds_go_on(tmp_path, url):
    options = {"state": tmp_path / "state", "ledger": url}
    first = deploy(federation(present=PRESENT), A.MIFA(), rounds=5, **options)
    idle = federation(present=PRESENT)
    second = deploy(idle, A.MIFA(), rounds=5, **options)
    np.testing.assert_array_equal(model(first), model(second))
    assert idle.sent == []
    third = deploy(federation(present=PRESENT), A.MIFA(), rounds=8, **options)
    whole = deploy(federation(present=PRESENT), A.MIFA(), rounds=8)
    np.testing.assert_array_equal(model(third), model(whole))


def test_the_order_of_replies_changes_nothing():
    torch.manual_seed(0)
    models = []
    for order in ([0.1] * N, [0.5, 0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.1, 0.5]):
        grid = federation()
        for client in range(N):
            node_of(grid, client).seconds = lambda number, s=order[client]: s
        models.append(model(deploy(grid, A.FedAU(), rounds=5)))
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], models[2])


def test_a_state_of_another_federation_is_refused(tmp_path):
    options = {"rounds": 2, "state": tmp_path / "state"}
    deploy(federation(), A.FedAvg(), **options)
    with pytest.raises(InvalidInputError, match=r"^state: .* algorithm FedAvg.*; "):
        deploy(federation(), A.MIFA(), **options)
    other = prepare(quadratic(d=4))
    with pytest.raises(InvalidInputError, match=r"^state: .* model .*; "):
        deploy(federation(other), A.FedAvg(), task=other, **options)


def test_two_runs_cannot_use_one_state(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtide.flower.server.session._LOCK_PATIENCE", 0.1)
    state = tmp_path / "state"
    with (
        lock_folder(state, "state", "stop it"),
        pytest.raises(InvalidInputError, match=r"^state: .* in use .*; .*flwr stop"),
    ):
        deploy(federation(), A.FedAvg(), rounds=1, state=state)
    deploy(federation(), A.FedAvg(), rounds=1, state=state)
