"""Checks that the functions of the theory share."""

from __future__ import annotations

import math

from fedtide.errors import BadInput


def need_positive(**values: float) -> None:
    """Raise BadInput unless every value is a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise BadInput(f"{name}: {value} is not a positive number")


def need_nonnegative(**values: float) -> None:
    """Raise BadInput unless every value is a finite number of at least 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"{name}: {value} is not a number of at least 0")
