"""Influence of groups of clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.coverage import Coverage
from fedtide.auditing.statistics.influence import (
    ObjectiveComparison,
    divide_by_wanted,
    find_averaging,
)
from fedtide.auditing.statistics.rate_estimates import Dispersion, RateEstimates, wilson_interval
from fedtide.auditing.statistics.variance import VarianceModel


@dataclass(frozen=True, eq=False)
class GroupInfluence:
    """The influence of each group under the objective in force.

    Args:
        grouping: the column of the client table.
        names: of the groups, shape (G,).
        sizes: the number of clients, (G,).
        wanted: the sum of the wanted weights, (G,).
        weights: the sum of the weights in force, (G,).
        low: lower end of a 95% interval of `weights`, (G,).
        high: upper end, (G,).
        rates: the mean participation rate, (G,).
        never: the number of clients that never took part, (G,).
        absence: the longest absence of clients that took part, (G,); 0 if none did.
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

    @property
    def ratios(self) -> Floats:
        """Each group's weight over its wanted weight, (G,); NaN if that is 0."""
        return divide_by_wanted(self.weights, self.wanted)


def measure_group_influence(
    grouping: str,
    labels: pl.Series,
    log: ParticipationLog,
    coverage: Coverage,
    rates: RateEstimates,
    objectives: ObjectiveComparison,
    variances: VarianceModel,
) -> GroupInfluence:
    """Return the influence of each group; `labels` names the group of each client, (N,)."""
    names, codes = np.unique(labels.to_numpy(), return_inverse=True)
    size = len(names)

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(codes, weights=values, minlength=size))

    weights, sizes = total(objectives.in_force.weights), total(np.ones(len(codes)))
    low, high = _intervals(weights, codes, variances, objectives.dispersion)
    absence = np.zeros(size, dtype=np.int64)
    np.maximum.at(absence, codes, np.where(log.counts > 0, coverage.absences, 0))
    return GroupInfluence(
        grouping=grouping,
        names=[str(name) for name in names],
        sizes=sizes,
        wanted=total(objectives.wanted),
        weights=weights,
        low=low,
        high=high,
        rates=total(rates.estimate) / sizes,
        never=total((log.counts == 0).astype(np.float64)),
        absence=absence,
    )


def _intervals(
    shares: Floats, codes: Ints, variances: VarianceModel, dispersion: Dispersion
) -> tuple[Floats, Floats]:
    """Return Wilson's intervals with the number of draws that the variances imply."""
    parts = find_averaging(variances.log).parts
    if not variances.intervals:
        return np.full(len(shares), np.nan), np.full(len(shares), np.nan)
    noise = np.array(
        [
            variances.variance((codes == g) - share, parts, dispersion)
            for g, share in enumerate(shares)
        ]
    )
    spread = shares * (1 - shares)
    draws = np.where(spread > 1e-12, np.inf, parts.count_rounds())
    draws = np.divide(spread, noise, out=draws, where=(noise > 0) & (spread > 1e-12))
    low, high = wilson_interval(shares, draws)
    return np.minimum(low, shares), np.maximum(high, shares)
