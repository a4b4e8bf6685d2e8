"""The papers' claims about their methods, in a form that measured numbers can confirm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["beats", "loses", "matches", "value", "printed", "jointly", "grows"]


@dataclass(frozen=True)
class Claim:
    """One statement of a paper that measured numbers can confirm.

    Args:
        statement: the statement, in words.
        measure: the measure to compare.
        method: A, the method that the statement is about.
        than: the methods that A is compared with.
        kind: "beats": A is better than each of `than`, by more than `by`; "loses": A is worse than
            each of `than`, by more than `by`; "matches": A differs from each by at most `within`;
            "value": A, or its difference to each of `than`, is within `within` of `value`;
            "printed": A and each of `than` are within `within` of their printed numbers; "jointly":
            so is their mean distance from them, over the methods with enough seeds; "grows":
            the advantage of A over each of `than` grows over `cases` in their order, or A itself
            becomes better if there are none.
        reference: the place in the paper.
        cases: the cases of the paper in which it should hold; None: all that have the methods.
        against: the case in which `than` are measured; None: the same as A.
        by, within, value: as above; a negative `by` allows A to be worse (or better) by so much.
        ratios: whether a pair of methods is compared by the ratio of their measures, which must be
            positive, and not by the difference: for seeds whose data differ in scale.
        some: whether one of the comparisons suffices; otherwise all must hold.
        why: why the statement does not hold in our runs, if that is known.
        check: why the statement is only a check of the implementation and is not counted: it cannot
            fail, or none of the papers makes it; None: it is counted.
        laptop_measure: the measure at laptop scale; None: the same.
        full_scale: whether the statement is about the experiment of the published size only, as
            those of the kinds "value" and "printed" and those with a positive `by` always are.
    """

    statement: str
    measure: str
    method: str
    than: Sequence[str] = ()
    kind: Kind = "beats"
    reference: str = ""
    cases: Sequence[str] | None = None
    against: str | None = None
    by: float = 0.0
    within: float = 0.0
    value: float = 0.0
    ratios: bool = False
    some: bool = False
    why: str = ""
    check: str | None = None
    laptop_measure: str | None = None
    full_scale: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods that the statement names."""
        return (self.method, *self.than)

    @property
    def needs_full_scale(self) -> bool:
        """Whether only runs of the published size can confirm the statement."""
        return self.full_scale or self.kind in ("value", "printed", "jointly") or self.by > 0
