"""Variance of a log's means over rounds with participants when rounds are dependent."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.dispersion import Dispersion, estimate_dispersion
from fedtide.auditing.statistics.long_run_variance import Parts, sum_by_round
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates
from fedtide.auditing.statistics.runs_test import count_runs


class VarianceModel:
    """Variances of means over rounds, from the lowest frequencies of the log's own series.

    Empty rounds are left out in whole cycles: weights are no means over them, and a long pause
    would be all that the lowest frequencies show. The dependence between rounds needs no model, and
    the dependence within a round (a fixed cohort size, a common cause) is in the series of a sum
    over the clients.

    Attributes:
        log: the rounds that count; parts are those of these rounds.

    Args:
        log: the participation log.
        pattern: of the log.
        rates: of the clients.
        at_least: a dispersion that no client's falls below; None: no bound.
    """

    def __init__(
        self,
        log: ParticipationLog,
        pattern: Pattern,
        rates: RateEstimates,
        at_least: Dispersion | None = None,
    ) -> None:
        self.log, kept = log.leave_out_idle(pattern.period or 1)
        self._rates, self._at_least, self._period = rates, at_least, pattern.period
        self._is_whole = len(kept) == log.length
        self._runs = pattern.run_counts if self._is_whole else count_runs(self.log)

    @property
    def intervals(self) -> bool:
        """Whether the log allows honest intervals; `RateEstimates.reason` says why not."""
        return self._rates.intervals

    @cached_property
    def presence(self) -> Dispersion:
        """The dispersion of presence."""
        if self._is_whole:
            return self._rates.dispersion
        rates = self.log.counts / self.log.length
        spread = rates * (1 - rates)
        return estimate_dispersion(self.log, None, rates, spread, self._runs, self._period)

    def dispersion(self, parts: Parts, weights: Floats, scale: Floats) -> Dispersion:
        """Return the dispersion of the clients' parts of the rounds.

        Args:
            parts: of each participant in a round, (T,), or of each entry, (E,); a part is relative
                to the sum of the parts in its round.
            weights: the mean w_n of a client's parts over the rounds of nonzero parts, (N,).
            scale: c_n = E[part²] / E[part], (N,); a part has the variance w_n (c_n − w_n).
        """
        stretch = self.log.length / self.count_rounds(parts)
        spread = np.maximum(weights * (scale - weights), 0) * stretch
        found = estimate_dispersion(
            self.log, parts * stretch, weights, spread, self._runs, self._period
        )
        shift = found.means - weights if self._period else np.zeros(len(weights))
        variance = np.maximum(spread / self.log.length, 1e-300)
        found = found.with_shift(np.where(spread > 1e-15, shift**2 / variance, 0.0))
        return found if self._at_least is None else found.with_minimum(self._at_least)

    def variance(self, slopes: Floats, parts: Parts, dispersion: Dispersion) -> float:
        """Return the variance of T⁻¹ Σ_t Σ_{n in S_t} c_t^n ψ_n, c the parts.

        The ψ_n must be centred: Σ ψ_n w_n = 0 for means w_n.

        Args:
            slopes: ψ, shape (N,).
            parts: c; rounds of parts 0 are left out, also of T.
            dispersion: of these parts.
        """
        of_rounds = len(parts) == self.log.length
        sums = sum_by_round(self.log, slopes, None if of_rounds else parts)
        series = sums * parts if of_rounds else sums
        stretch = self.log.length / self.count_rounds(parts)
        return dispersion.variance_of_mean(series * stretch, slopes)

    def count_rounds(self, parts: Parts) -> int:
        """Return T, the number of rounds of nonzero parts."""
        of_rounds = len(parts) == self.log.length
        return int(np.count_nonzero(parts)) if of_rounds else self.log.length
