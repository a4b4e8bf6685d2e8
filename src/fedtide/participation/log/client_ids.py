"""Client ids as they are in a file, and their numbers 0..N−1."""

from __future__ import annotations

import polars as pl

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import Ids


def normalise_clients(field: str, column: pl.Series) -> pl.Series:
    """Return a column of client ids as int64 or as strings.

    Whole numbers beyond 64 bits become strings.

    Raises:
        InvalidInputError: ids that are missing, or neither whole numbers nor strings.
    """
    if column.null_count():
        raise InvalidInputError(
            f"{field}: the client is missing in row {column.is_null().arg_max()}; give its id"
        )
    if column.dtype.is_integer():
        fits = column.is_empty() or column.cast(pl.Int64, strict=False).null_count() == 0
        return column.cast(pl.Int64 if fits else pl.String)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if column.is_empty():
        return column.cast(pl.Int64)
    raise InvalidInputError(
        f"{field}: client ids have type {column.dtype}; give whole numbers only or strings only"
    )


def number_clients(field: str, column: pl.Series, clients: int) -> Ids:
    """Return ids in 0..N−1: whole numbers unchanged, strings by their position in sorted order.

    Args:
        field: the field that an error names.
        column: as `normalise_clients` returns it, any length.
        clients: N.

    Raises:
        InvalidInputError: a number outside 0..N−1, or more than N different strings.

    >>> number_clients("file", pl.Series(["b", "a", "b"]), clients=2)
    array([1, 0, 1])
    """
    if column.dtype == pl.String:
        distinct = column.unique().sort()
        if len(distinct) > clients:
            raise InvalidInputError(
                f"{field}: {len(distinct)} different clients, but the problem has {clients}; "
                f"give at most {clients}"
            )
        return distinct.search_sorted(column).to_numpy().astype("int64")
    ids = column.to_numpy()
    if len(ids) and (ids.min() < 0 or ids.max() >= clients):
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise InvalidInputError(
            f"{field}: client {worst} is not one of the {clients} clients; "
            f"number them from 0 to {clients - 1}"
        )
    return ids
