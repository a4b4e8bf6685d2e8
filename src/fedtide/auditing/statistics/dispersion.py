"""How much more, or less, each client's mean varies than if its rounds were independent."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.long_run_variance import (
    SpectralShape,
    compare_shapes,
    fit_shape,
    long_run_variance,
)
from fedtide.auditing.statistics.periodogram import (
    Parts,
    Periodogram,
    client_periodograms,
    series_periodogram,
)
from fedtide.auditing.statistics.runs_test import RunCounts

_SIMILAR = (0.7, 1.4)
"""A client's estimate uses the frequencies at which S / V of its group lies between these, as its
own memory may be shorter or longer."""
_MIN_RUNS = 3
"""Clients with fewer runs of participation say nothing about the spread between clients."""
_MIN_RUNS_OF_SHAPE = 5
"""Clients with fewer have flat periodograms, whatever their memory."""
_MAX_PRIOR_FREEDOM = 1000.0
_SHORTER = 1.5
"""Memory shorter than that of the others by more than this factor makes a density flatter."""
_SHRINKAGE = 4.0
"""The weight, in runs, of the common lag-1 correlation in that of a client."""
_MIN_CLIENTS, _STEPS, _MAX_RATIO = 10, 20, 20.0


@dataclass(frozen=True, eq=False)
class AlikeClients:
    """Clients whose spectral densities have one shape.

    Args:
        clients: mask, shape (N,).
        shape: of their densities together.
    """

    clients: NDArray[np.bool_]
    shape: SpectralShape


@dataclass(frozen=True, eq=False)
class Dispersion:
    """The variance of each client's mean over the rounds, relative to that of independent rounds.

    Args:
        values: D_n, the integrated autocorrelation time in rounds, shape (N,); 0 if a client
            repeats strictly.
        roots: E √D_n, the factors by which dependence changes the standard errors, (N,).
        freedom: degrees of freedom of D_n, (N,).
        uncertainty: the relative variance that the D_n have in common, (N,).
        variances: T times the variances of the means, (N,).
        means: over whole cycles, (N,).
        rounds: the number of rounds in whole cycles.
        period: of the cycle; None: no cycle.
        groups: of clients, by rate.
        frequencies: how many the log shows.
    """

    values: Floats
    roots: Floats
    freedom: Floats
    uncertainty: Floats
    variances: Floats
    means: Floats
    rounds: int
    period: int | None
    groups: list[AlikeClients]
    frequencies: int

    @property
    def long_memory(self) -> float:
        """The probability that S still grows towards lower frequencies than the log has."""
        shares = self._shares(self.variances)
        return sum(share * group.shape.long_memory for share, group in shares)

    def variance_of_mean(self, series: Floats, slopes: Floats) -> float:
        """Return the variance of the mean over the rounds of y_t = Σ_n ψ_n y_t^n.

        It is that of the normal distribution with the 95% interval of the mean. It includes the
        shift of the mean by an incomplete last cycle.

        Args:
            series: y_t, shape (T,).
            slopes: ψ, (N,), centred. A client's density enters that of y with the factor ψ_n².
        """
        found = series_periodogram(series, self.period)
        shift = float(series.mean() - found.means[0])
        used = min(group.shape.used for group in self.groups)
        shares = self._shares(slopes**2 * self.variances)
        clients = np.sum([share * group.shape.posterior for share, group in shares], axis=0)
        return long_run_variance(found.powers[0, :used], clients) / len(series) + shift**2

    def _shares(self, values: Floats) -> list[tuple[float, AlikeClients]]:
        """Return the share of each group in the sum of the clients' values, (N,)."""
        sums = [float(values[group.clients].sum()) for group in self.groups]
        total = sum(sums)
        if total <= 0:
            return [(1 / len(sums), group) for group in self.groups]
        return [(value / total, group) for value, group in zip(sums, self.groups, strict=True)]

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

    The spectral densities of all clients have one shape, unless it is likelier that the half with
    the higher rates has another one than the rest: frequent clients have most of the power, and
    would hide that rare ones have another memory, such as clients that a server leaves out for
    longer after each failure. A client's own estimate is the mean V_n of its periodogram over the
    frequencies, relative to this shape, which is flatter for clients with less memory:

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
    starts = runs.ones - runs.pairs
    predictors = _list_predictors(runs)
    varying = (spread > 1e-15) & (starts > 0)
    groups = []
    own, freedom, uncertainty = np.zeros((3, log.size))
    for clients in _split_by_rate(found, spread, runs, varying):
        chosen = clients & varying
        shape = fit_shape(found.powers[chosen], spread[chosen], found.independent)
        count = _count_similar(shape.ratios)
        uncertainty[clients] = shape.uncertainty
        if count:
            steepness = _relative_memory(np.exp(predictors[chosen, 2]), spread[chosen])[:, None]
            levels = (found.powers[chosen, :count] / shape.ratios[:count] ** steepness).mean(axis=1)
            own[chosen] = levels / (spread[chosen] + levels / found.rounds)
            freedom[chosen] = 1 / (1 / (2 * count) + 1.5 / starts[chosen])
        groups.append(AlikeClients(clients, shape))
    values, roots, freedom = _moderate(own, freedom, starts >= _MIN_RUNS, predictors)
    if not varying.any():
        values = roots = np.ones(log.size)
    values = values * (1 + uncertainty) / (1 + 2 * uncertainty)
    return Dispersion(
        values=values,
        roots=roots,
        freedom=1 / (1 / freedom + uncertainty / (2 + 4 * uncertainty)),
        uncertainty=uncertainty,
        variances=spread * values,
        means=found.means,
        rounds=found.rounds,
        period=period,
        groups=groups,
        frequencies=found.powers.shape[1],
    )


def _split_by_rate(
    found: Periodogram, spread: Floats, runs: RunCounts, varying: NDArray[np.bool_]
) -> list[NDArray[np.bool_]]:
    """Return the clients in two halves by rate if their shapes differ, or in one group, masks (N,).

    Args:
        found: the periodograms of the clients.
        spread: v_n, (N,).
        runs: of their participation.
        varying: the clients that do not repeat strictly, (N,).
    """
    often = varying & (runs.ones - runs.pairs >= _MIN_RUNS_OF_SHAPE)
    if np.count_nonzero(often) >= 2 * _MIN_CLIENTS:
        rare = runs.ones <= np.median(runs.ones[often])
        halves = [(found.powers[half], spread[half]) for half in (rare & often, often & ~rare)]
        if compare_shapes(halves, found.independent) > 0:
            return [rare, ~rare]
    return [np.ones(len(varying), dtype=np.bool_)]


def _relative_memory(times: Floats, spread: Floats) -> Floats:
    """Return min(1, 1.5 τ_n / τ), (N,): how much of the common slope the density of a client has.

    The common density is that of the clients with most power, v_n τ_n. That of clients with less
    memory is flatter: S_n(f) / V_n is about (S(f) / V)^(τ_n / τ), with τ the mean of the τ_n
    weighted by power. As the τ_n of equal clients differ by chance, only those that are clearly
    shorter count.

    Args:
        times: τ_n of Markov chains with the clients' lag-1 correlations, (N,).
        spread: v_n, (N,).
    """
    power = spread * times
    total = float(power.sum())
    if total <= 0:
        return np.ones(len(times))
    common = float((power * times).sum()) / total
    return np.minimum(_SHORTER * times / common, 1.0)


def _count_similar(ratios: Floats) -> int:
    """Return the number of lowest frequencies, at least 1 if there are any, of similar S / V."""
    near = (ratios > _SIMILAR[0]) & (ratios < _SIMILAR[1])
    return max(min(1, len(near)), int(np.argmin(np.append(near, False))))


def _moderate(
    own: Floats, freedom: Floats, often: NDArray[np.bool_], predictors: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the moderated D_n, E √D_n, and their degrees of freedom.

    A prior that matches the mean of log D (Smyth 2004) errs upwards where the d_n are understated,
    one that matches the mean of D errs downwards. A sum of √D_n must have no bias; its prior is
    half-way between them, in logarithms. That of D_n, which serves intervals, is half-way from
    there to the upper one.

    Args:
        own: D_n, shape (N,).
        freedom: d_n, (N,).
        often: the clients that the prior is estimated from, (N,).
        predictors: of log D_n, (N, k).
    """
    chosen = (freedom > 0) & (often | ~often[freedom > 0].any())
    if not chosen.any():
        return own, np.sqrt(own), np.full(len(own), 4.0)
    trend = common = _fit_trend(own, predictors, freedom)
    changing = chosen & (own > 1e-9)
    prior = 4.0
    if np.count_nonzero(changing) >= 3:
        half = freedom[changing] / 2
        logs = np.log(own[changing] / trend[changing]) + np.log(half) - special.digamma(half)
        spread = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
        prior = _MAX_PRIOR_FREEDOM
        if spread > 0:
            prior = min(2 * _inverse_trigamma(spread), _MAX_PRIOR_FREEDOM)
        shift = float(logs.mean() + special.digamma(prior / 2) - np.log(prior / 2))
        upper = trend * np.exp(shift)
        trend = np.sqrt(upper * trend * (1 - 2 / max(prior, 4.0)))
        common = np.sqrt(upper * trend)
    total = prior + freedom
    roots = _mean_roots((prior * trend + freedom * own) / total, total)
    return (prior * common + freedom * own) / total, roots, total


def _mean_roots(values: Floats, freedom: Floats) -> Floats:
    """Return E √D, more than the root of D̃: √(ν D̃ / 2) Γ((ν − 1) / 2) / Γ(ν / 2) for ν degrees."""
    half = np.maximum(freedom, 3.0) / 2
    ratio = np.sqrt(half) * np.exp(special.gammaln(half - 0.5) - special.gammaln(half))
    return np.asarray(np.sqrt(values) * ratio)


def _list_predictors(runs: RunCounts) -> Floats:
    """Return what log D_n is predicted from, shape (N, 3).

    u = log(p / (1 − p)), u², and log((1 + ρ) / (1 − ρ)), which is log D_n in a Markov chain of
    lag-1 correlation ρ; that of clients with few runs tends to that of all.
    """
    starts = runs.ones - runs.pairs
    logits = special.logit(_shrink_rates(runs.ones, starts, runs.length))
    times = np.log1p(runs.correlation) - np.log1p(-runs.correlation)
    common = float((starts * times).sum() / max(1.0, float(starts.sum())))
    times = (starts * times + _SHRINKAGE * common) / (starts + _SHRINKAGE)
    return np.stack([logits, logits**2, times], axis=1)


def _shrink_rates(ones: Floats, starts: Floats, length: int) -> Floats:
    """Return the posterior means of the rates, (N,), if run counts are Poisson.

    With gamma-distributed means of shape α (empirical Bayes), a client has its own rounds and those
    of α average runs. Otherwise, among clients of equal rates, those with more rounds would be
    predicted a larger D_n, as they had longer runs.

    Args:
        ones: the number of rounds, (N,).
        starts: the number of runs R_n, (N,).
        length: T.
    """
    mean = float(starts.mean())
    excess = float(starts.var()) - mean
    own = 0.0 if mean <= 0 or excess <= 0 else mean / (mean + mean**2 / excess)
    rates = (own * ones + (1 - own) * ones.mean()) / length
    return np.asarray(np.clip(rates, 0.5 / length, 1 - 0.5 / length))


def _fit_trend(own: Floats, predictors: Floats, freedom: Floats) -> Floats:
    """Return the mean of D given the predictors x, (N,): log E D = b_0 + b · x.

    b solves the equations of a gamma distribution, with a small penalty on its size; fewer than 10
    clients have one mean. Clients are weighted by their degrees of freedom: those with a single run
    tell little, but nothing else is known about clients as rare.

    Args:
        own: D_n, (N,).
        predictors: x, (N, k).
        freedom: d_n, (N,); of clients with 0, D_n is not known.
    """
    chosen = freedom > 0
    outcome = own[chosen]
    counts = freedom[chosen] / freedom[chosen].mean()
    mean = float((counts * outcome).mean())
    if len(outcome) < _MIN_CLIENTS or mean <= 1e-9:
        return np.full(len(own), mean)
    inside = np.clip(predictors, predictors[chosen].min(axis=0), predictors[chosen].max(axis=0))
    inside = (inside - inside[chosen].mean(axis=0)) / np.maximum(inside[chosen].std(axis=0), 0.25)
    terms = np.concatenate([np.ones((len(own), 1)), inside], axis=1)
    table = terms[chosen]
    penalty = np.diag([0.0, 1.0, 1.0, 1.0])
    matrix = np.einsum("n,ni,nj->ij", counts, table, table) + penalty
    slopes = np.zeros(4)
    slopes[0] = np.log(mean)
    for _ in range(_STEPS):
        fitted = np.einsum("ni,i->n", table, slopes)
        working = fitted + np.minimum(outcome * np.exp(-fitted), _MAX_RATIO) - 1
        slopes = np.linalg.solve(matrix, np.einsum("n,ni,n->i", counts, table, working))
    return np.asarray(np.exp(np.einsum("ni,i->n", terms, slopes)))


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
