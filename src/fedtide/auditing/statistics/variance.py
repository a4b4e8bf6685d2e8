"""Variance of a log's means over rounds with participants when rounds are dependent."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.periodogram import Parts, sum_by_round
from fedtide.auditing.statistics.rate_estimates import (
    Dispersion,
    RateEstimates,
    estimate_dispersion,
)
from fedtide.auditing.statistics.runs import count_runs


@dataclass(frozen=True, eq=False)
class Averaging:
    """A way of averaging over the clients of each round.

    Args:
        parts: y_t^n of the participants, relative to the sum of the parts in their round.
        weights: w_n, the mean of a client's parts over the rounds that are not left out, (N,).
        scale: c_n = E[y²] / E[y], (N,); a part has the variance w_n (c_n − w_n).
    """

    parts: Parts
    weights: Floats
    scale: Floats


@dataclass(frozen=True, eq=False)
class EarlierRounds:
    """The same objective in the rounds before a part of a log.

    Args:
        variances: of means over these rounds.
        averaging: over the clients of these rounds; weights are 0 except for the lasting ones.
        dispersion: of their parts.
        lasting: mask of the clients that count, (N,): the changed rates of those that left or
            joined would look like memory.
    """

    variances: VarianceModel
    averaging: Averaging
    dispersion: Dispersion
    lasting: NDArray[np.bool_]

    def variance(self, slopes: Floats, rounds: int) -> float:
        """Return the variance that Σ ψ_n w_n would have in a number `rounds` of these rounds."""
        parts, weights = self.averaging.parts, self.averaging.weights
        mean = float((slopes * weights).sum()) / max(float(weights.sum()), 1e-300)
        centred = np.where(self.lasting, slopes - mean, 0.0)
        known = parts.count_rounds()
        return self.variances.variance(centred, parts, self.dispersion) * known / rounds


class VarianceModel:
    """Variances of means over rounds, from the lowest frequencies of the log's own series.

    Empty rounds are left out in whole cycles: weights are not means over them, and a long pause
    would dominate the lowest frequencies. The dependence between rounds needs no model, and that
    within a round (a fixed cohort size, a common cause) is contained in the series of a sum over
    the clients.

    Attributes:
        log: the rounds that count; parts are those of these rounds.

    Args:
        log: the participation log.
        pattern: of the log.
        rates: of the clients.
        at_least: a lower bound of every client's dispersion; None: no bound.
        earlier: rounds whose variance is a lower bound for that of sums over clients; None: no
            bound. A part of a log shows little of the causes that clients have in common. Its
            own rounds are not among them: slopes are the signs of gaps in the part, so their sums
            are higher within it than before it, which would look like memory.
    """

    def __init__(
        self,
        log: ParticipationLog,
        pattern: Pattern,
        rates: RateEstimates,
        at_least: Dispersion | None = None,
        earlier: EarlierRounds | None = None,
    ) -> None:
        self.log, kept = log.leave_out_idle(pattern.period or 1)
        self._rates, self._period = rates, pattern.period
        self._at_least, self._earlier = at_least, earlier
        self._runs = pattern.run_counts if len(kept) == log.length else count_runs(self.log)

    @property
    def intervals(self) -> bool:
        """Whether the log allows honest intervals; `RateEstimates.reason` says why not."""
        return self._rates.intervals

    def dispersion(self, averaging: Averaging) -> Dispersion:
        """Return the dispersion of the clients' parts of the rounds."""
        parts, weights, scale = averaging.parts, averaging.weights, averaging.scale
        stretch = self.log.length / parts.count_rounds()
        spread = np.maximum(weights * (scale - weights), 0) * stretch
        parts = replace(parts, rounds=parts.rounds * stretch)
        found = estimate_dispersion(self.log, parts, weights, spread, self._runs, self._period)
        shift = found.means - weights if self._period else np.zeros(len(weights))
        variance = np.maximum(spread / self.log.length, 1e-300)
        found = found.with_shift(np.where(spread > 1e-15, shift**2 / variance, 0.0))
        return found if self._at_least is None else found.with_minimum(self._at_least)

    def variance(self, slopes: Floats, parts: Parts, dispersion: Dispersion) -> float:
        """Return the variance of T⁻¹ Σ_t Σ_{n in S_t} c_t^n ψ_n, c the parts.

        The ψ_n must be centred: Σ ψ_n w_n = 0 for means w_n.

        Args:
            slopes: ψ, shape (N,).
            parts: c; rounds that are left out do not count in T.
            dispersion: of these parts.
        """
        series, rounds = sum_by_round(self.log, slopes, parts), parts.count_rounds()
        own = dispersion.variance_of_mean(series * (self.log.length / rounds))
        return own if self._earlier is None else max(own, self._earlier.variance(slopes, rounds))
