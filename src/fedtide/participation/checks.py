"""What every parameter of this room is checked for; each complaint names its field."""

from __future__ import annotations

from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import BadInput

Numbers = NDArray[np.float64]


def whole(field: str, value: object, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise BadInput(f"{field}: {value!r} is not a whole number; give one of at least {least}")
    if int(value) >= 2**63:
        raise BadInput(f"{field}: {value!r:.60} is too large; give a number below 2**63")


def cohort_fits(size: int, clients: int) -> None:
    """Refuse a cohort that is larger than the population."""
    if size > clients:
        raise BadInput(f"size: {size} of {clients} clients; give at most {clients}")


def numbers(field: str, values: ArrayLike, dimensions: int = 1) -> Numbers:
    """Return `values` as finite float64 numbers, or refuse them."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput(f"{field}: not an array of numbers; give only numbers") from None
    if array.ndim != dimensions:
        raise BadInput(f"{field}: {array.ndim} dimensions; give an array of {dimensions}")
    finite = np.isfinite(array)
    if not finite.all():
        raise BadInput(f"{field}: {array[~finite][0]} is not finite; give finite numbers")
    return array


def nonnegative(field: str, values: ArrayLike, dimensions: int = 1) -> Numbers:
    """Return `values` as finite numbers of at least 0, or refuse them."""
    array = numbers(field, values, dimensions)
    if array.size and array.min() < 0:
        raise BadInput(f"{field}: {array.min():g} is negative; give numbers of at least 0")
    return array


def probabilities(field: str, values: ArrayLike) -> Numbers:
    """Return one number or an array (S,) as probabilities of shape (1,) or (S,), or refuse them."""
    array = numbers(field, np.atleast_1d(np.asarray(values)))
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        worst = array[(array < 0) | (array > 1)][0]
        raise BadInput(f"{field}: {worst:g} is not within [0, 1]; give probabilities")
    return array


def one_each(field: str, array: NDArray[np.generic], clients: int) -> None:
    """Refuse an array that has not one entry for each client."""
    if len(array) != clients:
        raise BadInput(f"{field}: {len(array)} entries for {clients} clients; give one for each")
