"""Availability given as a table of weights by round and client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError, error_prefix, list_names, quantify
from fedtide.participation.availability._recorded import RecordedStream, recorded_rates
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.log.client_ids import number_clients, parse_whole_numbers
from fedtide.participation.log.schema import normalise_log, parse_rounds
from fedtide.participation.log.tables import (
    MemoryTable,
    describe_table,
    is_table,
    require_columns,
    to_polars,
)
from fedtide.population import Population
from fedtide.validation import require_nonnegative

Weights = NDArray[np.float64]


@configurable
class Table(Availability):
    """Client n is available in round t with weight q_t^n if that is positive (Wang & Ji 2022).

    A run has at most as many rounds as the table.

    Args:
        weights: q, shape (T, N), 0 for absent; or a table with the columns round, client, weight,
            as the path of a Parquet, CSV or JSON lines file or in memory (a DataFrame of Polars,
            pandas or another library, or a list of rows); rows of absent clients may be left out.
            Clients are given by name if the data name them, else by id 0..N−1, or as N different
            strings, numbered in sorted order. A table in memory may also have a column for each
            client (in sorted order if the data do not name them), and perhaps one called round;
            without it, row t is round t. Columns called 0, 1, ... in this order, as those of a
            table made of an array, are in the order of the ids if these are not names.

    Raises:
        InvalidInputError: a weight that is negative or not finite, an array that is not
            two-dimensional; in `begin`, not one column for each client, a round twice, or an
            invalid file.

    >>> running = Table(weights=[[0.5, 0.5], [0, 1]]).begin(Population(clients=2), seed=0)
    >>> running.round(1)
    AvailableClients(clients=array([1]), weights=array([1.]))
    """

    weights: str | Path | MemoryTable | Sequence[Sequence[float]] | Weights

    def __post_init__(self) -> None:
        if is_table(self.weights):
            table: Any = self.weights
            if getattr(getattr(table, "index", None), "name", None) == "round":  # of pandas
                table = table.reset_index(drop="round" in table.columns)
            object.__setattr__(self, "weights", to_polars("weights", table))
        if not _has_rows(self.weights):
            _require_array(self.weights)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        return RecordedStream(*self._entries(population))

    def known_rates(self, population: Population, seed: int) -> Weights:
        """Return the share of the T rounds in which each client is available."""
        _, clients, _, length = self._entries(population)
        return recorded_rates(clients, population.clients, length)

    def _entries(self, population: Population) -> tuple[NDArray[np.int64], Ids, Weights, int]:
        """Return round, client and weight of each positive entry, and T."""
        if _has_rows(self.weights):
            return _read_entries(self.weights, population)
        if isinstance(self.weights, pl.DataFrame):
            return _read_columns(self.weights, population)
        table = _require_array(self.weights)
        _require_columns(table.shape[1], population.clients)
        rounds, ids = np.nonzero(table)
        return rounds, ids, table[rounds, ids], len(table)


def _has_rows(weights: object) -> TypeGuard[str | Path | pl.DataFrame]:
    """Return whether weights are a table of one row for each round and client.

    Without a column `client`, a table is q itself, with a column for each client.
    """
    if isinstance(weights, pl.DataFrame):
        return "client" in weights.columns
    return isinstance(weights, str | Path)


def _require_array(weights: Any) -> Weights:
    return require_nonnegative("weights", weights, dimensions=2)


def _require_columns(columns: int, clients: int) -> None:
    if columns != clients:
        raise InvalidInputError(
            f"weights: {quantify(columns, 'column')} for {quantify(clients, 'client')}; give one "
            "for each"
        )


def _read_columns(
    frame: pl.DataFrame, population: Population
) -> tuple[NDArray[np.int64], Ids, Weights, int]:
    """Return the positive entries of a table with a column for each client, and T."""
    rounds = np.arange(len(frame))
    if "round" in frame.columns and "round" not in _names_of(population):
        rounds = _read_rounds(frame["round"])
        frame = frame.drop("round")
    ids = _number_columns(frame.columns, population)
    table = _require_array(frame)
    rows, columns = np.nonzero(table)
    return rounds[rows], ids[columns], table[rows, columns], int(rounds.max(initial=-1)) + 1


def _read_rounds(column: pl.Series) -> NDArray[np.int64]:
    """Return the round of each row, each at most once."""
    with error_prefix("weights"):
        rounds = parse_rounds(column)
    twice = rounds.filter(rounds.is_duplicated())
    if len(twice):
        raise InvalidInputError(f"weights: round {twice[0]} has two rows; give each round one")
    return rounds.to_numpy()


def _number_columns(names: Sequence[str], population: Population) -> Ids:
    """Return the id of the client of each column; each client has one."""
    clients = population.clients
    unnamed = [[str(n) for n in range(clients)], [f"column_{n}" for n in range(clients)]]
    if list(names) in unnamed and not {*names} <= _names_of(population):
        return np.arange(clients)
    column = parse_whole_numbers(pl.Series(names, dtype=pl.String))
    if population.names is None:
        _require_columns(len(names), clients)
        _require_sorted(column)
    ids = number_clients("weights", column, population)
    missing = np.setdiff1d(np.arange(clients), ids)
    if len(missing):
        raise InvalidInputError(
            f"weights: no column for {list_names(population.names_of(missing).tolist())}; give "
            "each client one"
        )
    return ids


def _require_sorted(column: pl.Series) -> None:
    """Check that text is in the order in which it numbers clients that the data do not name.

    Raises:
        InvalidInputError: it is in another order, such as client2 before client10.
    """
    if column.dtype == pl.String and not column.is_sorted():
        first = list_names(column.sort().to_list()[:3])
        raise InvalidInputError(
            "weights: the data do not name the clients, whose columns are therefore numbered in "
            f"sorted order, {first}, ..., which is not their order here; sort them, or call them "
            f"0 to {len(column) - 1}"
        )


def _names_of(population: Population) -> set[str]:
    """Return the clients' names; the empty set if they have none."""
    return set() if population.names is None else {*map(str, population.names.tolist())}


def _read_entries(
    table: str | Path | pl.DataFrame, population: Population
) -> tuple[NDArray[np.int64], Ids, Weights, int]:
    frame = to_polars("weights", table)
    require_columns("weights", frame, ["round", "client"], "rename the column")
    with error_prefix("weights"):
        log = normalise_log(frame)
    if log["weight"].null_count():
        what = describe_table(table)
        raise InvalidInputError(f"weights: {what} lacks weights; give each row a weight")
    length = 0 if log.is_empty() else int(log["round"].max()) + 1  # type: ignore[arg-type]
    ids = number_clients("weights", log["client"], population)
    present = log["weight"].to_numpy() > 0
    rounds, weights = log["round"].to_numpy(), log["weight"].to_numpy()
    return rounds[present], ids[present], weights[present], length
