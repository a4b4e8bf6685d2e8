"""Checks that the functions of the theory share."""

from __future__ import annotations

from fedtide.checks import at_least, positive


def need_positive(**values: float) -> None:
    """Raise BadInput unless every value is a finite number above 0."""
    for name, value in values.items():
        positive(name, value)


def need_nonnegative(**values: float) -> None:
    """Raise BadInput unless every value is a finite number of at least 0."""
    for name, value in values.items():
        at_least(name, value, 0)
