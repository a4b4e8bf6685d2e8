"""Forgetting: how far the objective in force swings around that of the whole log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import MIN_REPEATS, Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.distributions import student_t_isf, student_t_sf
from fedtide.auditing.statistics.influence import list_entry_weights

_LEVEL = 0.05
_FEWEST_WINDOWS, _MOST_BATCHES = 4, 16
_POINTS = 16
_MAX_ENTRIES = 100_000
"""Above this number of entries, a sample of the clients is used."""


@dataclass(frozen=True, eq=False)
class Forgetting:
    """The total-variation distance between the influence in a window and that of the whole log.

    The part that chance explains is deducted: the expectation is 0 if rounds are exchangeable, as
    independent rounds with constant rates are. With G equal groups that take turns it is 1 − 1 / G
    in windows within a turn. Only rounds with participants count: no others move a model.

    The estimates fall short of the distance where a window holds few participations per client, as
    these do not show whom it favours. So the lower ends bound the distance, while the upper ends
    bound only the mean of the estimates; the distance may be larger.

    Args:
        windows: W, in rounds with participants, ascending, shape (K,); empty for a log with fewer
            than 8 of them, or in which clients come back fewer than 10 times.
        estimates: the mean distance over the windows of W rounds, (K,).
        low: lower ends of 95% intervals of the means of the estimates, for all W together, (K,).
        high: upper ends, (K,).
        observed: the mean distance that the log shows, chance included, (K,).
        p_value: of the hypothesis of no forgetting at any W.
        window: the W with the largest lower end: the swing is clearest there.
        halving_window: the smallest longer W with at most half of that estimate; None: none has.
    """

    windows: Ints
    estimates: Floats
    low: Floats
    high: Floats
    observed: Floats
    p_value: float
    window: int
    halving_window: int | None

    @property
    def estimate(self) -> float:
        """The distance at `window`, from 0 to 1."""
        return self._at_window(self.estimates)

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the estimate at `window`, valid although `window` was chosen."""
        return self._at_window(self.low), self._at_window(self.high)

    def describe(self) -> str:
        """Return the distance at `window` in words: its lower bound and its estimate."""
        return f"at least {self.interval[0]:.0%} (97.5%; estimate {self.estimate:.0%})"

    def _at_window(self, values: Floats) -> float:
        return float(values[self.windows == self.window].sum())


def measure_forgetting(log: ParticipationLog, cycle: int | None = None) -> Forgetting:
    """Return the forgetting in windows of 2 to T / 4 of the T rounds with participants.

    With y_t^n the client's part of round t (its recorded weight, else 1 / |S_t|), w_n its mean over
    the log, K_n the sum over a window of W rounds and A_t = {n: K_n − y_t^n > (W − 1) w_n} the
    clients that the other rounds of the window favour, the distance max_A Σ_A (K_n / W − w_n) is
    estimated by cross-validation, as

        W⁻¹ Σ_t Σ_{n in A_t} (y_t^n − [T w_n − (K_n − y_t^n)] / (T − W + 1)) · (T − W + 1) / T

    The bracket is the mean of the rounds outside of the window and of round t. If rounds are
    exchangeable, round t is one of these at random, given the others, so the expectation is exactly
    0, whatever the rates, the cohort sizes and the dependence within a round. Where a window holds
    few participations per client, A_t misses some of the favoured clients and the estimate falls
    short of the distance. Intervals and tests are Student's, from means of neighbouring windows, at
    the level over the number of window lengths (Bonferroni). A p-value is at least that of a test
    of the signs of these means.

    Args:
        log: the participation log.
        cycle: the period, if there is one; its half and quarter are tried, too.
    """
    if cycle is not None:
        cycle = round(cycle * log.nonempty_rounds / log.leave_out_idle(cycle)[0].length)
    log, _ = log.leave_out_idle()
    windows = _choose_windows(log.length, cycle)
    if log.repeats < MIN_REPEATS:  # nothing shows whom a window favours
        windows = windows[:0]
    if len(windows) == 0:
        none = np.zeros(0)
        return Forgetting(windows, none, none, none, none, 1.0, 0, None)
    entries = _Entries(log)
    rows, p_values = [], []
    for window in windows.tolist():
        values, observed = entries.evaluate(window)
        mean, error, freedom = _mean_of_batches(values)
        reach = float(student_t_isf(_LEVEL / (2 * len(windows)), freedom)) * error
        rows.append((mean, mean - reach, mean + reach, observed))
        p_values.append(_p_value(mean, error, freedom))
    estimates, low, high, observed_means = np.clip(np.array(rows), 0.0, 1.0).T
    best = int(np.lexsort((estimates, low))[-1])
    ended = np.flatnonzero((windows > windows[best]) & (estimates <= estimates[best] / 2))
    return Forgetting(
        windows=windows,
        estimates=estimates,
        low=low,
        high=high,
        observed=observed_means,
        p_value=min(1.0, len(windows) * min(p_values)),
        window=int(windows[best]),
        halving_window=int(windows[ended[0]]) if len(ended) else None,
    )


class _Entries:
    """The entries by client, so that those of one client in one window are adjacent.

    Args:
        log: the participation log; of a large one, a sample of the clients is used.
    """

    def __init__(self, log: ParticipationLog) -> None:
        chosen = log.sample_clients(_MAX_ENTRIES / len(log.clients))
        counts = log.counts[chosen]
        self._length = log.length
        self._owner = np.repeat(np.arange(len(chosen)), counts)
        self._rounds = log.of_clients(log.rounds, chosen).astype(np.int64)
        shares = list_entry_weights(log, chosen)
        # Influences sum to 1 over the log; those of a sample too, as if it were all clients.
        self._shares = shares * (log.length / max(float(shares.sum()), 1e-300))
        self._sums = np.bincount(self._owner, self._shares, minlength=len(chosen))

    def evaluate(self, window: int) -> tuple[Floats, float]:
        """Return the cross-validated distance of each window, and the mean observed distance."""
        count, length = self._length // window, self._length
        number = self._rounds // window
        kept = number < count
        owner, number, shares = self._owner[kept], number[kept], self._shares[kept]
        if len(owner) == 0:
            return np.zeros(count), 0.0
        new = np.ones(len(owner), dtype=bool)
        new[1:] = (owner[1:] != owner[:-1]) | (number[1:] != number[:-1])
        starts = np.flatnonzero(new)
        segment = np.cumsum(new) - 1
        inside = np.add.reduceat(shares, starts)
        present = np.diff(np.append(starts, len(owner)))
        sums, windows = self._sums[owner[starts]], number[starts]
        bound = sums * ((window - 1) / length) * (1 + 1e-9)
        outside = (sums - inside) / (length - window + 1)
        absent = np.where(inside > bound, -outside * (window - present), 0.0)
        others = inside[segment] - shares
        favoured = others > bound[segment]
        gain = shares - (sums[segment] - others) / (length - window + 1)
        terms = absent + np.add.reduceat(np.where(favoured, gain, 0.0), starts)
        factor = (length - window + 1) / (length * window)
        values = np.bincount(windows, terms, minlength=count) * factor
        excess = np.maximum(inside / window - sums / length, 0.0)
        return np.asarray(values), float(excess.sum() / count)


def _p_value(mean: float, error: float, freedom: int) -> float:
    """Return the one-sided p-value of a mean; at least that of a test of the batches' signs."""
    if mean <= 1e-9:
        return 1.0
    p = float(student_t_sf(mean / error, freedom)) if error > 0 else 0.0
    return max(p, 0.5 ** (freedom + 1))


def _choose_windows(length: int, cycle: int | None) -> Ints:
    """Return the window lengths: a geometric grid from 2 to T / 4."""
    most = length // _FEWEST_WINDOWS
    if most < 2:
        return np.zeros(0, dtype=np.int64)
    grid: Iterable[float] = np.geomspace(2, most, _POINTS)
    extra = [] if cycle is None else [cycle / 4, cycle / 2]
    windows = np.unique(np.rint(np.array([*grid, *extra])).astype(np.int64))
    return windows[(windows >= 2) & (windows <= most)]


def _mean_of_batches(values: Floats) -> tuple[float, float, int]:
    """Return the mean, its standard error from means of neighbouring windows, and its freedom."""
    batches = min(len(values), _MOST_BATCHES)
    means = np.array([part.mean() for part in np.array_split(values, batches)])
    return float(values.mean()), float(means.std(ddof=1) / np.sqrt(batches)), batches - 1
