"""The monitor follows a ledger: it reads new rounds only, and notices what was undone."""

import sqlite3
import time

import numpy as np
import pytest

import fedtide.monitoring.monitor as module
from fedtide.errors import InvalidInputError
from fedtide.monitoring.ledger_window import ClientTotals
from fedtide.monitoring.monitor import Monitor, MonitorSettings
from fedtide.monitoring.status import GONE, find_states
from fedtide.participation.log.ledger import Ledger, read_ledger_part

from .ledgers import draw_rounds, find_gone, look_often, used, write


def open_monitor(url: str, **settings) -> Monitor:
    monitor = Monitor(url, MonitorSettings(**settings))
    monitor.refresh()
    return monitor


@pytest.mark.parametrize("step", [1, 5])
def test_reading_part_by_part_gives_what_reading_at_once_gives(url, step):
    rounds = draw_rounds(6, 5 * step)
    follower = Monitor(url, MonitorSettings(window=4))
    for low in range(0, len(rounds), step):
        write(url, rounds[low : low + step])
        follower.refresh()
    assert follower.metrics == open_monitor(url, window=4).metrics


def test_only_new_rounds_are_read(url, monkeypatch):
    read = []

    def read_part(url, after, most):
        part = read_ledger_part(url, after, most)
        read.append(len(part.rows))
        return part

    write(url, draw_rounds(6, 20))
    monitor = open_monitor(url)
    monkeypatch.setattr(module, "read_ledger_part", read_part)
    monitor.refresh()
    assert sum(read) == 0
    write(url, [used(20, "site-0", "site-1")])
    monitor.refresh()
    assert sum(read) == 2


def test_a_database_that_fails_in_the_middle_delays_but_loses_nothing(url, monkeypatch):
    calls = []

    def read_part(url, after, most):
        calls.append(after)
        if len(calls) == 2:
            raise InvalidInputError("ledger: it is gone; wait")
        return read_ledger_part(url, after, most)

    write(url, draw_rounds(3, 4))
    expected = open_monitor(url).metrics
    monkeypatch.setattr(module, "read_ledger_part", read_part)
    monitor = Monitor(url)
    with pytest.raises(InvalidInputError, match="gone"):
        monitor.refresh()
    monitor.refresh()
    assert monitor.metrics == expected


def test_a_round_that_was_undone_and_repeated_is_read_again(url):
    write(url, [used(t, "ann", "bob") for t in range(5)])
    monitor = open_monitor(url)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM participation WHERE round >= 3")
        connection.execute("DELETE FROM rounds WHERE round >= 3")
    monitor.refresh()
    assert monitor.status is not None
    assert monitor.status.ended == 3
    ledger = Ledger(url, "north")
    ledger.commit(3, used(3, "eve"), time=1.0)
    monitor.refresh()
    assert monitor.metrics == open_monitor(url).metrics


def test_the_federation_is_kept_when_another_one_joins_the_database(url):
    write(url, [used(0, "ann")], "north")
    monitor = open_monitor(url)
    write(url, [used(0, "zoe"), used(1, "zoe")], "south")
    write(url, [used(1, "ann")], "north")
    monitor.refresh()
    assert monitor.status is not None
    assert (monitor.status.federation, monitor.status.names) == ("north", ["ann"])
    with pytest.raises(InvalidInputError, match="2 federations"):
        open_monitor(url)
    assert open_monitor(f"{url}#south").status.names == ["zoe"]


def test_a_ledger_without_rounds_is_waited_for(url):
    write(url, [], "north")
    monitor = open_monitor(f"{url}#north")
    assert monitor.status is None
    write(url, [used(0, "ann")], "north")
    monitor.refresh()
    assert monitor.status.names == ["ann"]


def test_a_ledger_that_fails_is_named_and_read_again_when_it_is_back(url, tmp_path, monkeypatch):
    write(url, [used(0, "ann"), used(1, "ann")])
    look_often(monkeypatch)
    monitor = Monitor(url)
    file = tmp_path / "ledger.db"
    monitor.start()
    try:
        wait_until(lambda: monitor.status is not None)
        file.rename(tmp_path / "away.db")
        wait_until(lambda: b"fedtide_ledger_up 0.0" in monitor.metrics)
        assert monitor.error is not None
        assert "no database" in monitor.error
        assert b"fedtide_rounds_total" in monitor.metrics
        (tmp_path / "away.db").rename(file)
        wait_until(lambda: b"fedtide_ledger_up 1.0" in monitor.metrics)
        assert monitor.error is None
    finally:
        monitor.stop()


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"window": 1}, "window"),
        ({"clients": 0}, "clients"),
        ({"client_series": -1}, "client_series"),
    ],
)
def test_settings_out_of_range_are_refused(settings, field):
    with pytest.raises(InvalidInputError, match=f"^{field}: "):
        MonitorSettings(**settings)


def test_a_client_that_leaves_is_called_gone_as_the_rule_says():
    present = np.random.default_rng(1).random((300, 4)) < [0.9, 0.5, 0.1, 0.5]
    present[100:, 0] = present[150:, 1] = False
    totals = ClientTotals.empty(4)
    called = []
    for t, there in enumerate(present):
        clients = np.flatnonzero(there)
        totals.add(clients, t, np.zeros(len(clients)), clients[:0])
        called.append(find_states(totals, 0, t) == GONE)
        seen = {n: np.flatnonzero(present[: t + 1, n]).tolist() for n in range(4)}
        expected = find_gone({n: rounds for n, rounds in seen.items() if rounds}, t)
        assert called[-1].tolist() == [expected.get(n, False) for n in range(4)]
    first = np.argmax(called, axis=0)
    assert 100 <= first[0] < 125
    assert 150 <= first[1] < 180
    assert not np.any(called, axis=0)[2:].any()


def test_a_first_silence_is_compared_with_the_longest_of_others():
    """Two clients whose silences of 1 and of 30 rounds have ended, and one that is silent."""
    present = np.ones((140, 3), dtype=bool)
    present[20, 0] = present[30:60, 1] = present[80:, 2] = False
    totals, called = ClientTotals.empty(3), []
    for t, there in enumerate(present):
        clients = np.flatnonzero(there)
        totals.add(clients, t, np.zeros(len(clients)), clients[:0])
        called.append(find_states(totals, 0, t)[2] == GONE)
    assert not any(called)  # silent for 60 rounds, twice 30
    totals.add(np.array([0, 1]), 140, np.zeros(2), np.array([], dtype=np.int64))
    assert find_states(totals, 0, 140)[2] == GONE


def test_a_client_that_comes_at_random_is_hardly_ever_called_gone():
    rates = np.random.default_rng(2).uniform(0.05, 0.95, 50)
    totals = ClientTotals.empty(50)
    for t in range(1000):
        clients = np.flatnonzero(np.random.default_rng([3, t]).random(50) < rates)
        totals.add(clients, t, np.zeros(len(clients)), clients[:0])
        assert not (find_states(totals, 0, t) == GONE).any()
