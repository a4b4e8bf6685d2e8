"""Checks that hyper-parameters share."""

from __future__ import annotations

import math
from typing import Any, get_args

from fedtide.errors import BadInput, did_you_mean


def positive(field: str, value: float) -> None:
    """Raise BadInput unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"{field}: {value} is not a positive number")


def at_least(field: str, value: float, low: float) -> None:
    """Raise BadInput unless `value` is a finite number of at least `low`."""
    if not (math.isfinite(value) and value >= low):
        raise BadInput(f"{field}: {value} is not a number of at least {low:g}")


def one_of(field: str, value: str, literal: Any) -> None:
    """Raise BadInput unless `value` is one of the strings of the Literal type."""
    options = get_args(literal)
    if value not in options:
        raise BadInput(f"{field}: unknown {value!r}; {did_you_mean(str(value), options)}")
