"""Availability given as a table of weights by round and client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError, error_prefix, quantify
from fedtide.participation.availability._recorded import RecordedStream, recorded_rates
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.log.client_ids import number_clients
from fedtide.participation.log.schema import normalise_log
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
            strings, numbered in sorted order.

    Raises:
        InvalidInputError: a weight that is negative or not finite, an array that is not
            two-dimensional; in `begin`, not one column for each client, or an invalid file.

    >>> running = Table(weights=[[0.5, 0.5], [0, 1]]).begin(Population(clients=2), seed=0)
    >>> running.round(1)
    AvailableClients(clients=array([1]), weights=array([1.]))
    """

    weights: str | Path | MemoryTable | Sequence[Sequence[float]] | Weights

    def __post_init__(self) -> None:
        if is_table(self.weights):
            object.__setattr__(self, "weights", to_polars("weights", self.weights))
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
        table = _require_array(self.weights)
        if table.shape[1] != population.clients:
            raise InvalidInputError(
                f"weights: {quantify(table.shape[1], 'column')} for "
                f"{quantify(population.clients, 'client')}; give one for each"
            )
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
