"""What a paper says of its methods, and whether the records bear it out, by a stated rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.validation import one_of

Kind = Literal["beats", "matches", "value", "grows"]
Word = Literal["reproduced", "not reproduced", "not tested"]

Values = Callable[[str, str], Mapping[int, float | None]]
"""Gives the measure of all runs of a case and a method, by seed; None: diverged, never reached."""

RULE = (
    "The runs of two methods with the same seed have the same clients and the same data, so they "
    "are compared seed by seed: d is the mean difference and SE its standard error over the seeds. "
    "*Beats*: d − 2 SE > 0, and d is at least what the paper claims where it claims a size. "
    "*Matches*: |d| is within the stated margin. *Value*: the mean is within the stated margin of "
    "the printed number. *Grows*: the slope of the difference over the cases is positive by more "
    "than 2 SE. With one seed there is no SE, and the sign decides. Where several methods or cases "
    "are meant, all must hold, and the numbers are those of the weakest."
)
"""How a claim is judged, for people."""


@dataclass(frozen=True)
class Claim:
    """One statement of a paper that numbers can bear out.

    Args:
        says: the statement.
        measure: the measure it is about.
        method: A, whom it is about.
        than: the methods that A is compared with.
        kind: "beats": A is better than each of `than`, by at least `by`; "matches": A differs from
            each by at most `within`; "value": A comes within `within` of `value`; "grows": by how
            much A is better than each of `than` grows over `cases` in their order.
        reference: where the paper says it.
        cases: where it is said to hold; None: in all cases.
        by, within, value: as above.

    Raises:
        InvalidInputError: an unknown kind, or nothing to compare with.
    """

    says: str
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
        one_of("kind", self.kind, Kind)
        if self.kind == "value" and self.value is None:
            raise InvalidInputError("value: missing; say what the paper prints")
        if self.kind != "value" and not self.than:
            raise InvalidInputError("than: missing; say with which methods to compare")

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods that it speaks of."""
        return (self.method, *self.than)


@dataclass(frozen=True)
class Verdict:
    """What the records say of a claim.

    Args:
        word: reproduced, not reproduced or not tested.
        numbers: for people; empty where nothing was run.
    """

    word: Word
    numbers: str = ""


NOT_TESTED = Verdict("not tested")


def judge(
    claim: Claim, cases: Sequence[str], values: Values, higher: bool, digits: int = 2
) -> Verdict:
    """Return what the runs say of a claim.

    Args:
        claim: the claim.
        cases: all cases of the experiment that were planned at this scale.
        values: the measures of the runs.
        higher: whether more is better.
        digits: behind the point, for people.
    """
    cases = [case for case in claim.cases or cases if case in cases]
    if not cases or (claim.cases and len(cases) < len(claim.cases) and claim.kind == "grows"):
        return NOT_TESTED
    if claim.kind == "value":
        return _worst([_value(claim, case, values, digits) for case in cases])
    sign = 1.0 if higher else -1.0
    if claim.kind == "grows":
        return _worst([_grows(claim, other, cases, values, sign, digits) for other in claim.than])
    return _worst(
        [_pair(claim, case, other, values, sign, digits) for case in cases for other in claim.than]
    )


@dataclass(frozen=True)
class _Found:
    """What one comparison gives; `margin` says how clearly it holds."""

    verdict: Verdict
    margin: float


_NONE = _Found(NOT_TESTED, -np.inf)


def _worst(found: Sequence[_Found]) -> Verdict:
    """Return the verdict on all comparisons together: not tested if one is not."""
    weakest = min(found, key=lambda one: one.margin)
    tested = [one for one in found if one.verdict.word != "not tested"]
    held = sum(one.verdict.word == "reproduced" for one in found)
    if len(tested) < len(found):
        part = f"{len(tested)} of {len(found)} comparisons were run, and {held} hold"
        return Verdict("not tested", part if tested else "")
    if len(found) == 1:
        return weakest.verdict
    return Verdict(
        weakest.verdict.word,
        f"holds in {held} of {len(found)} comparisons; weakest: {weakest.verdict.numbers}",
    )


def _pair(claim: Claim, case: str, other: str, values: Values, sign: float, digits: int) -> _Found:
    """Compare A with one other method in one case."""
    differences, lost = _differences(values(case, claim.method), values(case, other), sign)
    if not len(differences) and not lost:
        return _NONE
    who = f"{claim.method} − {other}" + ("" if case == "main" else f" ({case})")
    if not len(differences):  # one of the two gave no number in any seed
        won = lost > 0
        word: Word = "reproduced" if won and claim.kind == "beats" else "not reproduced"
        loser = other if won else claim.method
        return _Found(Verdict(word, f"{who}: {loser} gives no number"), np.inf if won else -1e300)
    mean, error = _mean_and_error(differences)
    shown = _shown(sign * mean, error, digits, len(differences))
    if claim.kind == "matches":
        margin = claim.within - abs(mean)
    else:
        margin = min(mean - 2 * error, mean - claim.by) if claim.by else mean - 2 * error
    holds = margin >= 0 if claim.kind == "matches" else margin > 0 or (claim.by and margin == 0)
    return _Found(Verdict("reproduced" if holds else "not reproduced", f"{who} = {shown}"), margin)


def _differences(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None], sign: float
) -> tuple[np.ndarray, int]:
    """Return by how much A is better in each seed that both have, and the score of the others.

    A seed in which only the other method gives no number counts for A, one in which A gives none
    counts against it.
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


def _grows(
    claim: Claim, other: str, cases: Sequence[str], values: Values, sign: float, digits: int
) -> _Found:
    """Say whether the difference grows from case to case."""
    tables = [(values(case, claim.method), values(case, other)) for case in cases]
    seeds = set.intersection(*(set(a) & set(b) for a, b in tables))
    slopes = []
    for seed in sorted(seeds):
        pairs = [(a[seed], b[seed]) for a, b in tables]
        numbers = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
        if len(numbers) == len(cases):
            slopes.append(np.polyfit(np.arange(len(cases)), numbers, 1)[0])
    if not slopes:
        return _NONE
    mean, error = _mean_and_error(np.array(slopes))
    shown = _shown(mean, error, digits, len(slopes))
    word: Word = "reproduced" if mean - 2 * error > 0 else "not reproduced"
    return _Found(Verdict(word, f"slope per case of {other} − {claim.method}: {shown}"), mean)


def _value(claim: Claim, case: str, values: Values, digits: int) -> _Found:
    """Compare A with the printed number."""
    assert claim.value is not None
    found = values(case, claim.method)
    if not found:
        return _NONE
    numbers = np.array([value for value in found.values() if value is not None])
    if len(numbers) < len(found):
        return _Found(Verdict("not reproduced", f"{claim.method} gives no number"), -1e300)
    mean, error = _mean_and_error(numbers)
    margin = claim.within - abs(mean - claim.value)
    where = "" if case == "main" else f" ({case})"
    shown = _shown(mean, error, digits, len(numbers))
    text = f"{claim.method}{where}: {shown}, printed {claim.value:g}"
    return _Found(Verdict("reproduced" if margin >= 0 else "not reproduced", text), margin)


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error; 0 for a single value."""
    count = len(values)
    error = float(np.std(values, ddof=1)) / np.sqrt(count) if count > 1 else 0.0
    return float(np.mean(values)), float(error)


def _shown(mean: float, error: float, digits: int, seeds: int) -> str:
    if seeds == 1:
        return f"{mean:.{digits}f} (1 seed)"
    return f"{mean:.{digits}f}, SE {error:.{digits}f} ({seeds} seeds)"
