"""Replay of a participation log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability._recorded import RecordedStream, recorded_rates
from fedtide.participation.availability.base import Availability, AvailabilityStream
from fedtide.participation.log.client_ids import number_clients
from fedtide.participation.log.schema import CLAIMED, STAGES, normalise_log, read_log
from fedtide.population import Population
from fedtide.validation import require_choice


@configurable
class Replay(Availability):
    """The rounds of a participation log: the clients that reached `stage` are available.

    Weights are those of the log if it has one for each of these clients. Nobody is available after
    the last round of the log.

    Args:
        log: the path of a participation log, or of the folder of a finished run, or the log as a
            Polars DataFrame. Clients are given by name if the data name them, else by id 0..N−1, or
            as N different strings, numbered in sorted order.
        stage: the stage that a client must have reached: "used" repeats the participation,
            "available" the availability (to apply another selection to it).
        columns: the log's own names of columns, such as {"round": "server_round"}.

    Raises:
        InvalidInputError: an unknown stage; in `begin`, a log that `read_log` rejects, that has no
            clients of the stage, or that does not fit the population.

    >>> log = pl.DataFrame({"round": [0, 1, 1], "client": ["ann", "bob", "ann"]})
    >>> Replay(log).begin(Population(clients=2), seed=0).round(1).clients
    array([0, 1])
    """

    log: str | Path | pl.DataFrame
    stage: str = "used"
    columns: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        require_choice("stage", self.stage, STAGES)
        if not isinstance(self.log, pl.DataFrame) and Path(self.log).is_dir():
            object.__setattr__(self, "log", Path(self.log) / "participation.parquet")

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        rows, clients, length = self._rows(population)
        weights = None if rows["weight"].null_count() else rows["weight"].to_numpy()
        return RecordedStream(rows["round"].to_numpy(), clients, weights, length)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return the share of the log's rounds in which each client is available."""
        _, clients, length = self._rows(population)
        return recorded_rates(clients, population.clients, length)

    def _rows(self, population: Population) -> tuple[pl.DataFrame, NDArray[np.int64], int]:
        """Return the rows that reached `stage`, their client ids, and the number of rounds."""
        if isinstance(self.log, pl.DataFrame):
            log = normalise_log(self.log, self.columns)
        else:
            log = read_log(self.log, self.columns)
        ids = number_clients("log", log["client"], population)
        reached = log["stage"].is_in(STAGES[STAGES.index(self.stage) :])
        if "reason" in log.columns:
            reached &= log["reason"].ne_missing(CLAIMED) | (log["stage"] != "available")
        if not reached.any():
            what = "rows" if log.is_empty() else f"clients of the stage {self.stage!r}"
            raise InvalidInputError(f"log: it has no {what}; give at least one")
        length = int(log["round"].max()) + 1  # type: ignore[arg-type]
        return log.filter(reached), ids[reached.to_numpy()], length
