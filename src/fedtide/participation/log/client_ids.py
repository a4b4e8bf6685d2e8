"""Client names in data and files, and their ids 0..N−1."""

from __future__ import annotations

import polars as pl

from fedtide.errors import InvalidInputError, did_you_mean, list_names, quantify
from fedtide.participation.availability.base import Ids
from fedtide.population import Names, Population

_EXACT = 2**24
"""Whole numbers below this are exact in single precision, too."""


def normalise_clients(field: str, column: pl.Series) -> pl.Series:
    """Return a column of client ids as int64 or as strings.

    Whole numbers beyond 64 bits become strings.

    Raises:
        InvalidInputError: ids are missing, or neither whole numbers nor strings.
    """
    if column.null_count():
        row = 1 + int(column.is_null().to_numpy().argmax())
        raise InvalidInputError(f"{field}: the client is missing in row {row:,}; give its id")
    if column.dtype.is_integer():
        fits = column.is_empty() or column.cast(pl.Int64, strict=False).null_count() == 0
        return column.cast(pl.Int64 if fits else pl.String)
    if column.dtype.is_numeric():  # as pandas makes them of gaps, and databases give them
        whole = column.cast(pl.Int64, strict=False)
        if (whole == column).fill_null(False).all() and (whole.abs() < _EXACT).all():
            return whole
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if column.is_empty():
        return column.cast(pl.Int64)
    raise InvalidInputError(
        f"{field}: client ids have type {column.dtype}; give whole numbers only or strings only"
    )


def parse_whole_numbers(texts: pl.Series) -> pl.Series:
    """Return client ids of a text file as numbers if all are written as whole numbers.

    Numbers have no leading zeros and fit in 64 bits; all of them may have a point and zeros after
    it, as pandas writes columns that had gaps.

    >>> parse_whole_numbers(pl.Series(["7", "12"])).to_list()
    [7, 12]
    >>> parse_whole_numbers(pl.Series(["7.0", "12.0"])).to_list()
    [7, 12]
    >>> parse_whole_numbers(pl.Series(["7.0", "12"])).to_list()
    ['7.0', '12']
    """
    whole = texts.str.replace(r"\.0+$", "") if texts.str.contains(r"\.0+$").all() else texts
    if not whole.str.contains(r"^(0|-?[1-9][0-9]*)$").all():
        return texts
    numbers = whole.cast(pl.Int64, strict=False)
    return texts if numbers.null_count() > texts.null_count() else numbers


def name_clients(clients: Ids, names: Names | None) -> pl.Series:
    """Return the column `client` of these clients in a table: their names, if they have any.

    >>> import numpy as np
    >>> name_clients(np.array([1, 0, 1]), np.array(["ann", "bob"])).to_list()
    ['bob', 'ann', 'bob']
    """
    if names is None:
        return pl.Series("client", clients, dtype=pl.Int64)
    return _to_column(names).gather(clients)


def number_clients(field: str, column: pl.Series, population: Population) -> Ids:
    """Return the ids 0..N−1 of the clients in a column, the inverse of `name_clients`.

    In a population with names, the column holds names. A whole number and a string that are written
    alike are the same name: a CSV file does not distinguish 7 from "7". Without names, the column
    holds ids, or N different strings, which are numbered in sorted order.

    Args:
        field: the field that an error names.
        column: as `normalise_clients` returns it, any length.
        population: the clients.

    Raises:
        InvalidInputError: a name that no client has; without names, a number outside 0..N−1, or
            strings that are not exactly N different ones.

    >>> import numpy as np
    >>> names = Population(clients=3, names=np.array(["ann", "bob", "zoe"]))
    >>> number_clients("file", pl.Series(["zoe", "bob"]), names)
    array([2, 1])
    >>> number_clients("file", pl.Series(["zoe", "bob", "zoe"]), Population(clients=2))
    array([1, 0, 1])
    """
    if population.names is not None:
        return _find_names(field, column, _to_column(population.names))
    clients = population.clients
    if column.dtype == pl.String:
        distinct = column.unique().sort()
        if len(distinct) not in (0, clients):
            raise InvalidInputError(
                f"{field}: {quantify(len(distinct), 'different client')} by name, but the "
                f"{clients} clients of the problem have no names; number them from 0 to "
                f"{clients - 1}, or name exactly {clients}"
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


def _to_column(names: Names) -> pl.Series:
    """Return names as a column `client` of int64 or strings."""
    values = names.tolist() if names.dtype.kind == "O" else names
    return normalise_clients("names", pl.Series("client", values))


def _find_names(field: str, column: pl.Series, names: pl.Series) -> Ids:
    """Return the position in `names` of each name in a column."""
    if column.dtype != names.dtype:
        column, names = column.cast(pl.String), names.cast(pl.String)
    numbers = pl.int_range(len(names), eager=True)
    found = column.replace_strict(names, numbers, default=None, return_dtype=pl.Int64)
    if found.null_count():
        unknown = column.filter(found.is_null()).unique(maintain_order=True)
        raise InvalidInputError(
            f"{field}: no client of the problem is called {list_names(unknown.to_list())} (its "
            f"{len(names)} clients: {list_names(names.to_list())}); "
            f"{did_you_mean(str(unknown[0]), names.head(1000).cast(pl.String).to_list())}"
        )
    return found.to_numpy()
