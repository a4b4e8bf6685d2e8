"""Constraints that the annotation of a field declares, as in `lr: Annotated[float, Positive]`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.validation import require_at_least, require_positive


class Constraint(ABC):
    """What the numbers of a field must satisfy; None, text and objects satisfy every constraint."""

    def check(self, field: str, value: Any) -> None:
        """Raise InvalidInputError unless a number, or each in a list or mapping, satisfies it."""
        if isinstance(value, Mapping):
            value = list(value.values())
        if type(value) in (int, float):
            self.check_number(field, value)
        elif isinstance(value, list | tuple | np.ndarray):
            self._check_numbers(field, np.asarray(value))

    def _check_numbers(self, field: str, numbers: np.ndarray[Any, Any]) -> None:
        if numbers.size and numbers.dtype.kind in "iuf":
            for number in (numbers.min(), numbers.max()):  # a NaN is both
                self.check_number(field, number.item())

    @abstractmethod
    def check_number(self, field: str, value: Any) -> None:
        """Raise InvalidInputError unless the number satisfies it."""


@dataclass(frozen=True)
class Within(Constraint):
    """A number within an interval, given as it is printed in the error.

    Args:
        low: the lower end.
        high: the upper end.
        ends: one bracket for each end, "[" or "]" if it belongs to the interval.
        hint: what to do instead; empty: nothing more than the interval.

    >>> Within(0, 1, "[)").check("momentum", 1.0)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: momentum: 1.0 is not within [0, 1)
    """

    low: float
    high: float
    ends: str = "[]"
    hint: str = ""

    def check_number(self, field: str, value: Any) -> None:
        above = value >= self.low if self.ends[0] == "[" else value > self.low
        below = value <= self.high if self.ends[1] == "]" else value < self.high
        if not (above and below):
            interval = f"{self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"
            hint = f"; {self.hint}" if self.hint else ""
            raise InvalidInputError(f"{field}: {value} is not within {interval}{hint}")


@dataclass(frozen=True)
class AtLeast(Constraint):
    """A finite number of at least `low`.

    >>> AtLeast(1).check("rounds", 0)
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: rounds: 0 is not a number of at least 1; give one
    """

    low: float

    def check_number(self, field: str, value: Any) -> None:
        require_at_least(field, value, self.low)


class _Positive(Constraint):
    def check_number(self, field: str, value: Any) -> None:
        require_positive(field, value)


Positive = _Positive()
"""A finite number above 0."""

Unit = Within(0, 1, "[]", "give a probability")
"""A probability: a number within [0, 1]."""

Share = Within(0, 1, "(]", "give a share")
"""A share: a number within (0, 1]."""
