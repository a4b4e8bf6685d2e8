"""Which objective the training along this log really minimises, and how far it is from wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from fedtide.audit.attendance import Attendance, Floats, Ints
from fedtide.audit.bootstrap import block_bootstrap, block_length
from fedtide.audit.pattern import Pattern
from fedtide.audit.rates import Rates, wilson
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
    log: Attendance, pattern: Pattern, rates: Rates, wanted: Floats, cutoff: int, seed: int
) -> Objectives:
    """Return the objectives that the methods minimise along the log.

    The L1 skew of estimated weights is too large by their noise, by E|δ̂_n| − |δ_n| per client with
    δ_n = w_n − a_n: at most s_n √(2/π), nothing where |δ_n| is several standard errors s_n. Its
    interval therefore reaches from

        Σ |δ̂_n| − Σ bias(max(|δ̂_n| − 3 s_n, 0), s_n) − noise   up to   Σ |δ̂_n| + noise

    with the noise of the block bootstrap of the rounds' h_t = Σ sign(δ̂_n) 1[n in S_t] / |S_t|.

    Args:
        log: who took part.
        pattern: which dependence the intervals respect.
        rates: of the clients.
        wanted: a_n, (N,).
        cutoff: K of FedAU.
        seed: of the bootstrap.
    """
    weights, scale = participation_shares(log)
    block = block_length(pattern, log.held)
    share = np.minimum(weights / scale, 1.0)
    low, high = wilson(share, log.held / rates.time)
    errors = np.sqrt(np.maximum(weights * (scale - weights), 0) * rates.time / log.held)
    plain = _objective(log, "fedavg", weights, wanted, errors, block, seed)
    others = _others(log, rates, wanted, cutoff, block, seed)
    chance = float(np.sqrt(log.size * (errors**2).sum()))
    return Objectives(plain, others, wanted, low * scale, high * scale, block, chance)


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
    seed: int,
) -> Objective:
    gaps = weights - wanted
    skew = float(np.abs(gaps).sum())
    series = _per_round(log, np.sign(gaps)) * log.shares
    deviations = block_bootstrap(series[log.cohorts > 0][:, None], block, seed)[:, 0]
    down, up = np.quantile(deviations, [0.025, 0.975])
    bias = float(_folded_bias(np.maximum(np.abs(gaps) - 3 * errors, 0), errors).sum())
    ends = (max(0.0, skew - bias - float(up)), min(2.0, skew - float(down)))
    return Objective(method, weights, skew, ends)


def _others(
    log: Attendance, rates: Rates, wanted: Floats, cutoff: int, block: int, seed: int
) -> list[Objective]:
    seen = (log.counts > 0).astype(np.float64)
    fedau = fedau_weights(log, cutoff)
    certain = seen / seen.sum()
    known = float(np.abs(certain - wanted).sum())
    return [
        _summed(log, "average-all", rates.estimate, rates, wanted, block, seed),
        _summed(log, f"fedau({cutoff})", fedau, rates, wanted, block, seed),
        Objective("known-rates", certain, known, (known, known)),
    ]


def _summed(
    log: Attendance,
    method: str,
    sums: Floats,
    rates: Rates,
    wanted: Floats,
    block: int,
    seed: int,
) -> Objective:
    """Return the objective of a method that adds up updates with a weight each, Σ ω_n 1[n in S_t].

    ω_n is taken as given in the interval, which for FedAU is too wide: its weights make up for the
    chance with which a client came.
    """
    each = np.divide(sums, rates.estimate, out=np.zeros(len(sums)), where=rates.estimate > 0)
    weights = sums / sums.sum()
    gaps = weights - wanted
    skew = float(np.abs(gaps).sum())
    slope = each / sums.sum() * (np.sign(gaps) - float(np.sign(gaps) @ weights))
    deviations = block_bootstrap(_per_round(log, slope)[:, None], block, seed)[:, 0]
    down, up = np.quantile(deviations, [0.025, 0.975])
    p = rates.estimate
    errors = each * np.sqrt(p * (1 - p) * rates.time / log.length) / sums.sum()
    bias = float(_folded_bias(np.maximum(np.abs(gaps) - 3 * errors, 0), errors).sum())
    ends = (max(0.0, skew - bias - float(up)), min(2.0, skew - float(down)))
    return Objective(method, weights, skew, ends)


def _per_round(log: Attendance, values: Floats) -> Floats:
    """Return the sum of the values of each round's participants, shape (T,)."""
    sums = np.zeros(log.length)
    step = max(1, (1 << 22) * log.length // max(1, len(log.clients)))
    for low in range(0, log.length, step):
        high = min(low + step, log.length)
        part = log.clients[log.starts[low] : log.starts[high]]
        held = log.starts[low:high] < log.starts[low + 1 : high + 1]
        if held.any():
            begins = log.starts[low:high][held] - log.starts[low]
            sums[low:high][held] = np.add.reduceat(values[part], begins)
    return sums


def _folded_bias(center: Floats, error: Floats) -> Floats:
    """Return E|X| − |center| for X normal with this centre and standard deviation."""
    ratio = np.divide(center, error, out=np.full(len(center), np.inf), where=error > 0)
    return np.asarray(2 * error * stats.norm.pdf(ratio) - 2 * center * stats.norm.sf(ratio))


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
