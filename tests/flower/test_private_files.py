"""Files of a federation: nobody else reads them, and no name leads out of their folder."""

import stat
from pathlib import Path

import pytest

import fedtide as ft
from fedtide.flower import ClientSideMemory
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.clients import store
from fedtide.flower.clients.store import client_folder
from fedtide.flower.server.strategy import FedTide

from .driver import TASK, N, deploy, federation

A = ft.algorithms


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
