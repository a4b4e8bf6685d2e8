"""A checkpoint that is damaged: the one before it is used, and the ledger agrees with the model."""

import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower import ClientSideMemory
from fedtide.flower.ledger.ledger import Ledger, read_ledger, read_rounds
from fedtide.flower.server.session import TrainingSession
from fedtide.flower.server.transport import Transport

from .driver import Killed, N, deploy, federation, kill_in_call, model, scripted

A = ft.algorithms
ROUNDS = 5
PRESENT = scripted(ROUNDS, N)
USED = [(t, str(n)) for t in range(ROUNDS) for n in range(N) if PRESENT[t, n]]


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def newest(state: Path) -> Path:
    return max(state.glob("*.safetensors"))


def end_in_round(monkeypatch, owner, name, number, after, **options):
    """Run until the server is killed."""
    with monkeypatch.context() as patch:
        kill_in_call(patch, owner, name, number, after)
        with pytest.raises(Killed):
            deploy(**options)


DAMAGES = {"flipped": flip, "cut": cut, "deleted": Path.unlink}
KILLS = {
    "in the next round": (Transport, "collect", 4, True),
    "after the checkpoint": (TrainingSession, "save", 3, True),
    "after the ledger": (Ledger, "commit", 3, True),
}
CASES = [(damage, "in the next round") for damage in DAMAGES]
CASES += [("flipped", kill) for kill in KILLS if kill != "in the next round"]


@cache
def uninterrupted(rounds: int = ROUNDS) -> np.ndarray:
    return model(deploy(federation(present=PRESENT), A.FedAU(cutoff=2), rounds=rounds))


@pytest.mark.parametrize(("damage", "kill"), CASES)
def test_the_round_of_a_damaged_checkpoint_is_repeated(
    damage, kill, tmp_path, url, monkeypatch, caplog
):
    options = {"algorithm": A.FedAU(cutoff=2), "state": tmp_path / "state", "ledger": url}
    grid = federation(present=PRESENT)
    end_in_round(monkeypatch, *KILLS[kill], grid=grid, rounds=ROUNDS, **options)
    DAMAGES[damage](newest(options["state"]))
    ended, logged = (
        int(newest(options["state"]).stem) - (damage != "deleted"),
        len(read_rounds(url)),
    )
    again = deploy(federation(present=PRESENT), rounds=ROUNDS, **options)
    np.testing.assert_array_equal(model(again), uninterrupted())
    assert read_rounds(url)["round"].to_list() == list(range(ROUNDS))
    assert read_ledger(url).filter(stage="used").select("round", "client").rows() == USED
    repeated = [r.getMessage() for r in caplog.records if "removed from the ledger" in r.message]
    assert len(repeated) == logged - ended
    assert all(re.match(rf"Round {logged} ", text) for text in repeated)


@pytest.mark.parametrize("method", [A.MIFA(), A.FedLaAvg(), A.FedAU(cutoff=3)], ids=repr)
def test_clients_that_remember_can_repeat_a_round_whose_successor_has_begun(
    method, tmp_path, monkeypatch
):
    options = {"algorithm": ClientSideMemory(method), "state": tmp_path / "state"}
    grid = federation(present=PRESENT, memory=tmp_path / "clients")
    end_in_round(monkeypatch, *KILLS["in the next round"], grid=grid, rounds=ROUNDS, **options)
    flip(newest(options["state"]))
    grid = federation(present=PRESENT, memory=tmp_path / "clients")
    again = deploy(grid, rounds=ROUNDS, **options)
    whole = deploy(federation(present=PRESENT), method, rounds=ROUNDS)
    np.testing.assert_allclose(model(again), model(whole), rtol=1e-10)


def test_training_does_not_begin_anew_if_both_checkpoints_are_damaged(tmp_path, url):
    state = tmp_path / "state"
    deploy(federation(), A.FedAvg(), rounds=4, state=state)
    for path in state.glob("*.safetensors"):
        flip(path)
    before = {path: path.read_bytes() for path in state.glob("*.safetensors")}
    for ledger in (None, url):
        with pytest.raises(InvalidInputError, match=r"^state: .* 4 rounds.* damaged; restore"):
            deploy(federation(), A.FedAvg(), rounds=5, state=state, ledger=ledger)
    assert {path: path.read_bytes() for path in state.glob("*.safetensors")} == before


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a folder cannot be opened")
def test_the_name_of_a_state_is_on_disk_before_the_round_is_in_the_ledger(
    tmp_path, url, monkeypatch
):
    steps, fsync, commit = [], os.fsync, Ledger.commit

    def record_sync(descriptor):
        fsync(descriptor)
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            steps.append(len(list(tmp_path.glob("*.safetensors"))))

    def record_commit(self, *arguments):
        steps.append("ledger")
        commit(self, *arguments)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Ledger, "commit", record_commit)
    deploy(federation(), A.FedAvg(), rounds=2, state=tmp_path, ledger=url)
    assert steps == [1, "ledger", 2, "ledger"]
