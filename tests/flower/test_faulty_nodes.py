"""Clients that are late, silent, lying, killed or absent, with Flower's own processes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedtide.flower.ledger.ledger import read_rounds

from .local_federation import HOST, LocalFederation, free_port
from .processes import (
    APP,
    Row,
    collect_log,
    count_rounds,
    load_state,
    replay,
    rows,
    time_startup,
    wait_until,
)

pytestmark = pytest.mark.flower

HOSTILE = Path(__file__).with_name("hostile_node.py")
STEADY, LATE, BAD = SITES = ["site-0", "site-1", "site-2"]
LIES = {
    "fedavg": ["numbers that are not finite", f"claims to be '{STEADY}'"],
    "mifa": ["of shape (2,)", "claims to answer round 1"],
}


def late_answers(path: Path) -> list[Row]:
    return rows(path, LATE, "reported used")


def both_lies(path: Path) -> bool:
    """Return whether the bad client told the lies of even and of odd rounds."""
    return {row.asked % 2 for row in rows(path, BAD, "reported")} == {0, 1}


def refused(log: list[str], lie: str) -> bool:
    """Return whether the run logged that a reply of the bad client is not used because of this."""
    return any(f"reply of {BAD} not used: it" in line and lie in line for line in log)


def restart_until(back: Callable[[], bool], federation: LocalFederation, ledger: Path) -> None:
    """Start the bad client's node again when it exits, once a round, as a supervisor does.

    Flower takes the node for online, and refuses it, for up to a minute after its death.
    """
    node, since = None, 0

    def seen() -> bool:
        nonlocal node, since
        if node is None or (node.poll() is not None and count_rounds(ledger) > since):
            since = count_rounds(ledger)
            node = federation.start_node(BAD, client=2, sends='"lies"')
        return back()

    wait_until(seen, "reply of the node that came back")


@pytest.fixture
def ledgers(tmp_path) -> dict[str, Path]:
    return {method: tmp_path / f"{method}.db" for method in LIES}


def test_nobody_then_a_steady_a_late_and_a_bad_client(tmp_path, ledgers):
    """FedAvg and MIFA at once. The bad client is silent, is killed, comes back, and lies."""
    paths = ledgers.values()
    timeout = max(8.0, 3 + 2 * time_startup())  # seconds in which the steady client answers both
    with LocalFederation(tmp_path / "federation", tls=True) as federation:
        federation.start_superlink(database=False)
        config = {"folder": tmp_path, "names": " ".join(SITES), "timeout": timeout, "rounds": 1000}
        run = federation.submit(APP, methods=" ".join(LIES), **config)
        log = collect_log(run)
        for name in SITES:
            federation.register(name)
        wait_until(lambda: all(count_rounds(path) >= 2 for path in paths), "rounds without nodes")
        federation.start_node(STEADY, client=0)
        federation.start_node(LATE, client=1, sends='"late"')
        silent = federation.start_node(BAD, client=2, sends='"nothing"')
        wait_until(lambda: all(rows(path, BAD, "selected") for path in paths), "silence")
        silent.kill()
        restart_until(lambda: all(both_lies(path) for path in paths), federation, ledgers["mifa"])
        for lie in (lie for lies in LIES.values() for lie in lies):
            wait_until(lambda lie=lie: refused(log, lie), f"refusal of what {lie}")
        wait_until(lambda: all(rows(path, STEADY, "used") for path in paths), "timely answers")
        wait_until(lambda: all(len(late_answers(path)) >= 2 for path in paths), "late answers")
        states = {method: load_state(tmp_path, method) for method in LIES}
        wait_until(
            lambda: all(count_rounds(ledgers[m]) >= states[m].round for m in LIES), "ledgers"
        )
        assert run.poll() is None
        for process in federation.processes("flwr-serverapp"):  # it has most of its rounds to go
            os.kill(process, signal.SIGKILL)
    assert federation.processes() == []

    for method, path in ledgers.items():
        times = read_rounds(f"sqlite:///{path}")
        assert times["round"].to_list() == list(range(len(times)))
        assert min(row.round for row in rows(path)) >= 2
        for row in rows(path, stages="selected"):  # silent until the deadline
            assert times["time"][row.round] - times["time"][row.round - 1] >= 0.99 * timeout
        assert rows(path, BAD, "used") == []
        asked = [row.asked for row in late_answers(path)]
        assert asked == sorted(set(asked))
        assert all(row.asked < row.round for row in late_answers(path))
        wanted = "used" if method == "mifa" else "reported"
        assert {row.stage for row in late_answers(path)} == {wanted}
        model = states[method].tensors["state.model"].numpy()
        wanted_model = replay(method, path, SITES, states[method].round)
        np.testing.assert_allclose(model, wanted_model, rtol=1e-9)


def test_a_mute_newcomer_does_not_hold_up_rounds(tmp_path):
    """Its app never answers the question for its name, for which it has a minute."""
    path = tmp_path / "fedavg.db"
    with LocalFederation(tmp_path / "federation", tls=False) as federation:
        federation.start_superlink(database=False)
        names = " ".join([STEADY, BAD])
        config = {"folder": tmp_path, "names": names, "timeout": 120, "rounds": 1000}
        run = federation.submit(APP, methods="fedavg", **config)
        log = collect_log(run)
        federation.start_node(STEADY, client=0)
        wait_until(lambda: count_rounds(path) and rows(path, STEADY, "used"), "first update")
        first = count_rounds(path)
        federation.start_node(BAD, client=1, sends='"no name"')
        wait_until(lambda: any("did not answer" in line for line in log), "silence", 120)
        times = read_rounds(f"sqlite:///{path}")["time"].to_list()
        used = [row.round for row in rows(path, STEADY, "used")]
    assert len(times) >= first + 3
    assert max(np.diff(times[first:])) < 45
    assert set(range(first, len(times) - 1)) <= set(used)
    assert rows(path, BAD) == []


def test_a_reply_that_the_superlink_cannot_deliver_ends_no_run(tmp_path):
    """A node of its own programs wrote NaN into an envelope, and the run of all others ended."""
    path = tmp_path / "fedavg.db"
    with LocalFederation(tmp_path / "federation", tls=False) as federation:
        federation.start_superlink()
        names = " ".join([STEADY, BAD])
        run = federation.submit(APP, methods="fedavg", folder=tmp_path, names=names, rounds=1000)
        collect_log(run)
        federation.start_node(STEADY, client=0)
        options = ["--insecure", "--superlink", federation.address, "--host", HOST]
        options += ["--port", str(free_port()), "--node-config", f'name="{BAD}" client=1']
        federation._start(BAD, "python", str(HOSTILE), "nan", *options)
        wait_until(lambda: count_rounds(path) and rows(path, BAD, "selected"), "request")
        last = rows(path, BAD, "selected")[-1].round
        wait_until(lambda: count_rounds(path) >= last + 2, "further rounds")
        assert run.poll() is None
    assert rows(path, BAD, "used") == []
    used = [row.round for row in rows(path, STEADY, "used")]
    assert set(range(used[0], last + 2)) <= set(used)


def test_clocks_that_are_set_back_by_an_hour_do_not_matter(tmp_path, set_clock):
    """To MIFA: a slow client is asked again when it has answered, and not before."""
    path, sites = tmp_path / "mifa.db", [STEADY, LATE]
    with LocalFederation(tmp_path / "federation", tls=False) as federation:
        federation.start_superlink(database=False)
        config = {"folder": tmp_path, "names": " ".join(sites), "timeout": 600, "close_after": 1}
        federation.submit(APP, methods="mifa", rounds=1000, **config)
        federation.start_node(STEADY, client=0)
        federation.start_node(LATE, client=1, sends='"late"')
        wait_until(lambda: count_rounds(path) and late_answers(path), "late answer")
        before = len(late_answers(path))
        set_clock(-3600)
        wait_until(lambda: len(late_answers(path)) >= before + 2, "late answers afterwards")
        state = load_state(tmp_path, "mifa")
        wait_until(lambda: count_rounds(path) >= state.round, "ledger")
    times = read_rounds(f"sqlite:///{path}")["time"]
    assert times.is_sorted()
    assert times[-1] - times[0] < 3600
    asked = [row.asked for row in late_answers(path)]
    assert asked == sorted(set(asked))
    for answer in late_answers(path):
        assert not [r for r in rows(path, LATE) if answer.asked < r.round < answer.round]
    wanted = replay("mifa", path, sites, state.round)
    np.testing.assert_allclose(state.tensors["state.model"].numpy(), wanted, rtol=1e-9)
