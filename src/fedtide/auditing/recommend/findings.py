"""The parts of an audit that the ranking uses, and what they say against averaging."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.recommend.cohort_size import CohortSize, find_cohort_size
from fedtide.auditing.statistics.coverage import Coverage
from fedtide.auditing.statistics.forgetting import Forgetting
from fedtide.auditing.statistics.influence import EffectiveObjective, ObjectiveComparison
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates
from fedtide.auditing.statistics.skew import SkewEstimate
from fedtide.auditing.statistics.windows import Regularity
from fedtide.errors import quantify

WantedSource = Literal["equal", "roster", "samples"]

_MIN_WINDOWS = 8
"""Windows of amplification in a log whose swings are too slow to be seen three times."""
_SURE = 0.001
"""The level of the test for forgetting."""
_SMALL_SWING = 0.05
"""The forgetting that does not matter."""
_EXCLUDED = 0.3
"""The L1 skew that a log must exclude to show that no clients are favoured by much."""


@dataclass(frozen=True, eq=False)
class Findings:
    """The parts of an audit that the ranking uses."""

    log: ParticipationLog
    coverage: Coverage
    rates: RateEstimates
    objectives: ObjectiveComparison
    pattern: Pattern
    regularity: Regularity
    forgetting: Forgetting
    cutoff: int
    dimension: int
    wanted_source: WantedSource

    @cached_property
    def swing(self) -> list[str]:
        """What the forgetting says against averaging over the cohort, at most one sentence."""
        return describe_swing(self.log, self.forgetting)

    def objections(self, objective: EffectiveObjective) -> list[str]:
        """Return what speaks against a way of averaging, in sentences; empty: nothing does.

        Clients that never took part are no objection: no other weights would reach them.
        """
        found = _describe_bias(objective)
        recent, in_force = self.objectives.recent, self.objectives.in_force.weights
        is_in_force = float(np.abs(in_force - objective.weights).sum()) < 0.05
        if recent is not None and is_in_force and is_biased(recent.objective.correctable):
            found += [f"in the last {recent.window:,} rounds, " + _describe_skew(recent.objective)]
        return found + self.swing

    @property
    def windows(self) -> list[int]:
        """Periods of amplification to try: regular windows in whole cycles, and whole swings.

        If there are none because swings are slower than a third of the log: an eighth of the log.
        """
        cycle = self.pattern.period or 1
        swings = self.forgetting.p_value < _SURE
        ends = self.forgetting.halving_window if swings else None
        span = None if ends is None else self.log.usual_span(ends)
        wanted = [self.regularity.period, span, self.pattern.period]
        whole = [-(-window // cycle) * cycle for window in wanted if window]
        found = sorted({window for window in whole if 2 <= window <= self.log.length // 3})
        slow = self.log.length // _MIN_WINDOWS
        return found or ([slow] if swings and slow >= 2 else [])

    @cached_property
    def known_rates(self) -> list[float]:
        """p_n; for clients that never took part the upper end of their interval.

        It is at least that of independent rounds, 1 − 0.025^(1 / T): how much the clients seen
        depend on earlier rounds says nothing about those never seen.
        """
        rates = self.rates.estimate.copy()
        never = rates <= 0
        high = np.nan_to_num(self.rates.high[never], nan=0.0)
        rates[never] = np.maximum(high, 1 - 0.025 ** (1 / self.log.length))
        return [float(f"{rate:.6g}") for rate in np.minimum(rates, 1.0)]

    @cached_property
    def clients(self) -> int | tuple[str, ...]:
        """The clients' names, or N if they are 0..N − 1."""
        names = self.log.names.to_list()
        return len(names) if names == list(range(len(names))) else tuple(str(n) for n in names)

    @cached_property
    def objective(self) -> str | tuple[float, ...]:
        """`objective:` of an experiment that trains for the wanted weights."""
        if self.wanted_source == "roster":
            return tuple(float(f"{share:.6g}") for share in self.objectives.wanted)
        return "samples" if self.wanted_source == "samples" else "uniform"

    @cached_property
    def cohort(self) -> CohortSize:
        """How many clients the log asks to train in each round."""
        return find_cohort_size(self.log)

    @property
    def table_floats(self) -> int:
        """The size of a table of d numbers for every client that took part."""
        return int((self.log.counts > 0).sum()) * self.dimension


def favours_clients(objectives: ObjectiveComparison, forgetting: Forgetting) -> bool | None:
    """Return whether averaging favours some clients beyond chance; None: too few rounds to tell.

    It does if the skew of the objective in force, over the whole log or in the last rounds, is
    neither small nor explained by chance, or if that objective swings.
    """
    skews = [objectives.in_force.skew]
    if objectives.recent is not None:
        skews.append(objectives.recent.objective.skew)
    if any(map(is_biased, skews)) or has_swing(forgetting):
        return True
    return False if skews[0].interval[1] < _EXCLUDED else None  # NaN: no interval


def describe_swing(log: ParticipationLog, forgetting: Forgetting) -> list[str]:
    """Return how far the objective in force swings if it does, at most one sentence."""
    if not has_swing(forgetting):
        return []
    return [
        f"the objective in force swings: windows of {count_busy(log, forgetting.window)} differ "
        f"from the whole log by {forgetting.describe()} of the influence"
    ]


def count_busy(log: ParticipationLog, count: int) -> str:
    """Return a number of rounds in words, and that empty ones do not count if there are any."""
    every = log.nonempty_rounds == log.length
    return quantify(count, "round") + ("" if every else " with participants")


def has_swing(forgetting: Forgetting) -> bool:
    """Return whether the objective in force swings, by more than a little."""
    return forgetting.p_value < _SURE and forgetting.estimate > _SMALL_SWING


def is_biased(skew: SkewEstimate) -> bool:
    """Return whether chance does not explain the skew of an objective, and it is not small."""
    return skew.interval[0] >= 0.02 and skew.corrected >= 0.05


def _describe_bias(objective: EffectiveObjective) -> list[str]:
    """Return what the skew says against an objective, at most one sentence."""
    skew = objective.correctable
    if is_biased(skew):
        return [_describe_skew(objective)]
    high = skew.interval[1]
    if high < 0.5 or skew.corrected < 0.05:
        return []
    bound = f" of {high:.2f}" if np.isfinite(high) else ""
    return [f"this log cannot exclude that it minimises another objective, with an L1 skew{bound}"]


def _describe_skew(objective: EffectiveObjective) -> str:
    skew = objective.correctable
    low, high = skew.interval
    whose = "" if skew is objective.skew else " among the clients that took part"
    return (
        f"it minimises another objective{whose}: L1 skew {skew.corrected:.2f} ({low:.2f} to "
        f"{high:.2f}), {skew.corrected / 2:.0%} of the influence misplaced"
    )
