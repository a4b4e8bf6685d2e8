"""Which objective the training along this log really minimises, and how far it is from wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.audit.attendance import Attendance, Floats, Ints
from fedtide.audit.bootstrap import block_bootstrap, block_length, block_variance
from fedtide.audit.pattern import Pattern
from fedtide.audit.rates import Rates, wilson
from fedtide.audit.skew import skew_interval
from fedtide.audit.weights import fedau_weights, participation_shares


@dataclass(frozen=True, eq=False)
class Objective:
    """The weights w_n of the objective Σ w_n F_n that a method minimises along the log.

    Args:
        method: of averaging.
        weights: w_n, shape (N,), summing to 1.
        l1_skew: Σ |w_n − a_n| with a_n the wanted weights: 0 to 2.
        interval: 95 % for the L1 skew.
    """

    method: str
    weights: Floats
    l1_skew: float
    interval: tuple[float, float]

    @property
    def total_variation(self) -> float:
        """Half of the L1 skew: which share of the influence is in the wrong place."""
        return self.l1_skew / 2


@dataclass(frozen=True, eq=False)
class Objectives:
    """What plain averaging over the cohort minimises, and what other averages would.

    Args:
        plain: of averaging over the cohort (FedAvg).
        others: of averaging over all, FedAU and known rates.
        given: of the log's own weights q_t^n, w_n ∝ Σ_t q_t^n, where it has them.
        wanted: a_n, (N,).
        low: lower end of a 95 % interval of each plain weight, (N,).
        high: upper end, (N,).
        block: how many rounds a block of the bootstrap holds.
        chance: √(N Σ s_n²), with s_n the standard error of each plain weight.
    """

    plain: Objective
    others: list[Objective]
    wanted: Floats
    low: Floats
    high: Floats
    block: int
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
    log: Attendance, pattern: Pattern, rates: Rates, wanted: Floats, cutoff: int
) -> Objectives:
    """Return the objectives that the methods minimise along the log.

    The L1 skews' intervals are `skew_interval`'s, with the standard error of each weight

        s_n² = w_n (c_n − w_n) τ_n / T⁺        (c_n: `participation_shares`; τ_n: `Rates.time`)

    and the block bootstrap of the rounds' h_t = Σ ψ_n 1[n in S_t] / |S_t|.

    Args:
        log: who took part.
        pattern: which dependence the intervals respect.
        rates: of the clients.
        wanted: a_n, (N,).
        cutoff: K of FedAU.
    """
    weights, scale = participation_shares(log)
    block = block_length(pattern, log.held)
    share = np.minimum(weights / scale, 1.0)
    low, high = wilson(share, log.held / rates.time)
    errors = np.sqrt(np.maximum(weights * (scale - weights), 0) * rates.time / log.held)
    plain = _objective(log, "fedavg", weights, wanted, errors, block)
    others = _others(log, rates, wanted, cutoff, block)
    chance = float(np.sqrt(log.size * (errors**2).sum()))
    given = _given(log, rates, wanted, block) if log.weights is not None else None
    return Objectives(plain, others, wanted, low * scale, high * scale, block, chance, given)


def group_shares(
    log: Attendance,
    pattern: Pattern,
    absences: Ints,
    rates: Rates,
    objectives: Objectives,
    groupings: dict[str, pl.Series],
    seed: int,
) -> list[GroupShares]:
    """Return how much each group of each grouping counts in plain averaging."""
    return [
        _group(log, pattern, absences, rates, objectives, name, labels, seed)
        for name, labels in groupings.items()
    ]


def _objective(
    log: Attendance,
    method: str,
    weights: Floats,
    wanted: Floats,
    errors: Floats,
    block: int,
) -> Objective:
    gaps = weights - wanted
    held = log.cohorts > 0

    def variance(slopes: Floats) -> Floats:
        series = [_per_round(log, slope) * log.shares for slope in slopes.T]
        return block_variance(np.stack(series, axis=1)[held], block)

    interval = skew_interval(gaps, errors, variance)
    return Objective(method, weights, float(np.abs(gaps).sum()), interval)


def _others(
    log: Attendance, rates: Rates, wanted: Floats, cutoff: int, block: int
) -> list[Objective]:
    seen = (log.counts > 0).astype(np.float64)
    fedau = fedau_weights(log, cutoff)
    certain = seen / seen.sum()
    known = float(np.abs(certain - wanted).sum())
    return [
        _summed(log, "average-all", rates.estimate, rates, wanted, block),
        _summed(log, f"fedau({cutoff})", fedau, rates, wanted, block),
        Objective("known-rates", certain, known, (known, known)),
    ]


def _summed(
    log: Attendance,
    method: str,
    sums: Floats,
    rates: Rates,
    wanted: Floats,
    block: int,
) -> Objective:
    """Return the objective of a method that adds up updates with a weight each, Σ ω_n 1[n in S_t].

    ω_n is taken as given in the interval, which for FedAU is too wide: its weights make up for the
    chance with which a client came.
    """
    each = np.divide(sums, rates.estimate, out=np.zeros(len(sums)), where=rates.estimate > 0)
    each /= sums.sum()
    weights = sums / sums.sum()
    gaps = weights - wanted

    def variance(slopes: Floats) -> Floats:
        series = [_per_round(log, each * (slope - slope @ weights)) for slope in slopes.T]
        return block_variance(np.stack(series, axis=1), block)

    p = rates.estimate
    errors = each * np.sqrt(p * (1 - p) * rates.time / log.length)
    interval = skew_interval(gaps, errors, variance)
    return Objective(method, weights, float(np.abs(gaps).sum()), interval)


def _given(log: Attendance, rates: Rates, wanted: Floats, block: int) -> Objective | None:
    """Return the objective of the log's own weights; None where they are all 0."""
    assert log.weights is not None
    sums = np.bincount(log.clients, log.weights, minlength=log.size)
    total = float(sums.sum())
    if total <= 0:
        return None
    squares = np.bincount(log.clients, log.weights.astype(np.float64) ** 2, minlength=log.size)
    weights = sums / total
    spread = np.maximum(squares - sums**2 / log.length, 0) * rates.time

    def variance(slopes: Floats) -> Floats:
        lines = [slope - float(slope @ weights) for slope in slopes.T]
        series = [_per_round(log, line, log.weights) for line in lines]
        return block_variance(np.stack(series, axis=1) * (log.length / total), block)

    interval = skew_interval(weights - wanted, np.sqrt(spread) / total, variance)
    return Objective("given", weights, float(np.abs(weights - wanted).sum()), interval)


def _per_round(
    log: Attendance, values: Floats, weights: NDArray[np.float32] | None = None
) -> Floats:
    """Return the sum of the values, times the weights, of each round's participants, (T,)."""
    sums = np.zeros(log.length)
    step = max(1, (1 << 22) * log.length // max(1, len(log.clients)))
    for low in range(0, log.length, step):
        high = min(low + step, log.length)
        part = log.clients[log.starts[low] : log.starts[high]]
        held = log.starts[low:high] < log.starts[low + 1 : high + 1]
        if held.any():
            begins = log.starts[low:high][held] - log.starts[low]
            found = values[part]
            if weights is not None:
                found = found * weights[log.starts[low] : log.starts[high]]
            sums[low:high][held] = np.add.reduceat(found, begins)
    return sums


def _group(
    log: Attendance,
    pattern: Pattern,
    absences: Ints,
    rates: Rates,
    objectives: Objectives,
    grouping: str,
    labels: pl.Series,
    seed: int,
) -> GroupShares:
    names, codes = np.unique(labels.to_numpy(), return_inverse=True)
    size = len(names)

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(codes, weights=values, minlength=size))

    series = np.stack([_per_round(log, (codes == g).astype(np.float64)) for g in range(size)], 1)
    series = (series * log.shares[:, None])[log.cohorts > 0]
    deviations = block_bootstrap(series, objectives.block, seed)
    weights, sizes = total(objectives.plain.weights), total(np.ones(len(codes)))
    return GroupShares(
        grouping=grouping,
        names=[str(name) for name in names],
        sizes=sizes,
        wanted=total(objectives.wanted),
        weights=weights,
        low=np.maximum(weights - np.quantile(deviations, 0.975, axis=0), 0),
        high=np.minimum(weights - np.quantile(deviations, 0.025, axis=0), 1),
        rates=total(rates.estimate) / sizes,
        never=total((log.counts == 0).astype(np.float64)),
        absence=_longest(np.where(log.counts > 0, absences, 0), codes, size),
        patterns=[_commonest(pattern.clients[codes == g]) for g in range(size)],
    )


def _longest(absences: Ints, codes: Ints, size: int) -> Ints:
    longest = np.zeros(size, dtype=np.int64)
    np.maximum.at(longest, codes, absences)
    return longest


def _commonest(families: NDArray[np.str_]) -> str:
    names, counts = np.unique(families, return_counts=True)
    return str(names[np.argmax(counts)])
