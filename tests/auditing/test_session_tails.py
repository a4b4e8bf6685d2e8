"""The tail of the lengths of sessions and absences, drawn with NumPy from laws of known tails."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from fedtide.auditing import ParticipationLog, audit
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.session_tails import Tail, measure_tail


def measure(lengths: np.ndarray) -> Tail:
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
    return measure_tail(log, "sessions")


def draw_visits(gaps: np.ndarray, rounds: int) -> ParticipationLog:
    """Return a log in which client n comes after the gaps of row n, in the last of the rounds."""
    times = np.cumsum(gaps.astype(np.int64), axis=1)
    first = int(times[:, -1].min()) - rounds
    clients, visits = np.nonzero((times >= first) & (times < first + rounds))
    names = pl.Series("client", np.arange(len(gaps)))
    ids = clients.astype(np.int32)
    return ParticipationLog.from_entries(names, times[clients, visits] - first, ids, (0, rounds))


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


@pytest.mark.parametrize("index", [1.6, 3.5])
def test_index_of_pareto_absences_is_found(index: float) -> None:
    """Some 8000 absences, of which 200 show the tail: a standard error of 0.07, three allowed.

    The log holds 20,000 rounds, a hundredfold of a mean absence, so it hardly cuts off long ones.
    """
    random = np.random.default_rng(4)
    log = draw_visits(1 + np.ceil(20 * (1 + random.pareto(index, (20, 4000)))), 20_000)
    found = measure_tail(log, "absences")
    assert found.index == pytest.approx(index, rel=0.21)
    assert found.may_lack_variance == (index < 2)


def test_absences_of_infinite_variance_are_said_beside_the_intervals(
    to_frame: Callable[[ParticipationLog], pl.DataFrame],
) -> None:
    """Counts of such visits vary by T^0.75 instead of T^0.5: 0.88 of such intervals covered."""
    random = np.random.default_rng(4)
    scales = np.geomspace(1, 12, 40)[:, None]
    log = draw_visits(1 + np.floor(scales * random.pareto(1.5, (40, 3000))), 500)
    said = [limit for limit in audit(to_frame(log)).limits if "absences are so uneven" in limit]
    assert len(said) == 1
    assert said[0].endswith("the intervals are too narrow")


@pytest.mark.parametrize("shape", [(40, 1500, 10, 0.75), (100, 1000, 80, 0.5), (50, 2000, 80, 0.5)])
def test_rounds_missed_within_sessions_are_no_heavy_tail(
    shape: tuple[int, int, int, float],
) -> None:
    """Geometric sessions and absences of some rounds; of a session, a share of the rounds has rows.

    If most absences are missed rounds, a few percent are those between sessions.
    """
    size, length, mean, share = shape
    random = np.random.default_rng(6)
    present = np.empty((length, size), dtype=bool)
    present[0] = random.random(size) < 0.5
    for t in range(1, length):
        present[t] = present[t - 1] ^ (random.random(size) < 1 / mean)
    rounds, clients = np.nonzero(present & (random.random(present.shape) < share))
    names, ids = pl.Series("client", np.arange(size)), clients.astype(np.int32)
    log = ParticipationLog.from_entries(names, rounds, ids, (0, length))
    assert not measure_tail(log, "absences").may_lack_variance
    assert estimate_rates(log, find_pattern(log)).intervals
