"""The participation log: which clients were available, selected, reported and used.

One row for each (round, client): `round` (int64), `client` (int64 or string), `stage` (the
furthest that the client reached), `weight` (its q_t^n, or null), and if known `time` (when its
update arrived, in seconds), `started` (when it was asked) and `reason` (why it was not used).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.participation.availability.base import Ids
from fedtide.participation.log.client_ids import name_clients
from fedtide.participation.schedule import Participants
from fedtide.participation.timing import TimedParticipants
from fedtide.population import Names
from fedtide.validation import require_choice

STAGES = ("available", "selected", "reported", "used")
"""The stages of a client in a round, in ascending order."""

REASONS: Mapping[str, str] = {
    "no reply": "it did not reply in time",
    "offline": "it went offline before it replied",
    "error": "its app failed",
    "late": "it replied after its round, and the method uses no late updates",
    "malformed": "its reply was not an update of this model",
    "not finite": "its update held numbers that were not finite, or too large",
    "invalid": "its counts or metrics were out of range",
    "learning rate": "its learning rate was not the requested one, or not that of the others",
    "false claim": "it claimed to be another client or to answer another round",
    "not followed": "it did not follow the instructions of the method",
    "lost memory": "it had lost its memory of its last update",
    "quarantined": "the operator had quarantined it",
    "unbounded": "with its update the state would have exceeded the range of its numbers",
    "unregistered": "a node without the registered key claimed its name",
}
"""Why a client's update was not used: the code in a ledger, and a sentence about the client."""

CLAIMED = "unregistered"
"""The reason in a row of stage "available" whose client was not there itself."""

Stage = pl.Enum(STAGES)
"""The Polars type of the column `stage`."""

LogColumns = Mapping[str, NDArray[Any]]
"""Log rows as columns: round, client, stage (its index in STAGES), weight, and for rounds that last
started and time (NaN: none)."""

_NO_ROWS: LogColumns = {
    "round": np.empty(0, dtype=np.int64),
    "client": np.empty(0, dtype=np.int64),
    "stage": np.empty(0, dtype=np.uint8),
    "weight": np.empty(0),
}


def round_rows(
    participants: Participants, lowest: str = "used", used: Ids | None = None
) -> dict[str, NDArray[Any]]:
    """Return the log rows of one round as columns; O(rows).

    Args:
        participants: the round.
        lowest: the lowest stage to be logged; "available" logs every available client.
        used: the clients whose updates were used, sorted; None: all that reported.

    Raises:
        InvalidInputError: an unknown stage.
    """
    reported = participants.reported
    used = reported if used is None else used
    levels = (participants.available, participants.selected, reported, used)
    require_choice("stage", lowest, STAGES)
    start = STAGES.index(lowest)
    clients = levels[start]
    stage = np.full(len(clients), start, dtype=np.uint8)
    for level in levels[start + 1 :]:
        stage[_positions(level, clients)] += 1
    rounds = np.full(len(clients), participants.round, dtype=np.int64)
    weight = _spread(participants.weights, reported, clients)
    rows: dict[str, NDArray[Any]] = {
        "round": rounds,
        "client": clients,
        "stage": stage,
        "weight": weight,
    }
    if isinstance(participants, TimedParticipants):
        started = np.full(len(participants.selected), participants.started)
        rows["started"] = _spread(started, participants.selected, clients)
        rows["time"] = _spread(participants.arrived, reported, clients)
    return rows


def _spread(values: NDArray[np.float64], of: Ids, clients: Ids) -> NDArray[np.float64]:
    """Return the values for these clients, NaN for those without; one set contains the other."""
    if len(clients) <= len(of):
        return values[_positions(clients, of)]
    found = np.full(len(clients), np.nan)
    found[_positions(of, clients)] = values
    return found


def _positions(subset: Ids, clients: Ids) -> Ids | slice:
    """Return the positions of `subset` in `clients`; both sorted."""
    return slice(None) if len(subset) == len(clients) else np.searchsorted(clients, subset)


def to_frame(rows: Sequence[LogColumns], names: Names | None = None) -> pl.DataFrame:
    """Return the participation log of many rounds' `round_rows`, in their order.

    Args:
        rows: of each round.
        names: of the clients, written to the column `client` instead of their ids.
    """
    rows = rows or [_NO_ROWS]
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    stages = dict(enumerate(STAGES))
    return pl.DataFrame(columns).with_columns(
        name_clients(columns["client"], names),
        pl.col("stage").replace_strict(stages, return_dtype=Stage),
        pl.selectors.float().fill_nan(None),
    )
