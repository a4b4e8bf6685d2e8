"""The tail of the lengths of sessions, drawn with NumPy from laws of known tails."""

import numpy as np
import polars as pl
import pytest

from fedtide.auditing import ParticipationLog
from fedtide.auditing.statistics.session_tails import SessionTail, measure_session_tail


def measure(lengths: np.ndarray) -> SessionTail:
    """Return the tail of a log in which client n has the sessions of row n, a round apart."""
    clients, rounds = [], []
    for n, row in enumerate(lengths.astype(int)):
        start = 0
        for length in row:
            rounds.append(np.arange(start, start + length))
            start += length + 1
        clients.append(np.full(row.sum(), n))
    times = np.concatenate(rounds)
    names = pl.Series("client", np.arange(len(lengths)))
    ids = np.concatenate(clients).astype(np.int32)
    log = ParticipationLog.from_entries(names, times, ids, (0, int(times.max()) + 1))
    return measure_session_tail(log)


@pytest.mark.parametrize("index", [1.2, 1.5, 3.0])
def test_index_of_pareto_sessions_is_found(index: float) -> None:
    """2000 sessions, of which 100 show the tail: a standard error of a tenth, three allowed."""
    random = np.random.default_rng(1)
    found = measure(np.ceil(3 * (1 + random.pareto(index, (40, 50)))))
    assert found.index == pytest.approx(index, rel=0.3)
    assert found.interval[0] < found.index < found.interval[1]
    assert found.may_lack_variance == (index < 2)


def test_sessions_of_clients_that_differ_have_a_variance() -> None:
    """Geometric lengths with means from 2 to 200 rounds: together they look like a heavy tail."""
    random = np.random.default_rng(2)
    means = np.geomspace(2, 200, 40)[:, None]
    assert not measure(random.geometric(1 / means, (40, 50))).may_lack_variance


def test_few_or_short_sessions_show_nothing() -> None:
    random = np.random.default_rng(3)
    for lengths in (np.full((3, 9), 50), random.geometric(0.8, (40, 50))):
        assert measure(lengths).interval == (0.0, np.inf)
