"""Availability recorded in advance, round by round: a table of weights, or a participation log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, error_prefix, quantify
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
)
from fedtide.participation.log.client_ids import number_clients
from fedtide.participation.log.opening import open_log
from fedtide.participation.log.read import LogRows, keep_furthest, normalise_log, read_rows
from fedtide.participation.log.schema import CLAIMED, STAGES
from fedtide.participation.log.tables import (
    MemoryTable,
    describe_table,
    is_table,
    require_columns,
    to_polars,
)
from fedtide.population import Population
from fedtide.spec import AtLeast, spec
from fedtide.validation import (
    expand_home,
    require_nonnegative,
)

Weights = NDArray[np.float64]


class RecordedStream(AvailabilityStream):
    """A stream of recorded rounds, which may be asked for in any order.

    Args:
        rounds: the round of each entry, shape (E,).
        clients: its client, (E,); a client at most once in a round.
        weights: its weight, (E,), or None.
        length: the number of recorded rounds; nobody is available afterwards.
    """

    def __init__(
        self,
        rounds: NDArray[np.int64],
        clients: Ids,
        weights: NDArray[np.float64] | None,
        length: int,
    ) -> None:
        order = np.lexsort((clients, rounds))
        self._rounds = rounds[order]
        self._clients = clients[order]
        self._weights = None if weights is None else weights[order]
        self.length = length

    def round(self, t: int) -> AvailableClients:
        """Return the clients available in round t, with their weights."""
        low, high = np.searchsorted(self._rounds, np.array([t, t + 1]))
        weights = None if self._weights is None else self._weights[low:high]
        return AvailableClients(self._clients[low:high], weights)


def recorded_rates(clients: Ids, population: int, rounds: int) -> NDArray[np.float64]:
    """Return the share of the recorded rounds in which each client is available, shape (N,)."""
    return np.bincount(clients, minlength=population) / max(1, rounds)


@spec
class Replay(Availability):
    """The rounds of a participation log: the clients that reached `stage` are available.

    Weights are those of the log if it has one for each of these clients. A run has at most as many
    rounds as the log.

    Args:
        log: the path of a participation log or of the folder of a finished run, or the log in
            memory: a DataFrame of Polars, pandas or another library, or a list of rows. Clients are
            given by name if the data name them, else by id 0..N−1, or as N different strings,
            numbered in sorted order.
        stage: the stage that a client must have reached: "used" repeats the participation,
            "available" the availability (to apply another selection to it).
        columns: the log's own column names, such as {"round": "my_round"}; common names are
            recognised.
        stages: what the values of its column `stage`, or else of the one that has them, mean, such
            as {"OK": "used", "other": "selected"}.
        where: values of columns, such as {"phase": "fit"}; only rows that have them are read.
        ignore: columns that say nothing about who took part. Any other column that is not read and
            tells rows apart is refused, as it may say who failed.
        first_round: the number of the log's first round, which is replayed as round 0. None: that
            of its first row, or 0 if the log has stages, as fedtide's logs do: their first rounds
            may be empty. Round numbers without a row are empty rounds.

    Raises:
        InvalidInputError: an unknown stage, a first round that is not a whole number from 0, or an
            object that is not a table; in `begin`, a log that cannot be read or could mean several
            things, that has no clients of the stage or rows before its first round, or that does
            not fit the population.

    >>> log = pl.DataFrame({"round": [0, 1, 1], "client": ["ann", "bob", "ann"]})
    >>> Replay(log).begin(Population(clients=2), seed=0).round(1).clients
    array([0, 1])
    >>> counted_from_one = log.with_columns(pl.col("round") + 1)
    >>> Replay(counted_from_one).begin(Population(clients=2), seed=0).round(1).clients
    array([0, 1])
    """

    log: str | Path | MemoryTable
    stage: Literal["available", "selected", "reported", "used"] = "used"
    columns: Mapping[str, str] | None = None
    stages: Mapping[str, str] | None = None
    where: Mapping[str, str] | None = None
    ignore: Sequence[str] | None = None
    first_round: Annotated[int | None, AtLeast(0)] = None

    def __post_init__(self) -> None:
        log: str | Path | pl.DataFrame
        if not isinstance(self.log, str | Path):
            log = to_polars("log", self.log)
        elif expand_home(self.log).is_dir():
            log = Path(self.log) / "participation.parquet"
        else:
            return
        object.__setattr__(self, "log", log)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        rows, clients, length = self._rows(population)
        weights = None
        if "weight" in rows and not rows["weight"].null_count():
            weights = rows["weight"].to_numpy()
        return RecordedStream(rows["round"].to_numpy(), clients, weights, length)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return the share of the log's rounds in which each client is available."""
        _, clients, length = self._rows(population)
        return recorded_rates(clients, population.clients, length)

    def _rows(self, population: Population) -> tuple[pl.DataFrame, NDArray[np.int64], int]:
        """Return the rows that reached `stage`, their client ids, and the number of rounds."""
        options = {
            "columns": self.columns,
            "stages": self.stages,
            "where": self.where,
            "ignore": self.ignore or (),
        }
        found = _read_once(self.log, options)
        log = keep_furthest(found.frame)
        ids = number_clients("log", log["client"], population)
        has_stages = "stage" in log
        reached = pl.lit(True)
        if has_stages:
            reached = pl.col("stage").is_in(STAGES[STAGES.index(self.stage) :])
        elif "weight" in log and log["weight"].ne_missing(0.0).any():
            reached = pl.col("weight").ne_missing(0.0)  # absent clients have the weight 0
        if "reason" in log:
            reached &= pl.col("reason").ne_missing(CLAIMED) | (pl.col("stage") != "available")
        rows = log.with_columns(id=ids).filter(reached)
        if rows.is_empty() or found.log.span is None:
            raise InvalidInputError(
                f"log: it has no clients of the stage {self.stage!r}; give at least one"
            )
        low, end = found.log.span
        first = self.first_round
        if first is None:
            first = 0 if has_stages else low
        if low < first:
            raise InvalidInputError(
                f"first_round: the log has rows of round {low}, before round {first}; give at most "
                f"{low}"
            )
        rows = rows.with_columns(pl.col("round") - first)
        return rows, rows["id"].to_numpy(), end - first


def _read_once(log: str | Path | MemoryTable, options: dict[str, Any]) -> LogRows:
    """Read a log; a run asks several times for the same file, each time for other facts."""
    if not isinstance(log, str | Path) or not (path := expand_home(log)).is_file():
        return read_rows(replace(open_log(log), recorded=True), **options)
    status = path.stat()
    if (key := (path, status.st_size, status.st_mtime_ns, repr(options))) not in _last:
        _last.clear()
        _last[key] = read_rows(replace(open_log(path), recorded=True), **options)
    return _last[key]


_last: dict[tuple[Path, int, int, str], LogRows] = {}
"""The last file that was read, by its version and the options."""


@spec
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
            two-dimensional, a table without the columns; in `begin`, an array without one column
            for each client, or an invalid file.

    >>> running = Table(weights=[[0.5, 0.5], [0, 1]]).begin(Population(clients=2), seed=0)
    >>> running.round(1)
    AvailableClients(clients=array([1]), weights=array([1.]))
    """

    weights: str | Path | MemoryTable | Sequence[Sequence[float]] | Weights

    def __post_init__(self) -> None:
        if is_table(self.weights):
            table = to_polars("weights", self.weights)
            hint = (
                "write a table with a column for each client as an array, in the order of the ids"
            )
            require_columns("weights", table, ["round", "client"], hint)
            object.__setattr__(self, "weights", table)
        elif not isinstance(self.weights, str | Path):
            self._array()

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        return RecordedStream(*self._entries(population))

    def known_rates(self, population: Population, seed: int) -> Weights:
        """Return the share of the T rounds in which each client is available."""
        _, clients, _, length = self._entries(population)
        return recorded_rates(clients, population.clients, length)

    def _entries(self, population: Population) -> tuple[NDArray[np.int64], Ids, Weights, int]:
        """Return round, client and weight of each positive entry, and T."""
        if isinstance(self.weights, str | Path | pl.DataFrame):
            return _read_entries(self.weights, population)
        table = self._array()
        if table.shape[1] != population.clients:
            raise InvalidInputError(
                f"weights: {quantify(table.shape[1], 'column')} for "
                f"{quantify(population.clients, 'client')}; give one for each"
            )
        rounds, ids = np.nonzero(table)
        return rounds, ids, table[rounds, ids], len(table)

    def _array(self) -> Weights:
        given: Any = self.weights
        return require_nonnegative("weights", given, dimensions=2)


def _read_entries(
    table: str | Path | pl.DataFrame, population: Population
) -> tuple[NDArray[np.int64], Ids, Weights, int]:
    frame = to_polars("weights", table)
    require_columns("weights", frame, ["round", "client"], "rename the column")
    with error_prefix("weights"):
        log = normalise_log(
            frame.select(cs.by_name("round", "client", "stage", "weight", require_all=False))
        )
    if log["weight"].null_count():
        what = describe_table(table)
        raise InvalidInputError(f"weights: {what} lacks weights; give each row a weight")
    length = 0 if log.is_empty() else int(log["round"].max()) + 1  # type: ignore[arg-type]
    ids = number_clients("weights", log["client"], population)
    present = log["weight"].to_numpy() > 0
    rounds, weights = log["round"].to_numpy(), log["weight"].to_numpy()
    return rounds[present], ids[present], weights[present], length
