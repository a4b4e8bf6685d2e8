"""Checks that hyper-parameters share."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import InvalidInputError, did_you_mean

Numbers = NDArray[np.float64]


def positive(field: str, value: float) -> None:
    """Raise InvalidInputError unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidInputError(f"{field}: {value} is not a positive number")


def at_least(field: str, value: float, low: float) -> None:
    """Raise InvalidInputError unless `value` is a finite number of at least `low`."""
    if not (math.isfinite(value) and value >= low):
        raise InvalidInputError(f"{field}: {value} is not a number of at least {low:g}")


def one_of(field: str, value: str, literal: Any) -> None:
    """Raise InvalidInputError unless `value` is one of the strings of the Literal type."""
    options = get_args(literal)
    if value not in options:
        raise InvalidInputError(f"{field}: unknown {value!r}; {did_you_mean(str(value), options)}")


def whole(field: str, value: object, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InvalidInputError(
            f"{field}: {value!r} is not a whole number; give one of at least {least}"
        )
    if int(value) >= 2**63:
        raise InvalidInputError(f"{field}: {value!r:.60} is too large; give a number below 2**63")


def cohort_fits(size: int, clients: int) -> None:
    """Refuse a cohort that is larger than the population."""
    if size > clients:
        raise InvalidInputError(f"size: {size} of {clients} clients; give at most {clients}")


def numbers(field: str, values: ArrayLike, dimensions: int = 1) -> Numbers:
    """Return `values` as finite float64 numbers, or refuse them."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{field}: not an array of numbers; give only numbers") from None
    if array.ndim != dimensions:
        raise InvalidInputError(f"{field}: {array.ndim} dimensions; give an array of {dimensions}")
    finite = np.isfinite(array)
    if not finite.all():
        raise InvalidInputError(f"{field}: {array[~finite][0]} is not finite; give finite numbers")
    return array


def nonnegative(field: str, values: ArrayLike, dimensions: int = 1) -> Numbers:
    """Return `values` as finite numbers of at least 0, or refuse them."""
    array = numbers(field, values, dimensions)
    if array.size and array.min() < 0:
        raise InvalidInputError(f"{field}: {array.min():g} is negative; give numbers of at least 0")
    return array


def probabilities(field: str, values: ArrayLike) -> Numbers:
    """Return one number or an array (S,) as probabilities of shape (1,) or (S,), or refuse them."""
    array = numbers(field, np.atleast_1d(np.asarray(values)))
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        worst = array[(array < 0) | (array > 1)][0]
        raise InvalidInputError(f"{field}: {worst:g} is not within [0, 1]; give probabilities")
    return array


def one_each(field: str, array: NDArray[np.generic], clients: int) -> None:
    """Refuse an array that has not one entry for each client."""
    if len(array) != clients:
        raise InvalidInputError(
            f"{field}: {len(array)} entries for {clients} clients; give one for each"
        )


def need_positive(**values: float) -> None:
    """Raise InvalidInputError unless every value is a finite number above 0."""
    for name, value in values.items():
        positive(name, value)


def need_nonnegative(**values: float) -> None:
    """Raise InvalidInputError unless every value is a finite number of at least 0."""
    for name, value in values.items():
        at_least(name, value, 0)
