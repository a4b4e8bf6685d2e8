"""The papers' claims about their methods, and the rule that judges them by the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.validation import require_choice

Kind = Literal["beats", "matches", "value", "grows"]
Outcome = Literal["reproduced", "not reproduced", "not tested"]

Values = Callable[[str, str], Mapping[int, float | None]]
"""From case and method to the measure of each seed; None: diverged, or never reached."""

RULE = (
    "The runs of two methods with the same seed have the same clients and the same data, so they "
    "are compared seed by seed: d is the mean difference and SE its standard error over the seeds. "
    "*Beats*: d − 2 SE > 0, and d is at least what the paper claims where it claims a size. "
    "*Matches*: |d| is within the stated margin. *Value*: the mean is within the stated margin of "
    "the printed number. *Grows*: the slope of the difference over the cases is positive by more "
    "than 2 SE. With one seed there is no SE, and the sign decides. Where several methods or cases "
    "are meant, all must hold, and the numbers are those of the weakest."
)
"""The rule, in words."""


@dataclass(frozen=True)
class Claim:
    """One statement of a paper that measured numbers can confirm.

    Args:
        statement: the statement, in words.
        measure: the measure to compare.
        method: A, the method that the statement is about.
        than: the methods that A is compared with.
        kind: "beats": A is better than each of `than`, by at least `by`; "matches": A differs from
            each by at most `within`; "value": A is within `within` of `value`; "grows": the
            advantage of A over each of `than` grows over `cases` in their order.
        reference: the place in the paper.
        cases: the cases in which it should hold; None: all.
        by, within, value: as above.

    Raises:
        InvalidInputError: an unknown kind, or no value or method to compare with.
    """

    statement: str
    measure: str
    method: str
    than: Sequence[str] = ()
    kind: Kind = "beats"
    reference: str = ""
    cases: Sequence[str] | None = None
    by: float = 0.0
    within: float = 0.0
    value: float | None = None

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, Kind)
        if self.kind == "value" and self.value is None:
            raise InvalidInputError("value: missing; give the published number")
        if self.kind != "value" and not self.than:
            raise InvalidInputError("than: missing; give the methods to compare with")

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods that the statement names."""
        return (self.method, *self.than)


@dataclass(frozen=True)
class Verdict:
    """What the records say about a claim.

    Args:
        outcome: reproduced, not reproduced or not tested.
        numbers: the measured numbers, in words; empty where nothing was run.
    """

    outcome: Outcome
    numbers: str = ""


NOT_TESTED = Verdict("not tested")


def judge(
    claim: Claim, cases: Sequence[str], values: Values, higher: bool, digits: int = 2
) -> Verdict:
    """Return what the runs say about a claim.

    Args:
        claim: the claim.
        cases: all cases of the experiment that are planned at this scale.
        values: the measure of the runs.
        higher: whether higher is better.
        digits: decimals of the numbers.
    """
    cases = [case for case in claim.cases or cases if case in cases]
    if not cases or (claim.cases and len(cases) < len(claim.cases) and claim.kind == "grows"):
        return NOT_TESTED
    comparisons = _Judge(claim, values, 1.0 if higher else -1.0, digits)
    if claim.kind == "value":
        return _combine([comparisons.compare_value(case) for case in cases])
    if claim.kind == "grows":
        return _combine([comparisons.compare_growth(other, cases) for other in claim.than])
    return _combine(
        [comparisons.compare_pair(case, other) for case in cases for other in claim.than]
    )


@dataclass(frozen=True)
class _Comparison:
    """The verdict of one comparison; the larger `margin`, the more clearly the claim holds."""

    verdict: Verdict
    margin: float


_NOT_RUN = _Comparison(NOT_TESTED, -np.inf)


def _combine(comparisons: Sequence[_Comparison]) -> Verdict:
    """Return the verdict on all comparisons together: not tested if one of them is not."""
    weakest = min(comparisons, key=lambda comparison: comparison.margin)
    tested = sum(c.verdict.outcome != "not tested" for c in comparisons)
    holding = sum(c.verdict.outcome == "reproduced" for c in comparisons)
    if tested < len(comparisons):
        part = f"{tested} of {len(comparisons)} comparisons were run, and {holding} hold"
        return Verdict("not tested", part if tested else "")
    if len(comparisons) == 1:
        return weakest.verdict
    return Verdict(
        weakest.verdict.outcome,
        f"holds in {holding} of {len(comparisons)} comparisons; weakest: {weakest.verdict.numbers}",
    )


@dataclass(frozen=True)
class _Judge:
    """The comparisons of one claim; `sign` is 1 where higher is better and -1 where lower is."""

    claim: Claim
    values: Values
    sign: float
    digits: int

    def compare_pair(self, case: str, other: str) -> _Comparison:
        """Compare A with one other method in one case."""
        claim = self.claim
        ours, theirs = self.values(case, claim.method), self.values(case, other)
        differences, score = _differences(ours, theirs, self.sign)
        if not len(differences) and not score:
            return _NOT_RUN
        label = f"{claim.method} − {other}" + ("" if case == "main" else f" ({case})")
        if not len(differences):  # one of the two gave no number in any seed
            won = score > 0
            text = f"{label}: {other if won else claim.method} gives no number"
            holds = won and claim.kind == "beats"
            return _compared(holds, text, np.inf if won else -1e300)
        mean, error = _mean_and_error(differences)
        text = f"{label} = {self._format(self.sign * mean, error, len(differences))}"
        if claim.kind == "matches":
            margin = claim.within - abs(mean)
            return _compared(margin >= 0, text, margin)
        margin = mean - 2 * error
        if claim.by:
            margin = min(margin, mean - claim.by)
        return _compared(margin > 0 or (claim.by > 0 and margin == 0), text, margin)

    def compare_growth(self, other: str, cases: Sequence[str]) -> _Comparison:
        """Fit a line to the advantage of A over another method from case to case."""
        tables = [
            (self.values(case, self.claim.method), self.values(case, other)) for case in cases
        ]
        seeds = set.intersection(*(set(a) & set(b) for a, b in tables))
        slopes = []
        for seed in sorted(seeds):
            pairs = [(a[seed], b[seed]) for a, b in tables]
            numbers = [self.sign * (a - b) for a, b in pairs if a is not None and b is not None]
            if len(numbers) == len(cases):
                slopes.append(np.polyfit(np.arange(len(cases)), numbers, 1)[0])
        if not slopes:
            return _NOT_RUN
        mean, error = _mean_and_error(np.array(slopes))
        numbers_text = self._format(mean, error, len(slopes))
        text = f"slope per case of {other} − {self.claim.method}: {numbers_text}"
        return _compared(mean - 2 * error > 0, text, mean)

    def compare_value(self, case: str) -> _Comparison:
        """Compare A with the published number."""
        claim = self.claim
        assert claim.value is not None
        measured = self.values(case, claim.method)
        if not measured:
            return _NOT_RUN
        numbers = np.array([value for value in measured.values() if value is not None])
        if len(numbers) < len(measured):
            return _compared(False, f"{claim.method} gives no number", -1e300)
        mean, error = _mean_and_error(numbers)
        margin = claim.within - abs(mean - claim.value)
        label = claim.method + ("" if case == "main" else f" ({case})")
        text = f"{label}: {self._format(mean, error, len(numbers))}, published {claim.value:g}"
        return _compared(margin >= 0, text, margin)

    def _format(self, mean: float, error: float, seeds: int) -> str:
        if seeds == 1:
            return f"{mean:.{self.digits}f} (1 seed)"
        return f"{mean:.{self.digits}f}, SE {error:.{self.digits}f} ({seeds} seeds)"


def _compared(holds: bool, numbers: str, margin: float) -> _Comparison:
    return _Comparison(Verdict("reproduced" if holds else "not reproduced", numbers), margin)


def _differences(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None], sign: float
) -> tuple[np.ndarray, int]:
    """Return A's advantage in each seed that both have, and the score of seeds without a number.

    A seed in which only the other method gives no number counts for A; one in which A gives none
    decides against A (-1).
    """
    differences, score = [], 0
    for seed in sorted(ours.keys() & theirs.keys()):
        a, b = ours[seed], theirs[seed]
        if a is None:
            return np.zeros(0), -1
        if b is None:
            score += 1
        else:
            differences.append(sign * (a - b))
    return np.array(differences), score


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error; 0 for a single value."""
    count = len(values)
    error = float(np.std(values, ddof=1)) / np.sqrt(count) if count > 1 else 0.0
    return float(np.mean(values)), float(error)
