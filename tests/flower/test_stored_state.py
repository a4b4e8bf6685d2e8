"""A state and a ledger that an earlier version wrote are continued bit for bit."""

import shutil
from pathlib import Path

import fedtide as ft
from fedtide.flower.ledger.ledger import read_ledger, read_rounds

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
