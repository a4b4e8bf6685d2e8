"""What happened once, again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.availability._recorded import Recorded, frequencies
from fedtide.participation.availability.base import Availability, AvailabilityStream
from fedtide.participation.log.client_ids import numbered_clients
from fedtide.participation.log.schema import STAGES, normalise_log, read_log
from fedtide.population import Population


@dataclass(frozen=True)
class Replay(Availability):
    """The rounds of a participation log: available is who reached `stage` there.

    Weights are those of the log where it has one for each such client. The log's last round is the
    last; afterwards nobody is available.

    Args:
        log: the path of a participation log, or the log as a Polars DataFrame. Clients that are
            whole numbers must be 0..N−1; strings are numbered in sorted order.
        stage: how far a client must have come: "used" repeats who took part, "available" who could
            have (to try another selection on them).

    Raises:
        InvalidInputError: an unknown stage; in `begin`, a log that `read_log` refuses or that does not fit
            the population.

    >>> log = pl.DataFrame({"round": [0, 1, 1], "client": ["ann", "bob", "ann"]})
    >>> Replay(log).begin(Population(clients=2), seed=0).round(1).clients
    array([0, 1])
    """

    log: str | Path | pl.DataFrame
    stage: str = "used"

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise InvalidInputError(
                f"stage: {self.stage!r} is unknown; {did_you_mean(self.stage, STAGES)}"
            )

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        """Return the running process."""
        rows, clients, length = self._rows(population.clients)
        weights = None if rows["weight"].null_count() else rows["weight"].to_numpy()
        return Recorded(rows["round"].to_numpy(), clients, weights, length)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return in which share of the log's rounds each client is available."""
        _, clients, length = self._rows(population.clients)
        return frequencies(clients, population.clients, length)

    def _rows(self, clients: int) -> tuple[pl.DataFrame, NDArray[np.int64], int]:
        """Return the rows that reached `stage`, the ids of their clients, and T."""
        log = normalise_log(self.log) if isinstance(self.log, pl.DataFrame) else read_log(self.log)
        ids = numbered_clients("log", log["client"], clients)
        reached = log["stage"].is_in(STAGES[STAGES.index(self.stage) :])
        length = 0 if log.is_empty() else int(log["round"].max()) + 1  # type: ignore[arg-type]
        return log.filter(reached), ids[reached.to_numpy()], length
