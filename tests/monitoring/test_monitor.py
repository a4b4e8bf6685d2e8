"""The monitor follows a ledger: it reads new rounds only, and notices what was undone."""

import sqlite3
import time
from collections.abc import Iterator

import numpy as np
import pytest

from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import Ledger
from fedtide.monitoring.ledger_window import ClientTotals
from fedtide.monitoring.monitor import Monitor, MonitorSettings
from fedtide.monitoring.status import GONE, find_states

from .ledgers import draw_rounds, find_gone, look_often, used, write


def open_monitor(url: str, **settings) -> Monitor:
    monitor = Monitor(url, MonitorSettings(**settings))
    monitor.refresh()
    return monitor


def list_metrics(monitor: Monitor) -> list[bytes]:
    """Return the metrics without the space on the disk, which others change."""
    return [line for line in monitor.metrics.splitlines() if b"disk" not in line]


@pytest.mark.parametrize("step", [1, 5])
def test_reading_part_by_part_gives_what_reading_at_once_gives(url, step):
    rounds = draw_rounds(6, 5 * step)
    follower = Monitor(url, MonitorSettings(window=4))
    for low in range(0, len(rounds), step):
        write(url, rounds[low : low + step])
        follower.refresh()
    assert list_metrics(follower) == list_metrics(open_monitor(url, window=4))


def test_a_round_that_was_undone_and_repeated_is_read_again(url):
    write(url, [used(t, "ann", "bob") for t in range(5)])
    monitor = open_monitor(url)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM participation WHERE round >= 3")
        connection.execute("DELETE FROM rounds WHERE round >= 3")
    monitor.refresh()
    assert monitor.status is not None
    assert monitor.status.counts.ended == 3
    ledger = Ledger(url, "north")
    ledger.commit(3, used(3, "eve"), time=1.0)
    monitor.refresh()
    assert list_metrics(monitor) == list_metrics(open_monitor(url))


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


def test_a_database_with_another_federation_in_its_place_is_followed(url, tmp_path):
    """It was waited for without a word, with a ledger that could be read."""
    write(url, [used(0, "ann")], "north")
    monitor = open_monitor(url)
    (tmp_path / "ledger.db").unlink()
    write(url, [used(0, "zoe"), used(1, "zoe")], "south")
    monitor.refresh()
    monitor.refresh()
    assert (monitor.status.federation, monitor.status.names) == ("south", ["zoe"])
    named = open_monitor(f"{url}#north")
    named.refresh()
    assert named.status is None


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


def watch(present: np.ndarray, window: int = 100, every: int = 1) -> Iterator[np.ndarray]:
    """Yield who is gone after every so many rounds, given who is there in each, shape (T, N)."""
    totals = ClientTotals.empty(present.shape[1])
    for t, there in enumerate(present):
        clients = np.flatnonzero(there)
        totals.add(clients, t, np.zeros(len(clients)), clients[:0])
        if (t + 1) % every == 0:
            yield find_states(totals, max(0, t + 1 - window), t) == GONE


def test_a_client_that_leaves_is_called_gone_as_the_rule_says():
    draws = np.random.default_rng(1)
    present = draws.random((400, 7)) < [0.9, 0.5, 0.1, 0.5, 0.7, 0.9, 0.3]
    present[150:, 0] = present[190:, 1] = present[:10, 3] = present[200:203] = False
    present[40:44, 4] = present[230:240, 5] = False
    called = []
    for i, gone in enumerate(watch(present, window=40, every=4)):
        t = 4 * i + 3
        called.append(gone)
        seen = {n: np.flatnonzero(present[: t + 1, n]).tolist() for n in range(7)}
        expected = find_gone({n: rounds for n, rounds in seen.items() if rounds}, t, window=40)
        for n in range(7):
            assert gone[n] == expected.get(n, False), (t, n)
    assert np.any(called, axis=0).tolist() == [True, True, False, False, False, False, False]


CYCLES = {
    "own phases": lambda t, n: (t + 37 * n) % 100 < 20,
    "own phases, various days": lambda t, n: (t + 37 * n) % 100 < 5 + 2 * n,
    "one zone": lambda t, n: (t + 17) % 100 < 40,
    "three zones": lambda t, n: (t + 33 * (n % 3)) % 100 < 50,
    "five groups": lambda t, n: t // 20 % 5 == n % 5,
    "two groups": lambda t, n: t // 100 % 2 == n % 2,
}


@pytest.mark.parametrize(
    "cycle",
    [
        "own phases",
        *(pytest.param(name, marks=pytest.mark.statistical) for name in list(CYCLES)[1:]),
    ],
)
def test_clients_that_come_in_cycles_are_called_gone_when_they_leave_and_not_before(cycle):
    day = CYCLES[cycle](np.arange(800)[:, None], np.arange(40))
    present = day & (np.random.default_rng(5).random((800, 40)) < 0.8)
    present[400:, 7] = False
    called = np.array(list(watch(present, every=10)))
    assert not np.delete(called, 7, axis=1).any()
    assert not called[:40, 7].any()
    assert called[40:, 7].any()


def test_a_client_that_comes_at_random_is_hardly_ever_called_gone():
    rates = np.random.default_rng(2).uniform(0.05, 0.95, 50)
    present = np.random.default_rng(3).random((1000, 50)) < rates
    assert not any(gone.any() for gone in watch(present))
