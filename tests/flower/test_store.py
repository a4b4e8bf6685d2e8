"""Methods whose memory is on the clients' disks: same models, and what a lost disk does."""

import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide.flower import ClientSideMemory
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.clients import store
from fedtide.flower.clients.store import client_folder, encode_update
from fedtide.flower.ledger.ledger import read_ledger
from fedtide.flower.protocol import TrainRequest, Update
from fedtide.flower.server.strategy import FedTide

from .driver import (
    TASK,
    N,
    deploy,
    federation,
    model,
    node_of,
    scripted,
    update_of,
)
from .fake_grid import FakeGrid

A = ft.algorithms
LOCAL = ft.LocalTraining(steps=3, lr=0.1, schedule=ft.InverseDecay(every=5))
METHODS = [A.MIFA(server_lr=0.7), A.FedLaAvg(), A.FedAU(cutoff=3), A.FedAU(cutoff=None)]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_models_are_those_of_the_plain_method(method, tmp_path):
    present = scripted(12, N)
    plain = deploy(federation(TASK, LOCAL, present), method, 12)
    grid = federation(TASK, LOCAL, present, memory=tmp_path)
    on_clients = deploy(grid, ClientSideMemory(method), 12)
    np.testing.assert_allclose(model(on_clients), model(plain), rtol=1e-10)
    assert not hasattr(on_clients.training.driver.state, "memory")


@pytest.mark.parametrize("method", METHODS[:3], ids=repr)
def test_late_and_lost_updates_leave_every_memory_in_step(method, tmp_path):
    """Updates that miss their round, or are rejected, leave no trace."""
    models = []
    for algorithm in (method, ClientSideMemory(method)):
        grid = federation(TASK, LOCAL, memory=tmp_path, seconds=lambda number: 20.0)
        node_of(grid, 3).seconds = lambda number: 0.1 if number == 0 else 70.0
        liar = node_of(grid, 1)

        def tamper(reply, liar=liar):
            if liar.handled % 3 == 1:
                reply.content.pop("arrays", None)
                reply.content.pop("update", None)
            return reply

        liar.tamper = tamper
        models.append(model(deploy(grid, algorithm, 15, timeout=30.0)))
    np.testing.assert_allclose(models[1], models[0], rtol=1e-10)


class DiskLosingGrid(FakeGrid):
    """A grid on which client 2 loses its disk in round `at`."""

    folder, at = None, None

    def push_messages(self, messages):
        rounds = {int(m.metadata.group_id) - 1 for m in messages}
        if self.at in rounds:
            shutil.rmtree(self.folder / "2", ignore_errors=True)
        return super().push_messages(messages)


def losing(folder, at: int, present=None) -> DiskLosingGrid:
    grid = DiskLosingGrid(federation(TASK, LOCAL, present, memory=folder).nodes)
    grid.folder, grid.at = folder, at
    return grid


@pytest.mark.parametrize("method", METHODS[:2], ids=repr)
def test_a_client_that_lost_its_disk_is_noticed_and_counts_like_one_that_stays_away(
    method, tmp_path
):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    grid = losing(tmp_path / "clients", at=4)
    strategy = deploy(grid, ClientSideMemory(method), 9, ledger=url)
    present = np.ones((9, N), dtype=bool)
    present[4:, 2] = False
    away = deploy(federation(TASK, LOCAL, present), method, 9)
    np.testing.assert_allclose(model(strategy), model(away), rtol=1e-10)
    stages = read_ledger(url).filter(client="2")["stage"].to_list()
    assert stages == ["used"] * 4 + ["reported"] * 5


def test_under_fedau_a_client_that_lost_its_disk_counts_anew(tmp_path):
    """Its weights are those of a client that came for the first time after its last update."""
    present = np.ones((12, N), dtype=bool)
    present[:, 2] = [1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1]
    strategy = deploy(losing(tmp_path, 9, present), ClientSideMemory(A.FedAU(cutoff=None)), 12)
    x = TASK.start.numpy()
    # ω of client 2: the mean of what it closed before; lost after round 5, it starts from round 6.
    omega = {0: 1.0, 2: 1.0, 5: 3 / 2, 9: 1.0, 11: 4.0}
    for t in range(12):
        lr, total = LOCAL.rate(t), np.zeros(3)
        for n in range(N):
            total += update_of(n, x, lr) * (1.0 if n != 2 else omega.get(t, 0.0))
        x = x + total / N
    np.testing.assert_allclose(model(strategy), x, rtol=1e-10)


@pytest.mark.parametrize(
    ("client", "server", "form"),
    [
        (torch.float32, np.float32, "mifa"),
        (torch.float64, np.float32, "fedlaavg"),
        (torch.float32, np.float64, "fedlaavg"),
    ],
)
def test_a_huge_update_leaves_nothing_in_the_sum_of_the_server(client, server, form, tmp_path):
    """The server adds what it reads: the latest update, but for the rounding of one difference."""
    total, accepted = np.float64(0.0), -1
    for t, h in enumerate([0.3, 1e9, 0.7, 0.9, -3e8, 0.9, 0.2, 0.5]):
        update = Update({"w": torch.tensor([0.5 * h], dtype=client)}, 1, 0.5, 1)
        request = TrainRequest(round=t, accepted_round=accepted, form=form)
        x = {"w": torch.tensor(np.zeros(1, server))}
        sent = encode_update(update, request, tmp_path, x).update["w"].numpy()
        total, accepted = total + np.float64(server(sent[0])), t
        latest = h if form == "fedlaavg" else 0.5 * h
        rounding = np.spacing(np.float32(abs(sent[0])))
        np.testing.assert_allclose(total, latest, rtol=1e-6, atol=float(rounding))


def test_no_folder_is_shared_where_case_does_not_count(tmp_path, monkeypatch):
    """NTFS, and APFS by default, ignore case; Windows drops points at the end of names."""
    monkeypatch.setattr(store, "_IGNORES_CASE", True)
    names = ["site", "Site", "SITE", "site.", "site..", "süd", "Süd", "SÜD", "a/b", "a%2F", "a%2f"]
    folders = {client_folder(tmp_path, name).name.rstrip(".").casefold() for name in names}
    assert len(folders) == len(names)
    assert client_folder(tmp_path, "site").name == "site"


@pytest.mark.parametrize("name", ["..", ".", "../x"])
def test_a_client_with_a_path_as_name_deletes_no_files(name, tmp_path):
    memory = tmp_path / "site" / "memory"
    memory.mkdir(parents=True)
    kept = [tmp_path / "site" / "1.safetensors", tmp_path / "1.safetensors"]
    kept += [memory / "1.safetensors", memory / "model.safetensors"]
    for file in kept:
        file.write_bytes(b"precious")
    names = [name, *map(str, range(1, N))]
    grid = federation(memory=memory)
    for number, node in enumerate(grid.nodes.values()):
        node.name = names[number]
    strategy = FedTide(ClientSideMemory(A.MIFA()), clients=names, clock=grid.clock)
    strategy.start(grid, vector_to_arrays(TASK.start, TASK.layout), 4, 60.0)
    assert [file.read_bytes() for file in kept] == [b"precious"] * len(kept)
    assert not list((tmp_path / "site").glob("*.part"))
    assert len(list(memory.rglob("*.safetensors"))) > 2


def test_only_the_owner_reads_the_state_and_what_clients_remember(tmp_path):
    algorithm = ClientSideMemory(A.MIFA())
    grid = federation(memory=tmp_path / "memory")
    deploy(grid, algorithm, 2, state=tmp_path / "server" / "state")
    folders = [tmp_path / "server" / "state", *(tmp_path / "memory").iterdir()]
    assert len(folders) == N + 1
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert list(Path(folder).glob("*.safetensors"))
