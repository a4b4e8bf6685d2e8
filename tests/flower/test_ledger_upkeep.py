"""What a federation's ledger tells an audit; runs go on after it was pruned or migrated."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import read_ledger, read_rounds
from fedtide.flower.ledger.ledger_maintenance import migrate_ledger, prune_ledger
from fedtide.simulation.checkpoint import load_newest, save

from .driver import N, deploy, federation, model, node_of

FedAvg = ft.algorithms.FedAvg


def test_an_audit_names_the_client_whose_every_update_was_refused(url):
    grid = federation()

    def spoil(reply: Message) -> Message:
        for name, record in list(reply.content.array_records.items()):
            spoilt = {key: Array(array.numpy() * np.nan) for key, array in record.items()}
            reply.content[name] = ArrayRecord(spoilt)
        return reply

    node_of(grid, 1).tamper = spoil
    deploy(grid, FedAvg(), rounds=6, ledger=url)
    audit = ft.audit(url, clients=N)
    assert audit.to_dict()["refusals"] == {
        "total": {"not finite": 6},
        "clients": {"1": {"not finite": 6}},
    }
    assert any(
        "its update held numbers that were not finite, or too large (6)" in one
        for one in audit.limits
    )


def test_a_federation_goes_on_after_its_ledger_was_pruned(tmp_path, url):
    options = {"state": tmp_path / "state", "ledger": url}
    deploy(federation(), FedAvg(), rounds=6, **options)
    prune_ledger(url, first=4)
    again = deploy(federation(), FedAvg(), rounds=8, **options)
    np.testing.assert_array_equal(model(again), model(deploy(federation(), FedAvg(), rounds=8)))
    assert read_rounds(url)["round"].to_list() == [4, 5, 6, 7]
    audit = ft.audit(url)
    assert (audit.log.first_round, audit.log.length) == (4, 4)


def test_a_federation_goes_on_with_a_state_and_a_ledger_of_an_older_version(tmp_path, url):
    options = {"state": tmp_path / "state", "ledger": url}
    deploy(federation(), FedAvg(), rounds=3, **options)
    checkpoint = load_newest(tmp_path / "state")
    for entry in checkpoint.facts["entries"]:
        assert entry.pop("reason") is None
    save(tmp_path / "state", checkpoint)
    assert "reason" not in load_newest(tmp_path / "state").facts["entries"][0]
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("ALTER TABLE participation DROP COLUMN reason")
        connection.execute("UPDATE fedtide_schema SET version = 1")
    with pytest.raises(InvalidInputError, match="fedtide ledger migrate"):
        deploy(federation(), FedAvg(), rounds=5, **options)
    migrate_ledger(url)
    deploy(federation(), FedAvg(), rounds=5, **options)
    assert read_rounds(url)["round"].to_list() == [0, 1, 2, 3, 4]
    assert len(read_ledger(url).filter(stage="used")) == 5 * N
