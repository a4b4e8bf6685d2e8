"""Which objective the training along this log really minimises, and how far it is from wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import Rates, wilson
from fedtide.auditing.statistics.skew import Skew, estimate_skew
from fedtide.auditing.statistics.variance import Noise, Parts
from fedtide.auditing.statistics.weights import fedau_weights, participation_shares


@dataclass(frozen=True, eq=False)
class Objective:
    """The weights w_n of the objective Σ w_n F_n that a method minimises along the log.

    Args:
        method: of averaging.
        weights: w_n, shape (N,), summing to 1.
        skew: Σ |w_n − a_n| with a_n the wanted weights, 0 to 2: of this log, and what it says of
            the process behind it.
    """

    method: str
    weights: Floats
    skew: Skew

    @property
    def l1_skew(self) -> float:
        """Σ |w_n − a_n| of this log."""
        return self.skew.found

    @property
    def interval(self) -> tuple[float, float]:
        """95 % for the L1 skew of the process behind the log."""
        return self.skew.interval

    @property
    def total_variation(self) -> float:
        """Half of the L1 skew: which share of the influence is in the wrong place."""
        return self.l1_skew / 2


@dataclass(frozen=True, eq=False)
class EffectiveObjectives:
    """What plain averaging over the cohort minimises, and what other averages would.

    Args:
        plain: of averaging over the cohort (FedAvg).
        others: of averaging over all, FedAU and known rates.
        given: of the log's own weights q_t^n, w_n ∝ Σ_t q_t^n, where it has them.
        wanted: a_n, (N,).
        low: lower end of a 95 % interval of each plain weight, (N,).
        high: upper end, (N,).
        chance: √(N Σ s_n²), with s_n the standard error of each plain weight.
    """

    plain: Objective
    others: list[Objective]
    wanted: Floats
    low: Floats
    high: Floats
    chance: float
    given: Objective | None = None


@dataclass(frozen=True, eq=False)
class GroupShares:
    """How much each group counts in plain averaging.

    Args:
        grouping: its name.
        names: of the groups, shape (G,).
        sizes: how many clients, (G,).
        wanted: the sum of the wanted weights, (G,).
        weights: the sum of the plain weights, (G,).
        low: lower end of a 95 % interval of `weights`, (G,).
        high: upper end, (G,).
        rates: the mean participation rate, (G,).
        never: how many of its clients never came, (G,).
        absence: the longest absence of those who came, (G,); 0 where nobody did.
        patterns: the most frequent pattern of its clients, (G,).
    """

    grouping: str
    names: list[str]
    sizes: Floats
    wanted: Floats
    weights: Floats
    low: Floats
    high: Floats
    rates: Floats
    never: Floats
    absence: Ints
    patterns: list[str]

    @property
    def ratios(self) -> Floats:
        """How many times its wanted share each group counts, (G,)."""
        return self.weights / np.maximum(self.wanted, 1e-300)


def find_objectives(
    log: ParticipationLog, noise: Noise, rates: Rates, wanted: Floats, cutoff: int
) -> EffectiveObjectives:
    """Return the objectives that the methods minimise along the log.

    A client's part y of a round, 0 where it does not come, has the variance w_n (c_n − w_n), with
    c_n = E[y²] / E[y]: with cohorts of one size M it is 1 / M, and y / c_n a coin. So weights have
    the standard errors

        s_n² = w_n (c_n − w_n) τ_n / T,    τ_n of `Noise.times`

    Args:
        log: who took part.
        noise: of means over the log's rounds.
        rates: of the clients.
        wanted: a_n, (N,).
        cutoff: K of FedAU.
    """
    weights, scale = participation_shares(log)
    share = np.minimum(weights / scale, 1.0)
    time = noise.times(weights, scale, log.held)
    low, high = wilson(share, log.held / time, freedom=rates.freedom)
    errors = _errors(weights, scale, time / log.held)
    return EffectiveObjectives(
        plain=_objective("fedavg", weights, scale, wanted, noise, log.shares),
        others=[
            _summed(log, "average-all", rates.estimate, rates, wanted, noise),
            _summed(log, f"fedau({cutoff})", fedau_weights(log, cutoff), rates, wanted, noise),
            _known(log, wanted),
        ],
        wanted=wanted,
        low=np.minimum(low * scale, weights),
        high=np.maximum(high * scale, weights),
        chance=float(np.sqrt(log.size * (errors**2).sum())),
        given=_given(log, wanted, noise) if log.weights is not None else None,
    )


def group_shares(
    log: ParticipationLog,
    pattern: Pattern,
    noise: Noise,
    absences: Ints,
    rates: Rates,
    objectives: EffectiveObjectives,
    groupings: dict[str, pl.Series],
) -> list[GroupShares]:
    """Return how much each group of each grouping counts in plain averaging."""
    return [
        _group(log, pattern, noise, absences, rates, objectives, name, labels)
        for name, labels in groupings.items()
    ]


def _errors(weights: Floats, scale: Floats, time: Floats) -> Floats:
    return np.asarray(np.sqrt(np.maximum(weights * (scale - weights), 0) * time))


def _objective(
    method: str,
    weights: Floats,
    scale: Floats,
    wanted: Floats,
    noise: Noise,
    parts: Parts,
    each: Floats | None = None,
) -> Objective:
    """Return the objective of weights that are the mean of what clients get in the rounds.

    Args:
        method: of averaging.
        weights: w_n.
        scale: c_n.
        wanted: a_n.
        noise: of means over the rounds.
        parts: what everyone who comes gets in a round, (T,), or each entry, (E,).
        each: how many times that a client gets; None: once.
    """
    rounds = noise.rounds(parts)
    time = noise.times(weights, scale, rounds)

    def errors(assumed: Floats) -> Floats:
        return _errors(assumed, scale, time / rounds)

    def variance(slopes: Floats) -> float:
        return noise.variance(slopes if each is None else slopes * each, parts)

    return Objective(method, weights, estimate_skew(weights, wanted, errors, variance))


def _summed(
    log: ParticipationLog, method: str, sums: Floats, rates: Rates, wanted: Floats, noise: Noise
) -> Objective:
    """Return the objective of a method that adds up updates with a weight each, Σ ω_n 1[n in S_t].

    ω_n is taken as given in the interval. FedAU's is not, but Σ_t ω_t^n over k intervals of mean μ
    and variance σ² varies by k σ², relative to its square just as much as k does.
    """
    each = np.divide(sums, rates.estimate, out=np.zeros(len(sums)), where=rates.estimate > 0)
    each /= sums.sum()
    ones = np.ones(log.length)
    return _objective(method, sums / sums.sum(), each, wanted, noise, ones, each)


def _known(log: ParticipationLog, wanted: Floats) -> Objective:
    """Return the objective of the very rates of this log: everyone who came counts alike."""
    seen = (log.counts > 0).astype(np.float64)
    left = float(np.abs(seen / seen.sum() - wanted).sum())
    return Objective("known-rates", seen / seen.sum(), Skew(left, left, (left, left)))


def _given(log: ParticipationLog, wanted: Floats, noise: Noise) -> Objective | None:
    """Return the objective of the log's own weights; None where they are all 0."""
    assert log.weights is not None
    sums = np.bincount(log.clients, log.weights, minlength=log.size)
    total = float(sums.sum())
    if total <= 0:
        return None
    squares = np.bincount(log.clients, log.weights.astype(np.float64) ** 2, minlength=log.size)
    mean = np.divide(squares, sums, out=np.full(log.size, squares.sum() / total), where=sums > 0)
    parts = log.weights * (log.length / total)
    return _objective("given", sums / total, mean * log.length / total, wanted, noise, parts)


def _group(
    log: ParticipationLog,
    pattern: Pattern,
    noise: Noise,
    absences: Ints,
    rates: Rates,
    objectives: EffectiveObjectives,
    grouping: str,
    labels: pl.Series,
) -> GroupShares:
    names, codes = np.unique(labels.to_numpy(), return_inverse=True)
    size = len(names)

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(codes, weights=values, minlength=size))

    weights, sizes = total(objectives.plain.weights), total(np.ones(len(codes)))
    found = [noise.variance((codes == g) - weights[g], log.shares) for g in range(size)]
    low, high = _around(weights, np.array(found), log.held)
    return GroupShares(
        grouping=grouping,
        names=[str(name) for name in names],
        sizes=sizes,
        wanted=total(objectives.wanted),
        weights=weights,
        low=low,
        high=high,
        rates=total(rates.estimate) / sizes,
        never=total((log.counts == 0).astype(np.float64)),
        absence=_longest(np.where(log.counts > 0, absences, 0), codes, size),
        patterns=[_commonest(pattern.clients[codes == g]) for g in range(size)],
    )


def _around(shares: Floats, variances: Floats, rounds: int) -> tuple[Floats, Floats]:
    """Return Wilson's intervals of shares with these variances: of as many draws as they imply."""
    spread = shares * (1 - shares)
    draws = np.where(spread > 1e-12, np.inf, rounds)
    draws = np.divide(spread, variances, out=draws, where=(variances > 0) & (spread > 1e-12))
    low, high = wilson(shares, draws)
    return np.minimum(low, shares), np.maximum(high, shares)


def _longest(absences: Ints, codes: Ints, size: int) -> Ints:
    longest = np.zeros(size, dtype=np.int64)
    np.maximum.at(longest, codes, absences)
    return longest


def _commonest(families: NDArray[np.str_]) -> str:
    names, counts = np.unique(families, return_counts=True)
    return str(names[np.argmax(counts)])
