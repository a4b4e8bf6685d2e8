"""The participation log: which clients were available, selected, reported and used.

One row for each (round, client): `round` (int64), `client` (int64 or string), `stage` (the
furthest that the client reached), `weight` (its q_t^n, or null), and if known `time` and `reason`
(why it was not used).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import Ids
from fedtide.participation.log.client_ids import name_clients, normalise_clients
from fedtide.participation.log.tables import read_table, require_columns, write_table
from fedtide.participation.schedule import Participants
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
    "unbounded": "with its update the state would have exceeded the range of its numbers",
    "unregistered": "a node without the registered key claimed its name",
}
"""Why a client's update was not used: the code in a ledger, and a sentence about the client."""

EVENT_NAMES = ("event", "event_type")
"""Column names that describe the outcome: read as the stage if no other column may be it."""

OUTCOME_NAMES = (
    *("status", "state", "success", "succeeded", "failed", "is_failed", "completed"),
    *("outcome", "result", "ok", "error", "dropped", *EVENT_NAMES),
)
"""Column names of other logs that may say that a row's client did not take part in the end."""

CLAIMED = "unregistered"
"""The reason in a row of stage "available" whose client was not there itself."""

Stage = pl.Enum(STAGES)
"""The Polars type of the column `stage`."""

LogColumns = Mapping[str, NDArray[Any]]
"""Log rows as columns: round, client, stage (its index in STAGES), weight (NaN: none)."""

_NO_ROWS: LogColumns = {
    "round": np.empty(0, dtype=np.int64),
    "client": np.empty(0, dtype=np.int64),
    "stage": np.empty(0, dtype=np.uint8),
    "weight": np.empty(0),
}


def read_log(path: str | Path, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Read and validate the participation log in a Parquet, CSV or JSON lines file.

    Args:
        path: of the file: .parquet, .csv, .jsonl or .ndjson.
        columns: the file's names of log columns, such as {"round": "server_round"}.

    Returns:
        round (Int64), client (Int64 or String), stage (Enum of STAGES; "used" if missing), weight
        (Float64, null if missing), and time and reason (String) if the file has them; in the order
        of the file.

    Raises:
        InvalidInputError: a file that is missing, empty, damaged or of an unknown type, or rows
            that `normalise_log` rejects.
    """
    client = (columns or {}).get("client", "client")
    return normalise_log(read_table("log", path, client), columns)


def write_log(path: str | Path, frame: pl.DataFrame) -> None:
    """Write a participation log atomically as Parquet, CSV or JSON lines, by the suffix.

    Raises:
        InvalidInputError: an unknown suffix, or rows that `normalise_log` rejects.
    """
    write_table("log", path, normalise_log(frame))


def normalise_log(frame: pl.DataFrame, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Validate a table and return it in the form of `read_log`.

    Raises:
        InvalidInputError: no column round or client; a round that is negative or not a whole
            number; client ids that are mixed or missing; an unknown stage; a weight that is
            negative or not finite; reasons that are not text; a client twice in a round.

    >>> normalise_log(pl.DataFrame({"round": [0], "client": ["ann"]})).row(0)
    (0, 'ann', 'used', None)
    """
    frame = _rename_columns(frame, columns or {})
    log = pl.DataFrame(
        {
            "round": parse_rounds(frame["round"]),
            "client": normalise_clients("client", frame["client"]),
            "stage": _parse_stages(frame),
            "weight": _parse_weights(frame),
        }
    )
    _reject_duplicates(log)
    if "time" in frame.columns:
        log = log.with_columns(frame["time"])
    if "reason" in frame.columns:
        log = log.with_columns(_parse_reasons(frame["reason"]))
    return log


def round_rows(
    participants: Participants, lowest: str = "used", used: Ids | None = None
) -> dict[str, NDArray[np.generic]]:
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
    if clients is used:
        weight = participants.weights[_positions(used, reported)]
    else:
        weight = np.full(len(clients), np.nan)
        weight[_positions(reported, clients)] = participants.weights
    rounds = np.full(len(clients), participants.round, dtype=np.int64)
    return {"round": rounds, "client": clients, "stage": stage, "weight": weight}


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
    columns = {name: np.concatenate([row[name] for row in rows]) for name in _NO_ROWS}
    stages = dict(enumerate(STAGES))
    return pl.DataFrame(columns).with_columns(
        name_clients(columns["client"], names),
        pl.col("stage").replace_strict(stages, return_dtype=Stage),
        pl.col("weight").fill_nan(None),
    )


def _rename_columns(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    known = ("round", "client", "stage", "weight", "time")
    for name in columns:
        require_choice("columns", name, known)
    hint = "rename a column, or give its name with columns={'round': ..., ...}"
    require_columns("log", frame, [*columns.values()], "columns= may name only these")
    # A column that is mapped to a name replaces the column of that name.
    others = [name for name in frame.columns if name not in {*columns, *columns.values()}]
    frame = frame.select(*others, **{ours: pl.col(theirs) for ours, theirs in columns.items()})
    require_columns("log", frame, ["round", "client"], hint)
    return frame


def parse_rounds(column: pl.Series) -> pl.Series:
    """Return a column of rounds as int64.

    Raises:
        InvalidInputError: anything but whole numbers of at least 0.
    """
    if column.is_empty():
        return column.cast(pl.Int64, strict=False)
    if not column.dtype.is_numeric():
        raise InvalidInputError(
            f"round: type {column.dtype} is not numeric; give whole numbers from 0"
        )
    rounds = column.cast(pl.Int64, strict=False)
    wrong = column.filter((rounds != column).fill_null(True) | (rounds < 0).fill_null(True))
    if len(wrong):
        raise InvalidInputError(f"round: {wrong[0]} is not a round; give whole numbers from 0")
    return rounds


def _parse_stages(frame: pl.DataFrame) -> pl.Series:
    if "stage" not in frame.columns:
        return pl.Series("stage", ["used"], dtype=Stage).new_from_index(0, len(frame))
    stages = frame["stage"].cast(pl.String)
    missing = stages.is_null()
    if missing.any() and not missing.all():
        raise InvalidInputError(
            f"stage: {missing.sum():,} of {len(stages):,} rows without a stage, row "
            f"{missing.to_list().index(True) + 1:,} first; give one of {', '.join(STAGES)}, or "
            "remove the column if all rows are used"
        )
    stages = stages.fill_null("used")
    for stage in stages.unique():
        require_choice("stage", stage, STAGES)
    return stages.cast(Stage)


def _parse_weights(frame: pl.DataFrame) -> pl.Series:
    if "weight" not in frame.columns:
        return pl.Series("weight", [None], dtype=pl.Float64).new_from_index(0, len(frame))
    column = frame["weight"]
    try:
        weights = column.cast(pl.Float64)
    except pl.exceptions.PolarsError:
        raise InvalidInputError(
            f"weight: type {column.dtype} is not numeric; give numbers"
        ) from None
    wrong = weights.filter(~weights.is_finite() | (weights < 0))
    if len(wrong):
        raise InvalidInputError(
            f"weight: {wrong[0]} is not a weight; give finite numbers of at least 0"
        )
    return weights


def _parse_reasons(column: pl.Series) -> pl.Series:
    try:
        return column.cast(pl.String)
    except pl.exceptions.PolarsError:
        raise InvalidInputError(f"reason: type {column.dtype} is not text; give text") from None


def _reject_duplicates(log: pl.DataFrame) -> None:
    # A table of all pairs would take 150 bytes a row.
    twice = log.group_by("round").agg(pl.col("client").n_unique() < pl.len()).filter("client")
    if len(twice):
        repeated = log.filter(log.select("round", "client").is_duplicated())
        t, client = repeated.select("round", "client").row(0)
        raise InvalidInputError(
            f"client: {client!r} appears twice in round {t}; keep the row of the furthest stage"
        )
