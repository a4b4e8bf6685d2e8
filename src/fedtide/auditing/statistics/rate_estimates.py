"""Participation rates, and how much more they vary by chance than if rounds were independent."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.distributions import student_t_isf
from fedtide.auditing.statistics.long_run_variance import (
    SpectralShape,
    fit_shape,
    long_run_variance,
)
from fedtide.auditing.statistics.pattern import MIN_ROUNDS, Pattern
from fedtide.auditing.statistics.periodogram import (
    Parts,
    client_periodograms,
    series_periodogram,
)
from fedtide.auditing.statistics.runs import RunCounts

_SIMILAR = (0.7, 1.4)
"""A client's estimate uses the frequencies at which S / V of all clients lies between these, as its
own memory may be shorter or longer."""
_MIN_RUNS = 3
"""Clients with fewer runs of participation say nothing about the spread between clients."""
_MIN_RUNS_OF_SHAPE = 5
"""Clients with fewer have flat periodograms, whatever their memory."""
_MAX_PRIOR_FREEDOM = 1000.0
_MIN_CLIENTS, _STEPS, _MAX_RATIO = 10, 20, 20.0
"""Of the fit of a trend in the dispersion."""
_LONG_MEMORY = 0.5
"""The probability of long memory above which there are no intervals."""
_MIN_DISPERSION = 1e-9
_MIN_EFFECTIVE_ROUNDS = 30
"""There are no intervals for logs with fewer effective rounds than this, due to dependence."""


@dataclass(frozen=True, eq=False)
class Dispersion:
    """The variance of each client's mean over the rounds, relative to that of independent rounds.

    Args:
        values: D_n, the integrated autocorrelation time in rounds, shape (N,); 0 if a client
            repeats strictly.
        roots: E √D_n, the factors by which dependence changes the standard errors, (N,).
        freedom: degrees of freedom of D_n, (N,).
        means: over whole cycles, (N,).
        rounds: the number of rounds in whole cycles.
        period: of the cycle; None: no cycle.
        shape: of the spectral densities of all clients together.
        frequencies: how many the log shows.
    """

    values: Floats
    roots: Floats
    freedom: Floats
    means: Floats
    rounds: int
    period: int | None
    shape: SpectralShape
    frequencies: int

    @property
    def long_memory(self) -> float:
        """The probability that S still grows towards lower frequencies than the log has."""
        return self.shape.long_memory

    def variance_of_mean(self, series: Floats) -> float:
        """Return the variance of the mean over the rounds of a sum over the clients, y_t, (T,).

        It is that of the normal distribution with the 95% interval of the mean. It includes the
        shift of the mean by an incomplete last cycle.
        """
        found = series_periodogram(series, self.period)
        shift = float(series.mean() - found.means[0])
        powers = found.powers[0, : self.shape.used]
        return long_run_variance(powers, self.shape.posterior) / len(series) + shift**2

    def with_shift(self, shift: Floats) -> Dispersion:
        """Return the same with D_n increased by the squared shift of an incomplete last cycle."""
        roots = np.sqrt(self.roots**2 + shift)
        return replace(self, values=self.values + shift, roots=roots)

    def of_clients(self, chosen: NDArray[np.bool_]) -> Dispersion:
        """Return the same with D_n and E √D_n of 0 except for the chosen clients, a mask (N,)."""
        values, roots = np.where(chosen, self.values, 0.0), np.where(chosen, self.roots, 0.0)
        return replace(self, values=values, roots=roots)

    def with_minimum(self, other: Dispersion) -> Dispersion:
        """Return the same with D_n and E √D_n at least those of another dispersion."""
        values = np.maximum(self.values, other.values)
        return replace(self, values=values, roots=np.maximum(self.roots, other.roots))


def estimate_dispersion(
    log: ParticipationLog,
    parts: Parts | None,
    means: Floats,
    spread: Floats,
    runs: RunCounts,
    period: int | None,
) -> Dispersion:
    """Return the dispersion of the clients' parts of the rounds.

    The spectral densities of all clients have one shape, in whose estimate all clients count alike:
    weighted by their power, frequent ones would hide that rare ones have another memory, such as
    clients that a server leaves out for longer after each failure. A client's own estimate is the
    mean V_n of its periodogram over the frequencies, relative to this shape:

        D_n = V_n / (v_n + V_n / T)

    since v_n, its variance in a round around the mean of the log, lacks the variance of that mean.
    D_n is moderated towards clients of similar rates (empirical Bayes; Smyth 2004): with d_n own
    degrees of freedom and a trend D_0 with d_0,

        (d_0 D_0 + d_n D_n) / (d_0 + d_n)    with d_0 + d_n degrees of freedom

    d_0 follows from the spread of log D_n between clients beyond that of their estimates. The
    varying lengths of R_n runs of participation alone leave a relative variance of 2 / R_n if they
    are geometric, and more if they are less even: 1 / d_n = 1 / 2m + 1.5 / R_n.

    The common level V is a posterior mean of relative variance u. An inverse χ² distribution of
    these moments has 4 + 2 / u degrees of freedom and the scale V (1 + u) / (1 + 2 u), which
    Student's t needs.

    Args:
        log: the participation log.
        parts: y_t^n of the participants; None: 1.
        means: of y, shape (N,).
        spread: the variance of y in a round, (N,).
        runs: of the clients' participation.
        period: of the cycle, if there is one.
    """
    found = client_periodograms(log, parts, means, period)
    varying = (spread > 1e-15) & (runs.runs > 0)
    often = varying & (runs.runs >= _MIN_RUNS_OF_SHAPE)
    shown = often if often.any() else varying
    relative = found.powers[shown] / spread[shown, None]
    shape = fit_shape(relative, np.ones(len(relative)), found.independent)
    own, freedom = np.zeros((2, log.size))
    if count := _count_similar(shape.ratios):
        levels = (found.powers[varying, :count] / shape.ratios[:count]).mean(axis=1)
        own[varying] = levels / (spread[varying] + levels / found.rounds)
        freedom[varying] = 1 / (1 / (2 * count) + 1.5 / runs.runs[varying])
    trend = _fit_trend(own, freedom, special.logit(_shrink_rates(runs)))
    values, roots, freedom = _moderate(own, freedom, runs.runs >= _MIN_RUNS, trend)
    if not varying.any():
        values = roots = np.ones(log.size)
    excess = shape.uncertainty
    return Dispersion(
        values=values * (1 + excess) / (1 + 2 * excess),
        roots=roots,
        freedom=1 / (1 / freedom + excess / (2 + 4 * excess)),
        means=found.means,
        rounds=found.rounds,
        period=period,
        shape=shape,
        frequencies=found.powers.shape[1],
    )


def _count_similar(ratios: Floats) -> int:
    """Return the number of lowest frequencies, at least 1 if there are any, of similar S / V."""
    near = (ratios > _SIMILAR[0]) & (ratios < _SIMILAR[1])
    return max(min(1, len(near)), int(np.argmin(np.append(near, False))))


def _moderate(
    own: Floats, freedom: Floats, often: NDArray[np.bool_], trend: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the moderated D_n, E √D_n, and their degrees of freedom (docs/audit-methods.md).

    A prior that matches the mean of log D (Smyth 2004) errs upwards where the d_n are understated,
    one that matches the mean of D errs downwards. A sum of √D_n must have no bias; its prior is
    half-way between them, in logarithms. That of D_n, which serves intervals, is half-way from
    there to the upper one.

    Args:
        own: D_n, shape (N,).
        freedom: d_n, (N,).
        often: the clients that the prior is estimated from, (N,).
        trend: the mean of D given the rate, (N,).
    """
    known = freedom > 0
    chosen = known & (often | ~often[known].any())
    if not chosen.any():
        return own, np.sqrt(own), np.full(len(own), 4.0)
    middle = common = trend
    changing = chosen & (own > 1e-9)
    prior = 4.0
    if np.count_nonzero(changing) >= 3:
        half = freedom[changing] / 2
        logs = np.log(own[changing] / middle[changing]) + np.log(half) - special.digamma(half)
        spread = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
        prior = _MAX_PRIOR_FREEDOM
        if spread > 0:
            prior = min(2 * _inverse_trigamma(spread), _MAX_PRIOR_FREEDOM)
        shift = float(logs.mean() + special.digamma(prior / 2) - np.log(prior / 2))
        upper = middle * np.exp(shift)
        middle = np.sqrt(upper * middle * (1 - 2 / max(prior, 4.0)))
        common = np.sqrt(upper * middle)
    total = prior + freedom
    roots = _mean_roots((prior * middle + freedom * own) / total, total)
    return (prior * common + freedom * own) / total, roots, total


def _fit_trend(own: Floats, freedom: Floats, predictor: Floats) -> Floats:
    """Return the mean of D given a predictor x, (N,): log E D = b_0 + b_1 x.

    b solves the equations of a gamma distribution, with a small penalty on the slope; fewer than 10
    clients have one mean. Clients are weighted by their degrees of freedom.

    Args:
        own: D_n, (N,).
        freedom: d_n, (N,); of clients with 0, D_n is not known.
        predictor: x, (N,).
    """
    known = freedom > 0
    if not known.any():
        return own
    outcome, weights = own[known], freedom[known] / freedom[known].mean()
    mean = float((weights * outcome).mean())
    if len(outcome) < _MIN_CLIENTS or mean <= 1e-9:
        return np.full(len(own), mean)
    inside = np.clip(predictor, predictor[known].min(), predictor[known].max())
    terms = (inside - inside[known].mean()) / max(float(inside[known].std()), 0.25)
    table = np.stack([np.ones(len(own)), terms], axis=1)
    matrix = np.einsum("n,ni,nj->ij", weights, table[known], table[known]) + np.diag([0.0, 1.0])
    slopes = np.array([np.log(mean), 0.0])
    for _ in range(_STEPS):
        fitted = table[known] @ slopes
        working = fitted + np.minimum(outcome * np.exp(-fitted), _MAX_RATIO) - 1
        slopes = np.linalg.solve(matrix, np.einsum("n,ni,n->i", weights, table[known], working))
    return np.asarray(np.exp(table @ slopes))


def _shrink_rates(runs: RunCounts) -> Floats:
    """Return the posterior means of the rates, (N,), if run counts are Poisson.

    With gamma-distributed means of shape α (empirical Bayes), a client has its own rounds and those
    of α average runs. Otherwise, among clients of equal rates, those with more rounds would be
    predicted a larger D_n, as they had longer runs.
    """
    mean = float(runs.runs.mean())
    excess = float(runs.runs.var()) - mean
    own = 0.0 if mean <= 0 or excess <= 0 else mean / (mean + mean**2 / excess)
    rates = (own * runs.ones + (1 - own) * runs.ones.mean()) / runs.length
    return np.asarray(np.clip(rates, 0.5 / runs.length, 1 - 0.5 / runs.length))


def _mean_roots(values: Floats, freedom: Floats) -> Floats:
    """Return E √D, more than the root of D̃: √(ν D̃ / 2) Γ((ν − 1) / 2) / Γ(ν / 2) for ν degrees."""
    half = np.maximum(freedom, 3.0) / 2
    ratio = np.sqrt(half) * np.exp(special.gammaln(half - 0.5) - special.gammaln(half))
    return np.asarray(np.sqrt(values) * ratio)


def _inverse_trigamma(value: float) -> float:
    """Return the x > 0 with ψ'(x) = value, by Newton's method (Smyth 2004).

    >>> round(_inverse_trigamma(1.6449340668), 6)
    1.0
    """
    x = 0.5 + 1 / value
    for _ in range(30):
        now = float(special.polygamma(1, x))
        x += now * (1 - now / value) / float(special.polygamma(2, x))
    return x


@dataclass(frozen=True, eq=False)
class RateEstimates:
    """Participation rates.

    Args:
        estimate: k_n / T, shape (N,).
        low: lower end of the 95% interval, (N,).
        high: upper end, (N,).
        dispersion: of the clients' presence.
        reason: why the log allows no honest intervals, in a sentence; None: it does.
        variation: coefficient of variation of the rates of clients that took part.
        clients_for_half: the smallest number of clients that made half of all updates.
    """

    estimate: Floats
    low: Floats
    high: Floats
    dispersion: Dispersion
    reason: str | None
    variation: float
    clients_for_half: int

    @property
    def autocorrelation_time(self) -> Floats:
        """How many rounds count as one independent round, (N,): the dispersion, at least 0.001."""
        return np.maximum(self.dispersion.values, 1e-3)

    @property
    def freedom(self) -> Floats:
        """The degrees of freedom of Student's t in the intervals, (N,)."""
        return self.dispersion.freedom

    @property
    def intervals(self) -> bool:
        """Whether the log allows honest intervals of rates, weights and skews; if not, NaN."""
        return self.reason is None


def wilson_interval(
    share: ArrayLike, draws: ArrayLike, freedom: ArrayLike = np.inf, family: int = 1
) -> tuple[Floats, Floats]:
    """Return Wilson's 95% interval of a proportion.

        (p̂ + z² / 2n ± z √( p̂ (1 − p̂) / n + z² / 4n² )) / (1 + z² / n)

    Args:
        share: p̂.
        draws: n independent draws, any positive number.
        freedom: z is the quantile of Student's t with these degrees of freedom.
        family: of so many intervals that hold together with 95% (Bonferroni).

    >>> low, high = wilson_interval(0.5, 100)
    >>> float(low.round(3)), float(high.round(3))
    (0.404, 0.596)
    """
    p, n = np.asarray(share, dtype=np.float64), np.asarray(draws, dtype=np.float64)
    z2 = student_t_isf(0.025 / family, np.maximum(freedom, 1.0)) ** 2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return np.clip(middle - half, 0, p), np.clip(middle + half, p, 1)


def estimate_rates(log: ParticipationLog, pattern: Pattern) -> RateEstimates:
    """Return every client's rate with a 95% interval.

    The interval is Wilson's for T / D_n rounds, with D_n the dispersion of the client's presence
    and the quantile of Student's t. It needs no model of the dependence between rounds: strict
    cycles and turns have D_n near 0, sessions D_n > 1. In a cyclic log it is that of whole cycles.

    Args:
        log: the participation log.
        pattern: its period and its runs are used.
    """
    estimate = log.counts / log.length
    spread = estimate * (1 - estimate)
    dispersion = estimate_dispersion(
        log, None, estimate, spread, pattern.run_counts, pattern.period
    )
    reason = _find_obstacle(log, pattern, dispersion)
    if reason is None:
        draws = dispersion.rounds / np.maximum(dispersion.values, _MIN_DISPERSION)
        low, high = wilson_interval(dispersion.means, draws, freedom=dispersion.freedom)
    else:
        low = high = np.full(log.size, np.nan)
    seen = estimate[estimate > 0]
    return RateEstimates(
        estimate=estimate,
        low=np.minimum(low, estimate),
        high=np.maximum(high, estimate),
        dispersion=dispersion,
        reason=reason,
        variation=float(seen.std() / seen.mean()),
        clients_for_half=count_clients_for_half(log.counts),
    )


def count_clients_for_half(counts: ArrayLike) -> int:
    """Return the smallest number of clients that made half of all updates.

    >>> count_clients_for_half([1, 5, 2, 2])
    1
    """
    sums = np.cumsum(np.sort(np.asarray(counts))[::-1])
    return int(np.searchsorted(sums, sums[-1] / 2)) + 1


def _find_obstacle(log: ParticipationLog, pattern: Pattern, dispersion: Dispersion) -> str | None:
    """Return why no honest interval exists, in a sentence; None if one does."""
    if log.length < MIN_ROUNDS or dispersion.frequencies == 0:
        return "the log has too few rounds to tell how much the rates vary by chance"
    if dispersion.long_memory > _LONG_MEMORY:
        return (
            "rates change, or clients stay or are away for so long that a log of this length "
            "cannot tell how much the rates vary by chance"
        )
    rounds = _count_effective_rounds(log, pattern, dispersion)
    if rounds < _MIN_EFFECTIVE_ROUNDS <= _count_effective_rounds(log, pattern, None):
        return (
            "most of the chance in the rates is due to clients that stay or are away for long, and "
            f"shows no better than in {rounds:.0f} independent rounds of one client"
        )
    return None


def _count_effective_rounds(
    log: ParticipationLog, pattern: Pattern, dispersion: Dispersion | None
) -> float:
    """Return how many independent rounds of one client tell as much about the rates' variance.

    A client's count has the variance v_n = T p_n (1 − p_n) D_n, and shows as much of it as T / D_n
    independent rounds do. All clients show as much of Σ v_n as

        (Σ v_n)² / Σ (v_n² D_n / T)    independent rounds

    D_n is at least that of a Markov chain with the client's own lag-1 correlation: periodograms do
    not show a few clients with long sessions among many others.

    Args:
        log: the participation log.
        pattern: its runs are used, unless there is a period.
        dispersion: of the clients' presence; None: 1, independent rounds.
    """
    rates = log.counts / log.length
    times = np.ones(log.size)
    if dispersion is not None:
        times = dispersion.values
        if pattern.period is None:
            own = pattern.run_counts.autocorrelation_time
            times = np.maximum(times, own / (1 + own / log.length))
    variances = rates * (1 - rates) * times
    squares = float((variances**2 * times).sum())
    return log.length * float(variances.sum()) ** 2 / squares if squares > 0 else np.inf
