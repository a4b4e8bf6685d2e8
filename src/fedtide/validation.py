"""Validation of arguments: numbers, choices, paths and arrays with one entry per client."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path, PurePath
from typing import Any, SupportsFloat, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import InvalidInputError, did_you_mean, quantify

Numbers = NDArray[np.float64]

_NAME_BYTES = 200
"""The longest folder name, in UTF-8: file systems allow 255 bytes, and suffixes need some."""

PAGE_SUFFIXES = (".html", ".htm")
"""The suffixes that the file of an HTML page may have."""


def require_positive(field: str, value: float) -> None:
    """Raise InvalidInputError unless `value` is a finite number above 0."""
    require_number(field, value)
    if not (math.isfinite(value) and value > 0):
        raise InvalidInputError(
            f"{field}: {value} is not a {_finite(value)}positive number; give one"
        )


def require_at_least(field: str, value: float, low: float) -> None:
    """Raise InvalidInputError unless `value` is a finite number of at least `low`."""
    require_number(field, value)
    if not (math.isfinite(value) and value >= low):
        raise InvalidInputError(
            f"{field}: {value} is not a {_finite(value)}number of at least {low:g}; give one"
        )


def require_number(field: str, value: object) -> None:
    """Raise InvalidInputError unless `value` is a number."""
    if not isinstance(value, SupportsFloat):
        raise InvalidInputError(f"{field}: {value!r:.60} is not a number")


def _finite(value: float) -> str:
    """Return "finite " for an error message if `value` is infinite or NaN, otherwise ""."""
    return "" if math.isfinite(value) else "finite "


def require_all_positive(**values: float) -> None:
    """Raise InvalidInputError unless every value is a finite number above 0."""
    for name, value in values.items():
        require_positive(name, value)


def require_all_nonnegative(**values: float) -> None:
    """Raise InvalidInputError unless every value is a finite number of at least 0."""
    for name, value in values.items():
        require_at_least(name, value, 0)


def require_share(field: str, value: float) -> None:
    """Raise InvalidInputError unless `value` is above 0 and at most 1."""
    if not 0 < value <= 1:
        raise InvalidInputError(f"{field}: {value} is not within (0, 1]; give a share")


def require_choice(field: str, value: str, options: Any) -> None:
    """Raise InvalidInputError unless `value` is one of the options (strings or a Literal type)."""
    options = get_args(options) or options
    if value not in options:
        raise InvalidInputError(f"{field}: unknown {value!r}; {did_you_mean(str(value), options)}")


def require_suffix(field: str, path: Path, suffixes: Sequence[str]) -> None:
    """Raise InvalidInputError unless the name of `path` ends in one of these suffixes.

    >>> require_suffix("figure", Path("a.xyz"), [".png", ".pdf", ".svg"])
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: figure: a.xyz has the suffix '.xyz'; use .png, .pdf or .svg
    """
    if path.suffix.lower() not in suffixes:
        *most, last = suffixes
        listed = f"{', '.join(most)} or {last}" if most else last
        raise InvalidInputError(f"{field}: {path} has the suffix {path.suffix!r}; use {listed}")


def require_not_read(field: str, path: Path, inputs: Iterable[Path]) -> None:
    """Raise InvalidInputError if writing `path` would replace one of the input files."""
    for file in inputs:
        if path.is_file() and file.is_file() and path.samefile(file):
            raise InvalidInputError(
                f"{field}: {path} is an input file, and would be replaced; choose another"
            )


def expand_home(path: str | Path) -> Path:
    """Expand ~ and ~user to the home folder in a path; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # Path.expanduser fails for unknown users


def require_folder_name(field: str, name: str) -> None:
    """Raise InvalidInputError unless this can be the name of a folder directly below another.

    >>> require_folder_name("name", "../elsewhere")
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: name: '../elsewhere' cannot be a folder name; ...
    """
    is_path = PurePath(name).name != name or "\\" in name  # on Windows also C:name
    if not name.isprintable() or not name.strip(" .") or is_path or name[0] == ".":
        raise InvalidInputError(
            f"{field}: {name!r:.60} cannot be a folder name; choose one without / or leading dots"
        )
    if (length := len(name.encode(errors="replace"))) > _NAME_BYTES:
        raise InvalidInputError(
            f"{field}: {name!r:.60}... has {length} bytes, too many for a folder name; choose one "
            f"of at most {_NAME_BYTES}"
        )


def shorten_folder_name(name: str) -> str:
    """Return the name, with its end replaced by a hash if it is too long for a folder.

    >>> shorten_folder_name("lr=0.1"), len(shorten_folder_name("lr=0.1," * 50))
    ('lr=0.1', 200)
    """
    encoded = name.encode()
    if len(encoded) <= _NAME_BYTES:
        return name
    digits = hashlib.sha256(encoded).hexdigest()[:16]
    return f"{encoded[: _NAME_BYTES - 17].decode(errors='ignore')}-{digits}"


def require_whole_number(field: str, value: object, low: int = 1) -> None:
    """Raise InvalidInputError unless `value` is an integer from `low` to 2⁶³ − 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise InvalidInputError(
            f"{field}: {value!r:.60} is not a whole number of at least {low}; give one"
        )
    if int(value) >= 2**63:
        raise InvalidInputError(f"{field}: {value!r:.60} is too large; give a number below 2**63")


def require_cohort_size(size: int, clients: int) -> None:
    """Raise InvalidInputError if a cohort of `size` exceeds the population."""
    if size > clients:
        raise InvalidInputError(
            f"size: {size} of {quantify(clients, 'client')}; give at most {clients}"
        )


def require_numbers(field: str, values: ArrayLike, dimensions: int | None = 1) -> Numbers:
    """Return `values` as a float64 array; raise InvalidInputError unless all are finite.

    Args:
        field: the field that an error names.
        values: the numbers.
        dimensions: the number of dimensions of the array; None: any.
    """
    array = _to_array(field, values)
    if dimensions is not None and array.ndim != dimensions:
        raise InvalidInputError(f"{field}: {array.ndim} dimensions; give an array of {dimensions}")
    finite = np.isfinite(array)
    if not finite.all():
        raise InvalidInputError(f"{field}: {array[~finite][0]} is not finite; give finite numbers")
    return array


def _to_array(field: str, values: ArrayLike) -> Numbers:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor with gradient
        raise InvalidInputError(f"{field}: not an array of numbers; give only numbers") from None


def require_nonnegative(field: str, values: ArrayLike, dimensions: int = 1) -> Numbers:
    """Return `values` as a float64 array; raise InvalidInputError unless finite and >= 0."""
    array = require_numbers(field, values, dimensions)
    if array.size and array.min() < 0:
        raise InvalidInputError(f"{field}: {array.min():g} is negative; give numbers of at least 0")
    return array


def require_probabilities(field: str, values: ArrayLike) -> Numbers:
    """Return a number or an array (S,) as an array (1,) or (S,).

    Raises:
        InvalidInputError: an entry outside [0, 1].
    """
    array = require_numbers(field, np.atleast_1d(_to_array(field, values)))
    outside = array[(array < 0) | (array > 1)]
    if outside.size:
        raise InvalidInputError(f"{field}: {outside[0]:g} is not within [0, 1]; give probabilities")
    return array


def require_one_per_client(field: str, array: NDArray[np.generic], clients: int) -> None:
    """Raise InvalidInputError unless `array` has one entry for each client."""
    if len(array) != clients:
        raise InvalidInputError(
            f"{field}: {quantify(len(array), 'entry', 'entries')} for "
            f"{quantify(clients, 'client')}; give one for each"
        )
