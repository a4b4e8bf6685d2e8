"""The rule that judges a claim by the records: intervals over the seeds, and what they show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, quantify
from fedtide.papers.claims import Claim, require_two_cases
from fedtide.papers.paper_spec import MAIN
from fedtide.student_interval import t_margin

Outcome = Literal["reproduced", "not reproduced", "undecided", "partly tested", "not tested"]
State = Literal["holds", "fails", "undecided", "not run"]
"""What the runs say about one comparison of a claim."""

Values = Callable[[str, str], Mapping[int, float | None]]
"""From case and method to the measure of each seed; None: diverged, or never reached."""

LEVEL = 0.95
"""The confidence level of the printed intervals, and of a verdict as a whole."""

RULE = """
Runs of two methods with the same seed have the same clients and the same data, so they are compared
seed by seed. Every comparison has a 95 % Student-t interval over the seeds, printed in brackets
unless all seeds give the same number. It *holds* if the interval lies inside what the claim says,
*fails* if it lies wholly outside, and is *undecided* otherwise. What the claim says is, for *beats*
and *loses*: beyond the claimed size (0 if none is named); for *matches*: within the stated margin
of 0; for *value* and *printed*: within the stated margin of the printed number; for *grows*: a
slope from case to case that is better than 0. Margins are chosen here, as no paper gives one, and
some of them with runs in view. Where the data of the seeds differ in scale, two methods are
compared by the ratio of their measures (printed as *A / B*), by an interval for its logarithm; this
was decided after their differences had left such claims open. A run that never reaches a target, or
diverges, counts as worse than any other; also in slopes, which was decided after all runs of two
cases had ended before the target. A comparison needs three seeds, five
(or as many as are planned) where a run takes less than a minute, one where nothing depends on the
seed; with fewer it is undecided. A run that diverged counts with the accuracy of guessing where the
paper counts it so. A smaller experiment cannot test what the paper says of the size of a number or
of a difference (*by*, *value*, *printed*), so at laptop scale such claims are not tested.

A claim is **reproduced** if all its comparisons were run and hold; that needs no correction for
their number. One failure among many may be chance: a claim with m comparisons, counting those that
were not run, is **not reproduced** if one of them fails even with the wider interval of level 1 −
0.05 / m, so that a true claim is rejected with a probability of at most 5 %, however many
comparisons it has. Such a failure decides even if others were not run. (Where one comparison
suffices, the roles are exchanged.) Otherwise a claim is **not tested** at a scale if none of its
comparisons was run there, **partly tested** if only some were, and **undecided** if all were. The
numbers shown are those of the weakest comparison; all are in the sections of the experiments.
""".strip()
"""The rule, in words."""


@dataclass(frozen=True)
class Measurements:
    """The measured and printed numbers of one measure at one scale.

    Args:
        values: the measured numbers.
        printed: the printed number of a case and method, if any.
        higher: whether higher is better.
        seeds: how many seeds a comparison needs.
        digits: decimals of the numbers.
    """

    values: Values
    printed: Callable[[str, str], float | None]
    higher: bool
    seeds: int = 3
    digits: int = 2


@dataclass(frozen=True)
class Region:
    """Where a claim says that a number lies: an open half-line, or a closed margin."""

    low: float
    high: float

    def contains(self, number: float) -> bool:
        """Return whether the number lies where the claim says."""
        if np.isinf(self.low):
            return number < self.high
        if np.isinf(self.high):
            return number > self.low
        return self.low <= number <= self.high

    def covers(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies in the region."""
        return self.contains(low) and self.contains(high)

    def misses(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies outside the region."""
        around = low < self.low <= self.high < high
        return not (self.contains(low) or self.contains(high) or around)

    def describe(self, digits: int) -> str:
        """Return the claimed size or margin as text; empty where only the sign is claimed."""
        if np.isfinite(self.low + self.high):
            return f", claimed {self.low:.{digits}f} to {self.high:.{digits}f}"
        bound, side = (self.high, "below") if np.isinf(self.low) else (self.low, "above")
        return f", claimed {side} {bound:.{digits}f}" if bound else ""

    def slack(self, low: float, high: float) -> float:
        """Return how far the interval's worse end is inside the region.

        An open end of the region is infinitely far away, also from an infinite number.
        """
        below = np.inf if np.isinf(self.low) else low - self.low
        above = np.inf if np.isinf(self.high) else self.high - high
        return float(np.minimum(below, above))  # NaN if either is


@dataclass(frozen=True)
class ClaimComparison:
    """One comparison of a claim.

    Args:
        numbers: the measured number of each seed, the logarithm of a ratio; infinite: one of the
            two gives no number.
        region: where the claim says that the number lies.
        interval: the 95 % interval; None: too few seeds, or seeds without a number.
        state: whether it holds.
        text: label, mean, interval and seeds, in words.
    """

    numbers: tuple[float, ...]
    region: Region
    interval: tuple[float, float] | None
    state: State
    text: str


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
    comparisons: tuple[ClaimComparison, ...] = ()
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

    Raises:
        InvalidInputError: fewer than two cases for a claim that something grows over them.
    """
    samples = _samples(claim, [c for c in claim.cases or cases if c != claim.against], measurements)
    compared = tuple(_compare(claim, sample, len(samples), measurements) for sample in samples)
    enough = [len(one.numbers) >= measurements.seeds for one in compared]
    complete = bool(enough) and all(enough)
    return Verdict(_outcome(claim, compared), _summarise(claim, compared), compared, complete)


def _outcome(claim: Claim, compared: Sequence[ClaimComparison]) -> Outcome:
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


def _summarise(claim: Claim, compared: Sequence[ClaimComparison]) -> str:
    """Return how many comparisons hold, fail or are undecided, and the decisive one's numbers."""
    run = [one for one in compared if one.state != "not run"]
    if not run:
        return ""
    weakest_first = sorted(run, key=_strength)
    shown, which = (weakest_first[0], "weakest")
    if claim.some:
        shown, which = (weakest_first[-1], "strongest")
    if len(compared) == 1:
        return shown.text
    states = [one.state for one in compared]
    counts = [
        f"{number} {verbs[number > 1]}"
        for state, verbs in _VERBS.items()
        if (number := states.count(state))
    ]
    return f"of {len(compared)} comparisons {', '.join(counts)}; {which}: {shown.text}"


_VERBS: dict[State, tuple[str, str]] = {  # the weakest first; for one and for several
    "fails": ("fails", "fail"),
    "undecided": ("is undecided", "are undecided"),
    "holds": ("holds", "hold"),
    "not run": ("was not run", "were not run"),
}


def _strength(one: ClaimComparison) -> tuple[int, float]:
    """Return a key that is larger, the more clearly a comparison holds."""
    known = [number for number in one.numbers if np.isfinite(number)] or [0.0]
    ends = one.interval or (float(np.mean(known)),) * 2
    return list(_VERBS).index(one.state), one.region.slack(*ends)


@dataclass(frozen=True)
class _Sample:
    """The numbers of one comparison, and where the claim says that they lie."""

    label: str
    numbers: NDArray[np.float64]
    region: Region
    methods: tuple[str, ...]
    ratios: bool = False  # the numbers are logarithms of ratios
    slopes: bool = False


def _samples(claim: Claim, cases: Sequence[str], measurements: Measurements) -> list[_Sample]:
    """Return the numbers of all comparisons of a claim."""
    if claim.kind == "grows":
        require_two_cases(cases)
        others = claim.than or (None,)
        return [_slopes(claim, other, cases, measurements) for other in others]
    if claim.kind == "printed":
        return [
            _single(case, method, printed, claim.within, measurements)
            for case in cases
            for method in claim.methods
            if (printed := measurements.printed(case, method)) is not None
        ]
    if claim.kind == "value" and not claim.than:
        assert claim.value is not None
        return [
            _single(case, claim.method, claim.value, claim.within, measurements) for case in cases
        ]
    return [
        _differences(claim, case, other, measurements) for case in cases for other in claim.than
    ]


def _single(
    case: str, method: str, printed: float, within: float, measurements: Measurements
) -> _Sample:
    """Return the numbers of one method, which should be near a printed one."""
    nothing = -np.inf if measurements.higher else np.inf
    measured = measurements.values(case, method).values()
    numbers = np.array([nothing if value is None else value for value in measured], dtype=float)
    label = method + _place(case)
    return _Sample(label, numbers, Region(printed - within, printed + within), (method,))


def _differences(claim: Claim, case: str, other: str, measurements: Measurements) -> _Sample:
    """Return A minus another method, or the logarithm of their ratio, in each common seed."""
    there = claim.against or case
    ours, theirs = measurements.values(case, claim.method), measurements.values(there, other)
    nothing = -np.inf if measurements.higher else np.inf
    differences = [
        _difference(ours[seed], theirs[seed], nothing, claim.ratios)
        for seed in sorted(set(ours) & set(theirs))
    ]
    sign = "/" if claim.ratios else "−"
    label = f"{claim.method} {sign} {other}{_place(case)}"
    if claim.against is not None:
        label = f"{claim.method}{_place(case)} {sign} {other}{_place(there)}"
    region, numbers = _region(claim, measurements.higher), np.array(differences, dtype=float)
    return _Sample(label, numbers, region, (claim.method, other), claim.ratios)


def _difference(ours: float | None, theirs: float | None, nothing: float, ratio: bool) -> float:
    """Return the difference, or the logarithm of the ratio.

    It is infinite if one of the two gives no number, and not a number if both give none.

    Raises:
        InvalidInputError: a ratio of numbers that are not positive.
    """
    if ours is None:
        return np.nan if theirs is None else nothing
    if theirs is None:
        return -nothing
    if not ratio:
        return ours - theirs
    if not (0 < ours < math.inf and 0 < theirs < math.inf):
        raise InvalidInputError(
            f"ratios: {ours:g} and {theirs:g} have no ratio; compare such measures by differences"
        )
    return math.log(ours) - math.log(theirs)


def _region(claim: Claim, higher: bool) -> Region:
    """Return where the difference of A to another method should lie."""
    if claim.kind == "matches":
        return Region(-claim.within, claim.within)
    if claim.kind == "value":
        assert claim.value is not None
        return Region(claim.value - claim.within, claim.value + claim.within)
    above = higher == (claim.kind == "beats")
    return Region(claim.by, np.inf) if above else Region(-np.inf, -claim.by)


def _slopes(
    claim: Claim, other: str | None, cases: Sequence[str], measurements: Measurements
) -> _Sample:
    """Return each seed's slope over the cases of A, or of its difference to another method."""
    ours = [measurements.values(case, claim.method) for case in cases]
    theirs = ours if other is None else [measurements.values(case, other) for case in cases]
    seeds = set.intersection(*(set(a) & set(b) for a, b in zip(ours, theirs, strict=True)))
    nothing = -np.inf if measurements.higher else np.inf
    slopes = []
    for seed in sorted(seeds):
        pairs = [(a[seed], b[seed]) for a, b in zip(ours, theirs, strict=True)]
        if other is None:
            points = [nothing if a is None else a for a, _ in pairs]
        else:
            points = [_difference(a, b, nothing, ratio=False) for a, b in pairs]
        slopes.append(_slope(np.array(points, dtype=float)))
    label = f"slope of {claim.method}" + ("" if other is None else f" − {other}")
    region = Region(0.0, np.inf) if measurements.higher else Region(-np.inf, 0.0)
    methods = (claim.method,) if other is None else (claim.method, other)
    return _Sample(label, np.array(slopes, dtype=float), region, methods, slopes=True)


def _slope(points: NDArray[np.float64]) -> float:
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


def _compare(
    claim: Claim, sample: _Sample, comparisons: int, measurements: Measurements
) -> ClaimComparison:
    """Return what one comparison of a claim with so many `comparisons` shows."""
    numbers, region = sample.numbers, sample.region
    interval = t_interval(numbers, LEVEL)
    strict = t_interval(numbers, 1 - (1 - LEVEL) / comparisons)
    to_hold, to_fail = (strict, interval) if claim.some else (interval, strict)
    state: State = "undecided"
    if not len(numbers):
        state = "not run"
    elif len(numbers) >= measurements.seeds and to_hold is not None and to_fail is not None:
        if region.covers(*to_hold):
            state = "holds"
        elif region.misses(*to_fail):
            state = "fails"
    if len(numbers) == 1 and measurements.seeds > 1:
        interval = None  # one seed shows no spread
    text = _describe(sample, interval, measurements)
    return ClaimComparison(tuple(numbers.tolist()), region, interval, state, text)


def t_interval(numbers: NDArray[np.float64], level: float) -> tuple[float, float] | None:
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


def _describe(
    sample: _Sample, interval: tuple[float, float] | None, measurements: Measurements
) -> str:
    """Return label, mean, interval and seeds, in words."""
    count, digits = len(sample.numbers), measurements.digits
    if not count:
        return f"{sample.label}: not run"
    seeds = quantify(count, "seed")
    if count < measurements.seeds:
        seeds += f" of the {measurements.seeds} needed"
    if not np.isfinite(sample.numbers).all():
        missing = _missing_slopes if sample.slopes else _missing
        return f"{sample.label}: {missing(sample, measurements.higher)}, {seeds}"
    mean = float(np.mean(sample.numbers))
    low, high = interval or (math.nan, math.nan)
    if sample.ratios:
        mean, low, high = np.exp([mean, low, high]).tolist()
    text = f"{sample.label} = {mean:.{digits}f}"
    if interval is not None and measurements.seeds > 1:
        if low == high:
            seeds = f"the same in {seeds}"
        else:
            text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    text += sample.region.describe(digits)
    return f"{text}, " + ("independent of the seed" if measurements.seeds == 1 else seeds)


def _missing_slopes(sample: _Sample, higher: bool) -> str:
    """Return the signs of slopes over cases of which some have no number."""
    worse = -np.inf if higher else np.inf
    counts = [
        ("better", (sample.numbers == -worse).sum()),
        ("worse", (sample.numbers == worse).sum()),
        ("neither better nor worse", np.isnan(sample.numbers).sum()),
    ]
    found = ", ".join(f"{sign} in {count}" for sign, count in counts if count)
    return f"{found}, without a size as some cases give no number"


def _missing(sample: _Sample, higher: bool) -> str:
    """Return which of the methods give no number, and in how many seeds."""
    best = np.inf if higher else -np.inf
    counts = [
        (sample.methods[0], (sample.numbers == -best).sum()),
        (sample.methods[-1], (sample.numbers == best).sum()),
        (" and ".join(sample.methods), np.isnan(sample.numbers).sum()),
    ]
    return ", ".join(f"no number from {who} in {count}" for who, count in counts if count)


def _place(case: str) -> str:
    return "" if case == MAIN else f" ({case})"
