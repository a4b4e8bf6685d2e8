"""A state and a ledger that an earlier version wrote are continued bit for bit."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import read_ledger, read_rounds
from fedtide.flower.ledger.ledger_maintenance import migrate_ledger
from fedtide.simulation import checkpoint as checkpoint_module
from fedtide.simulation.checkpoint import load_newest, save

from .driver import N, deploy, federation, model, node_of, scripted

STORED = Path(__file__).with_name("stored")
MODEL = ["-0x1.0d77d1e68398cp+1", "0x1.1f7d93b492951p+1", "0x1.9d696b679cf7ap-2"]
"""The model after round 12, as the version that wrote the files went on from them."""


def test_a_federation_of_an_earlier_version_goes_on_bit_for_bit(tmp_path):
    """MIFA after five rounds, with a slow client, a pending reply and a selection's memory."""
    for path in STORED.rglob("*.*"):
        copy = tmp_path / path.relative_to(STORED)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    grid, url = federation(present=scripted(12, N)), f"sqlite:///{tmp_path / 'ledger.db'}"
    for client in range(N):
        node_of(grid, client).seconds = lambda number: 20.0
    node_of(grid, 1).seconds = lambda number: 70.0 if number else 0.1
    before = read_ledger(url)
    migrate_ledger(url)
    strategy = deploy(
        grid,
        ft.algorithms.MIFA(server_lr=0.7),
        12,
        timeout=30.0,
        state=tmp_path / "state",
        ledger=url,
        selection=ft.participation.LeastServed(size=4, period=4),
    )
    assert [x.hex() for x in model(strategy)] == MODEL
    assert read_rounds(url)["round"].to_list() == list(range(12))
    after = read_ledger(url)
    assert after.head(len(before)).equals(before)
    assert len(after) == 24


def test_a_federation_goes_on_with_a_state_and_a_ledger_of_an_older_version(tmp_path, url):
    options = {"state": tmp_path / "state", "ledger": url}
    deploy(federation(), ft.algorithms.FedAvg(), rounds=3, **options)
    checkpoint = load_newest(tmp_path / "state")
    for entry in checkpoint.facts["entries"]:
        assert entry.pop("reason") is None
        del entry["step_weight"], entry["norm"]
    save(tmp_path / "state", checkpoint)
    assert "reason" not in load_newest(tmp_path / "state").facts["entries"][0]
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        for column in ("reason", "step_weight", "norm"):
            connection.execute(f"ALTER TABLE participation DROP COLUMN {column}")
        connection.execute("UPDATE fedtide_schema SET version = 1")
    with pytest.raises(InvalidInputError, match="fedtide ledger migrate"):
        deploy(federation(), ft.algorithms.FedAvg(), rounds=5, **options)
    migrate_ledger(url)
    deploy(federation(), ft.algorithms.FedAvg(), rounds=5, **options)
    assert read_rounds(url)["round"].to_list() == [0, 1, 2, 3, 4]
    assert len(read_ledger(url).filter(stage="used")) == 5 * N


A = ft.algorithms


@pytest.mark.parametrize("now", [0, 10**6])
def test_a_federation_goes_on_wherever_its_facts_are(now, tmp_path, monkeypatch):
    """Of files of an earlier version, they are in the header."""
    options = {"algorithm": A.FedAU(cutoff=2), "state": tmp_path}
    monkeypatch.setattr(checkpoint_module, "_LARGEST_HEADER", 10**6 - now)
    deploy(federation(), rounds=2, **options)
    monkeypatch.setattr(checkpoint_module, "_LARGEST_HEADER", now)
    again = deploy(federation(), rounds=4, **options)
    whole = deploy(federation(), A.FedAU(cutoff=2), rounds=4)
    assert (model(again) == model(whole)).all()
