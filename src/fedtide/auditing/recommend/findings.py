"""What an audit found, and what of it speaks against averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.statistics.churn import Churn
from fedtide.auditing.statistics.coverage import Coverage
from fedtide.auditing.statistics.forgetting import Forgetting
from fedtide.auditing.statistics.group_influence import GroupInfluence
from fedtide.auditing.statistics.influence import EffectiveObjective, ObjectiveComparison
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates
from fedtide.auditing.statistics.skew import SkewEstimate
from fedtide.auditing.statistics.stages import AvailabilityBias, SelectionBias
from fedtide.auditing.statistics.unseen import UnseenClients
from fedtide.auditing.statistics.windows import Regularity

WantedSource = Literal["equal", "roster", "samples"]
Objection = Literal["skew", "recent skew", "unknown skew", "swing", "turns"]

_SURE = 0.001
"""The level of the test for forgetting."""
_SMALL_SWING = 0.05
"""The forgetting that does not matter."""
_EXCLUDED = 0.3
"""The L1 skew that a log must exclude to show that no clients are favoured by much."""
_OPEN = 0.5
"""The L1 skew that a log must exclude for averaging to be advised without a question mark."""
_MIN_WINDOWS = 8
"""Windows of amplification in a log whose swings are too slow to be seen three times."""
_MOST_FLOATS = 1e10
"""A memory of more numbers than this (40 GB) is not advised."""


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """What an audit found.

    Args:
        log: the participation log.
        coverage: clients seen, absences, cohort sizes.
        rates: participation rates with confidence intervals.
        objectives: the objective of averaging, over the whole log and in its last rounds.
        even: averaging over the cohort, judged by equal weights: if it is right for these, it is
            right for any weights a_n once losses are multiplied by N a_n.
        availability: the bias of availability alone, if the log says who was available.
        selection: what selection and dropout add to it, if the log has stages.
        churn: clients that left for good or joined late: by availability, if the log says who was
            available, otherwise by participation.
        unseen: how many clients never appear in the log; None if all clients are known.
        groups: the influence of groups under the objective in force, one entry per grouping of the
            roster.
        pattern: how clients come and go: whether they have a cycle, drift and memory.
        forgetting: how far the objective in force swings.
        regularity: the regularity of windows of P rounds.
        cutoff: the cutoff K with which the weights of FedAU have the smallest error at these rates.
        wanted_source: where the wanted weights come from: "equal", the "roster" or "samples".
        dimension: the number of model parameters d.
        private: whether future training has a privacy mechanism.
        learning_rates: by method, if `training` was given.
        advice: the methods, best first; with `privacy`, only those that it accepts.
        left_out: the methods that `privacy` refuses.
    """

    log: ParticipationLog
    coverage: Coverage
    rates: RateEstimates
    objectives: ObjectiveComparison
    even: EffectiveObjective
    availability: AvailabilityBias | None
    selection: SelectionBias | None
    churn: Churn
    unseen: UnseenClients | None
    groups: list[GroupInfluence]
    pattern: Pattern
    forgetting: Forgetting
    regularity: Regularity
    cutoff: int
    wanted_source: WantedSource
    dimension: int = 1_000_000
    private: bool = False
    learning_rates: dict[str, dict[str, float]] = field(default_factory=dict)
    advice: list[Advice] = field(default_factory=list)
    left_out: list[Advice] = field(default_factory=list)

    @cached_property
    def favours_clients(self) -> bool | None:
        """Whether averaging favours some clients beyond chance; None: too few rounds to tell.

        It does if the skew of the objective in force, over the whole log or in the last rounds, is
        neither small nor explained by chance, or if that objective swings.
        """
        skews = [self.objectives.in_force.skew]
        if self.objectives.recent is not None:
            skews.append(self.objectives.recent.objective.skew)
        if any(map(is_biased, skews)) or self.swings:
            return True
        excluded = skews[0].interval[1] < _EXCLUDED and not skews[0].doubtful  # NaN: no interval
        return False if excluded else None

    @property
    def swings(self) -> bool:
        """Whether the objective in force swings, by more than a little."""
        return self.forgetting.p_value < _SURE and self.forgetting.estimate > _SMALL_SWING

    @cached_property
    def objections(self) -> list[Objection]:
        """What speaks against averaging; empty: nothing does.

        Clients that never took part are no objection: no other weights would reach them.
        """
        found, recent = list[Objection](), self.objectives.recent
        in_force = self.objectives.in_force
        judged = in_force if self.wanted_source == "samples" else self.even
        skew = judged.correctable
        if is_biased(skew):
            found.append("skew")
        elif not (skew.interval[1] < _OPEN or skew.corrected < 0.05):  # NaN: no interval
            found.append("unknown skew")
        alike = np.abs(in_force.weights - judged.weights).sum() < 0.05
        if recent is not None and alike and self.wanted_source != "roster":
            found += ["recent skew"] if is_biased(recent.objective.correctable) else []
        if self.swings:
            found.append("swing")
        if self.pattern.memory.state == "negative":
            found.append("turns")
        return found

    @property
    def may_store(self) -> bool:
        """Whether an update of every client fits on the server, and is used more than once."""
        comes_back = 2 * self.log.repeats >= len(self.log.clients)
        return comes_back and self.table_floats <= _MOST_FLOATS

    @property
    def table_floats(self) -> int:
        """The size of a table of d numbers for every client that took part."""
        return int((self.log.counts > 0).sum()) * self.dimension

    @cached_property
    def period(self) -> int | None:
        """The shortest admissible period of amplification; None: there is none.

        Admissible are windows that are about as even as the whole log, windows over which the
        swings halve, and the cycle; each in whole cycles and at most a third of the log. If swings
        are slower than that: an eighth of the log.
        """
        cycle = self.pattern.period or 1
        ends = self.forgetting.halving_window if self.swings else None
        span = None if ends is None else self.log.usual_span(ends)
        asked = [self.regularity.period, span, self.pattern.period]
        whole = [-(-window // cycle) * cycle for window in asked if window]
        found = [window for window in whole if 2 <= window <= self.log.length // 3]
        slow = self.log.length // _MIN_WINDOWS
        return min(found, default=slow if self.swings and slow >= 2 else None)

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


def is_biased(skew: SkewEstimate) -> bool:
    """Return whether chance does not explain the skew of an objective, and it is not small."""
    return not skew.doubtful and skew.interval[0] >= 0.02 and skew.corrected >= 0.05
