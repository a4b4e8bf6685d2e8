"""What a round's log says of replies that are not used, however many there are."""

import fedtide as ft
from fedtide.flower.ledger.ledger import read_ledger
from fedtide.flower.server.round_log import RoundLog

from .driver import N, deploy, federation, node_of

A = ft.algorithms


def test_ten_replies_are_logged_one_by_one_and_the_others_are_counted(caplog):
    log = RoundLog(3, [f"site-{n}" for n in range(40)], lambda: 1.0)
    for client in range(25):
        log.reject(client, asked=3, reason="malformed", text=f"it sent {client}")
    for client in range(25, 30):
        log.reject(client, asked=3, reason="error", text="error 2")
    entries = log.close()
    assert [entry.reason for entry in entries] == ["malformed"] * 25 + ["error"] * 5
    assert [entry.stage for entry in entries] == ["reported"] * 25 + ["selected"] * 5
    assert [r.getMessage() for r in caplog.records] == [
        *(f"reply of site-{n} not used: it sent {n}" for n in range(10)),
        "Further replies not used: 20",
    ]


def test_an_error_in_place_of_a_late_reply_leaves_the_clients_row_as_it_is():
    log = RoundLog(3, ["ann"], lambda: 1.0)
    log.record(0, "available")
    log.reject(0, asked=2, reason="offline", text="error 5")
    assert [(entry.stage, entry.reason) for entry in log.close()] == [("available", None)]


def test_late_replies_that_are_dropped_are_counted_in_the_log(url, caplog):
    grid = federation()
    node_of(grid, 2).seconds = lambda number: 60.05 if number == 1 else 0.1  # timeout: 60
    node_of(grid, 4).seconds = lambda number: 60.05 if number == 1 else 0.1
    deploy(grid, A.FedAvg(), rounds=3, ledger=url)
    late = [r.getMessage() for r in caplog.records if "rounds have ended" in r.getMessage()]
    assert late == ["Replies not used, as their rounds have ended: 2"]
    assert len(read_ledger(url).filter(stage="used")) == 3 * N - 4
