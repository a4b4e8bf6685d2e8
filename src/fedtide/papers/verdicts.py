"""The rule that judges a claim by the records: intervals over the seeds, and what they show.

The page of results has the rule in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import quantify
from fedtide.papers.claims import Claim
from fedtide.papers.paper_spec import MAIN
from fedtide.student_interval import t_margin

Outcome = Literal["reproduced", "not reproduced", "undecided", "partly tested", "not tested"]
State = Literal["holds", "fails", "undecided", "not run"]
"""What the runs say about one comparison of a claim."""

Floats = NDArray[np.float64]

LEVEL = 0.95
"""The confidence level of the printed intervals, and of a verdict as a whole."""


@dataclass(frozen=True)
class Measurements:
    """The measured and printed numbers of one measure at one scale.

    Args:
        values: from case and method to the number of each seed; None: there is none, because the
            run diverged or never reached a target.
        printed: the printed number of a case and method, if any.
        higher: whether higher is better.
        seeds: how many seeds a comparison needs.
        digits: decimals of the numbers.
    """

    values: Callable[[str, str], Mapping[int, float | None]]
    printed: Callable[[str, str], float | None]
    higher: bool
    seeds: int = 3
    digits: int = 2

    @property
    def worst(self) -> float:
        """What counts where a run gives no number."""
        return -math.inf if self.higher else math.inf


@dataclass(frozen=True)
class Region:
    """Where a claim says that a number lies: an open half-line, or a closed margin."""

    low: float
    high: float

    def contains(self, number: float) -> bool:
        """Return whether the number lies where the claim says."""
        if math.isinf(self.low):
            return number < self.high
        return number > self.low if math.isinf(self.high) else self.low <= number <= self.high

    def misses(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies outside the region."""
        around = low < self.low <= self.high < high
        return not (self.contains(low) or self.contains(high) or around)

    def describe(self, digits: int) -> str:
        """Return the claimed size or margin as text; empty where only the sign is claimed."""
        if np.isfinite(self.low + self.high):
            return f", claimed {self.low:.{digits}f} to {self.high:.{digits}f}"
        bound, side = (self.high, "below") if math.isinf(self.low) else (self.low, "above")
        return f", claimed {side} {bound:.{digits}f}" if bound else ""

    def slack(self, low: float, high: float) -> float:
        """Return how far the interval's worse end is inside the region.

        An open end of the region is infinitely far away, also from an infinite number.
        """
        below = math.inf if math.isinf(self.low) else low - self.low
        above = math.inf if math.isinf(self.high) else self.high - high
        return float(np.minimum(below, above))  # NaN if either is


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim.

    Args:
        numbers: the measured number of each seed, the logarithm of a ratio; infinite: one of the
            two gives no number.
        state: whether it holds.
        text: label, mean, interval and seeds, in words.
        strength: larger, the more clearly it holds.
    """

    numbers: tuple[float, ...]
    state: State
    text: str
    strength: tuple[int, float]


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim.

    Args:
        outcome: one of the five outcomes.
        summary: the numbers of the weakest comparison, in words; empty where nothing was run.
        comparisons: all comparisons of the claim.
        complete: whether all of them were run with enough seeds.
    """

    outcome: Outcome
    summary: str = ""
    comparisons: tuple[Comparison, ...] = ()
    complete: bool = False

    @property
    def settled(self) -> bool:
        """Whether runs that are still missing cannot change it: complete, or decided by a part."""
        return self.complete or self.outcome in ("reproduced", "not reproduced")


def judge(claim: Claim, cases: Sequence[str], measurements: Measurements) -> Verdict:
    """Return what the runs say about a claim.

    A claim with comparisons that were not run is partly tested, with one exception: a failure
    refutes it, and where some comparison suffices a success proves it, whatever the missing runs
    would give. The correction counts them, so the level of the verdict does not depend on which
    were run.

    Args:
        claim: the claim.
        cases: the cases of the paper that have the claim's methods, whether they were run or not.
        measurements: the numbers.
    """
    samples = _samples(claim, [c for c in claim.cases or cases if c != claim.against], measurements)
    compared = tuple(_compare(claim, sample, len(samples), measurements) for sample in samples)
    complete = bool(compared) and all(len(c.numbers) >= measurements.seeds for c in compared)
    return Verdict(_outcome(claim, compared), _summarise(claim, compared), compared, complete)


def _outcome(claim: Claim, compared: Sequence[Comparison]) -> Outcome:
    states = {one.state for one in compared}
    if states <= {"not run"}:
        return "not tested"
    if claim.some and "holds" in states:
        return "reproduced"
    if not claim.some and "fails" in states:
        return "not reproduced"
    if "not run" in states:
        return "partly tested"
    if len(states) > 1 or "undecided" in states:
        return "undecided"
    return "not reproduced" if claim.some else "reproduced"


def _summarise(claim: Claim, compared: Sequence[Comparison]) -> str:
    """Return how many comparisons hold, fail or are undecided, and the decisive one's numbers."""
    run = sorted((c for c in compared if c.state != "not run"), key=lambda c: c.strength)
    if not run:
        return ""
    shown, which = (run[-1], "strongest") if claim.some else (run[0], "weakest")
    if len(compared) == 1:
        return shown.text
    states = [one.state for one in compared]
    counts = [f"{n} {verbs[n > 1]}" for s, verbs in _VERBS.items() if (n := states.count(s))]
    found = f"all {counts[0]}" if len(counts) == 1 else f"of {len(states)}: {', '.join(counts)}"
    return f"{found}; {which}: {shown.text}"


_VERBS: dict[State, tuple[str, str]] = {  # the weakest first; for one and for several
    "fails": ("fails", "fail"),
    "undecided": ("undecided", "undecided"),
    "holds": ("holds", "hold"),
    "not run": ("not run", "not run"),
}


@dataclass(frozen=True)
class _Sample:
    """The numbers of one comparison, one for each seed, and where the claim says that they lie."""

    label: str
    numbers: Floats
    region: Region
    methods: tuple[str, ...]
    ratios: bool = False  # the numbers are logarithms of ratios
    slopes: bool = False


def _samples(claim: Claim, cases: Sequence[str], m: Measurements) -> list[_Sample]:
    """Return the numbers of all comparisons of a claim."""
    if claim.kind == "printed":
        pairs = [(case, method) for case in cases for method in claim.methods]
        printed = [(pair, number) for pair in pairs if (number := m.printed(*pair)) is not None]
        return [
            _sample(claim, [case], method, None, _around(number, claim.within), m)
            for (case, method), number in printed
        ]
    if claim.kind == "jointly":
        return [_shift(claim, cases, m)]
    region, others = _region(claim, m.higher), claim.than or (None,)
    if claim.kind == "grows":
        return [_sample(claim, cases, claim.method, other, region, m) for other in others]
    return [
        _sample(claim, [case], claim.method, other, region, m) for case in cases for other in others
    ]


def _shift(claim: Claim, cases: Sequence[str], m: Measurements) -> _Sample:
    """Return the mean distance from the printed numbers for each seed that all methods have."""
    places = [(case, method) for case in cases for method in claim.methods]
    distances = [
        {seed: value - number for seed, value in values.items() if value is not None}
        for place in places
        if (number := m.printed(*place)) is not None and len(values := m.values(*place)) >= m.seeds
    ]
    seeds = sorted(set.intersection(*map(set, distances))) if distances else []
    means = [float(np.mean([one[seed] for one in distances])) for seed in seeds]
    label = f"mean distance of {quantify(len(distances), 'number')}"
    return _Sample(label, np.array(means), _around(0.0, claim.within), claim.methods)


def _around(number: float, within: float) -> Region:
    return Region(number - within, number + within)


def _region(claim: Claim, higher: bool) -> Region:
    """Return where A, its difference to another method, or the slope of these should lie."""
    if claim.kind in ("matches", "value"):
        return _around(claim.value, claim.within)
    above = higher == (claim.kind in ("beats", "grows"))
    return Region(claim.by, math.inf) if above else Region(-math.inf, -claim.by)


def _sample(
    claim: Claim,
    cases: Sequence[str],
    method: str,
    other: str | None,
    region: Region,
    m: Measurements,
) -> _Sample:
    """Return, for each common seed, A or A minus another method; the slope over several cases."""
    slopes = claim.kind == "grows"
    ours = [m.values(case, method) for case in cases]
    theirs = [m.values(claim.against or case, other) for case in cases] if other else []
    seeds = sorted(set.intersection(*(set(values) for values in [*ours, *theirs])))
    points, minus = (_table(part, seeds, claim.ratios, m.worst) for part in (ours, theirs))
    with np.errstate(invalid="ignore"):
        points = points - minus if other else points
    numbers = np.array([_slope(p) for p in points.T]) if slopes else points[0]
    here, there = (_place(case) for case in (cases[0], claim.against or cases[0]))
    sign = "/" if claim.ratios else "−"
    label = method if other is None else f"{method} {sign} {other}"
    if slopes:
        label = f"slope of {label}"
    elif claim.against is not None:
        label = f"{method}{here} {sign} {other}{there}"
    else:
        label += here
    methods = (method,) if other is None else (method, other)
    return _Sample(label, numbers, region, methods, claim.ratios, slopes)


def _table(
    parts: Sequence[Mapping[int, float | None]], seeds: Sequence[int], ratios: bool, worst: float
) -> Floats:
    """Return numbers, shape (cases, seeds), or their logarithms; the worst where there is none."""
    found = [[worst if one[seed] is None else one[seed] for seed in seeds] for one in parts]
    numbers = np.array(found, dtype=float).reshape(len(parts), len(seeds))
    with np.errstate(divide="ignore"):
        return np.log(numbers.clip(min=0)) if ratios else numbers


def _slope(points: Floats) -> float:
    """Return the least-squares slope of equally spaced points.

    It is infinite if some are infinite and all of these tilt it the same way, and not a number if
    they do not.

    >>> _slope(np.array([5.0, 3.0, 1.0])), _slope(np.array([np.inf, 3.0, 1.0]))
    (-2.0, -inf)
    """
    offsets = np.arange(len(points)) - (len(points) - 1) / 2
    if not np.isfinite(points).all():
        with np.errstate(invalid="ignore"):
            return float((offsets * points).sum())
    # relative to the first: equal points must have the slope 0, not one from rounding
    return float(offsets @ (points - points[0]) / (offsets @ offsets))


def _compare(claim: Claim, sample: _Sample, comparisons: int, m: Measurements) -> Comparison:
    """Return what one comparison of a claim with so many `comparisons` shows."""
    numbers, region = sample.numbers, sample.region
    interval = t_interval(numbers, LEVEL)
    strict = t_interval(numbers, 1 - (1 - LEVEL) / comparisons)
    state: State = "undecided" if len(numbers) else "not run"
    if len(numbers) >= m.seeds and interval is not None and strict is not None:
        to_hold, to_fail = (strict, interval) if claim.some else (interval, strict)
        if all(map(region.contains, to_hold)):
            state = "holds"
        elif region.misses(*to_fail):
            state = "fails"
    if len(numbers) == 1 and m.seeds > 1:
        interval = None  # one seed shows no spread
    known = numbers[np.isfinite(numbers)] if np.isfinite(numbers).any() else np.zeros(1)
    strength = list(_VERBS).index(state), region.slack(*(interval or (known.mean(),) * 2))
    return Comparison(tuple(numbers.tolist()), state, _describe(sample, interval, m), strength)


def t_interval(numbers: Floats, level: float) -> tuple[float, float] | None:
    """Return Student's interval of the mean; None: no such interval.

    A single number is its own interval, as are numbers that are all infinite with the same sign.

    >>> low, high = t_interval(np.array([2.0, 3.0, 4.0]), 0.95)  # 3 ± 4.303 / √3
    >>> round(low, 3), round(high, 3)
    (0.516, 5.484)
    """
    if not len(numbers) or np.isnan(numbers).any():
        return None
    if (numbers == numbers[0]).all():
        return float(numbers[0]), float(numbers[0])
    if np.isinf(numbers).any():
        return None
    mean, margin = float(np.mean(numbers)), float(t_margin(numbers, level))
    return mean - margin, mean + margin


def _describe(sample: _Sample, interval: tuple[float, float] | None, m: Measurements) -> str:
    """Return label, mean, interval and seeds, in words."""
    count, digits = len(sample.numbers), m.digits
    if not count:
        return f"{sample.label}: not run"
    seeds = quantify(count, "seed")
    if count < m.seeds:
        seeds += f" of the {m.seeds} needed"
    if not np.isfinite(sample.numbers).all():
        return f"{sample.label}: {_describe_missing(sample, m.worst)}, {seeds}"
    low, high = interval or (math.nan, math.nan)
    mean = float(np.mean(sample.numbers))
    if sample.ratios:
        mean, low, high = np.exp([mean, low, high]).tolist()
    text = f"{sample.label} = {mean:.{digits}f}"
    if interval is not None and m.seeds > 1:
        if low == high:
            seeds = f"the same in {seeds}"
        else:
            text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    text += sample.region.describe(digits)
    return f"{text}, " + ("independent of the seed" if m.seeds == 1 else seeds)


def _describe_missing(sample: _Sample, worst: float) -> str:
    """Return who gives no number in how many seeds; of slopes, which signs that leaves."""
    lost, won = ((sample.numbers == end).sum() for end in (worst, -worst))
    neither = np.isnan(sample.numbers).sum()
    if sample.slopes:
        signs = [("better", won), ("worse", lost), ("neither better nor worse", neither)]
        found = ", ".join(f"{sign} in {count}" for sign, count in signs if count)
        return f"{found}, without a size as some cases give no number"
    who = (sample.methods[0], sample.methods[-1], " and ".join(sample.methods))
    pairs = zip(who, (lost, won, neither), strict=True)
    return ", ".join(f"no number from {one} in {count}" for one, count in pairs if count)


def _place(case: str) -> str:
    return "" if case == MAIN else f" ({case})"
