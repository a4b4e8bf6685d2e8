"""Runs and audits in a process that was forked: they end, or are refused, but never hang."""

import os
import signal
import sys

import polars as pl
import pytest

from fedtide.auditing import audit
from fedtide.forked_process import refuse_fork_without_threads
from fedtide.simulation import simulate
from fedtide.sweep import Sweep, run_sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks and /proc are Linux's")

QUADRATIC = {"type": "quadratic", "matrices": [[[1.0]], [[2.0]]], "centers": [[0.0], [1.0]]}
FIELDS = {
    "problem": QUADRATIC,
    "participation": "full",
    "algorithm": "fedavg",
    "local": {"steps": 1, "lr": 0.1},
    "rounds": 2,
    "trainer": "reference",
}
LOG = pl.DataFrame({"round": [0, 0, 1], "client": ["ann", "bob", "ann"]})


def in_a_fork(call):
    """Return the error that a call raises in a forked process, as text; "" for none."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(20)  # ends a process that hangs
        said = ""
        try:
            call()
        except BaseException as error:
            said = f"{type(error).__name__} {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_what_would_hang_in_a_fork_is_refused(tmp_path):
    LOG.filter(pl.col("round") > 0)  # starts the threads of Polars
    for call in (
        lambda: simulate(**FIELDS),
        lambda: audit(LOG),
        lambda: run_sweep(Sweep.from_dict(FIELDS), tmp_path / "out"),
    ):
        said = in_a_fork(call)
        assert said.startswith("InvalidInputError process: it was forked after ")
        assert "spawn" in said
    assert not (tmp_path / "out").exists()
    simulate(**FIELDS)  # here, nothing has changed


def test_a_fork_of_a_fork_is_refused_too():
    LOG.filter(pl.col("round") > 0)
    assert "forked" in in_a_fork(fork_again)


def fork_again():
    """Raise what a fork of this process says."""
    raise RuntimeError(in_a_fork(refuse_fork_without_threads))


def test_a_fork_of_a_process_that_has_not_used_polars_may_run(monkeypatch, tmp_path):
    monkeypatch.setattr("fedtide.forked_process._THREADS", tmp_path)  # no threads
    assert in_a_fork(refuse_fork_without_threads) == ""
