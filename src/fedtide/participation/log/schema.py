"""The participation log: who was available, selected, reported and used, in one plain table.

One row for each (round, client): `round` (int64), `client` (int64 or string), `stage` (the
furthest that the client reached), `weight` (its q_t^n, or null), and `time` where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.availability.base import Ids
from fedtide.participation.log.client_ids import normalise_clients
from fedtide.participation.log.tables import need_columns, read_table, write_table
from fedtide.participation.participants import Participants

STAGES = ("available", "selected", "reported", "used")
"""How far a client came in a round, in rising order."""

Stage = pl.Enum(STAGES)
"""The type of the column `stage`."""

LogColumns = Mapping[str, NDArray[np.generic]]
"""Log rows as columns: round, client, stage (its place in STAGES), weight (NaN: none)."""


def read_log(path: str | Path, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Return the participation log in a Parquet, CSV or JSON lines file, checked.

    Args:
        path: of the file: .parquet, .csv, .jsonl or .ndjson.
        columns: what the file calls a column of the log, such as {"round": "server_round"}.

    Returns:
        round (Int64), client (Int64 or String), stage (Enum of STAGES; "used" where the file says
        nothing), weight (Float64, null where it says nothing), and time if the file has it; in the
        order of the file.

    Raises:
        InvalidInputError: a file that is missing, empty, broken or of an unknown kind, or rows that
            `normalise_log` refuses.
    """
    client = (columns or {}).get("client", "client")
    return normalise_log(read_table("log", path, client), columns)


def write_log(path: str | Path, frame: pl.DataFrame) -> None:
    """Write a participation log, as Parquet, CSV or JSON lines by the suffix, atomically.

    Raises:
        InvalidInputError: a suffix of no known kind, or rows that `normalise_log` refuses.
    """
    write_table("log", path, normalise_log(frame))


def normalise_log(frame: pl.DataFrame, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Return the table as `read_log` does, checked.

    Raises:
        InvalidInputError: no column round or client; a round that is no whole number or negative; client
            ids that are mixed or missing; an unknown stage; a weight that is negative or not
            finite; a client twice in a round.

    >>> normalise_log(pl.DataFrame({"round": [0], "client": ["ann"]})).row(0)
    (0, 'ann', 'used', None)
    """
    frame = _renamed(frame, columns or {})
    log = pl.DataFrame(
        {
            "round": _rounds(frame["round"]),
            "client": normalise_clients("client", frame["client"]),
            "stage": _stages(frame),
            "weight": _weights(frame),
        }
    )
    _refuse_repeated(log)
    if "time" in frame.columns:
        log = log.with_columns(frame["time"])
    return log


def round_rows(
    participants: Participants, lowest: str = "used", used: Ids | None = None
) -> dict[str, NDArray[np.generic]]:
    """Return one round's log rows as columns; O(rows).

    Args:
        participants: the round.
        lowest: the lowest stage to be logged: "available" logs everyone who could have come.
        used: the clients whose updates were used, sorted; None: all who reported.

    Raises:
        InvalidInputError: an unknown stage.
    """
    reported = participants.reported
    used = reported if used is None else used
    levels = (participants.available, participants.selected, reported, used)
    start = _stage_number(lowest)
    clients = levels[start]
    stage = np.full(len(clients), start, dtype=np.uint8)
    for level in levels[start + 1 :]:
        stage[_places(level, clients)] += 1
    if clients is used:
        weight = participants.weights[_places(used, reported)]
    else:
        weight = np.full(len(clients), np.nan)
        weight[_places(reported, clients)] = participants.weights
    rounds = np.full(len(clients), participants.round, dtype=np.int64)
    return {"round": rounds, "client": clients, "stage": stage, "weight": weight}


def _places(some: Ids, all: Ids) -> Ids | slice:
    """Return where `some` stand in `all`, which holds them; both sorted."""
    return slice(None) if len(some) == len(all) else np.searchsorted(all, some)


def to_frame(rows: Sequence[LogColumns]) -> pl.DataFrame:
    """Return the participation log of many rounds' `records`, in their order."""
    if not rows:
        return pl.DataFrame(
            schema={"round": pl.Int64, "client": pl.Int64, "stage": Stage, "weight": pl.Float64}
        )
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    names = dict(enumerate(STAGES))
    return pl.DataFrame(columns).with_columns(
        pl.col("stage").replace_strict(names, return_dtype=Stage),
        pl.col("weight").fill_nan(None),
    )


def _renamed(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    known = ("round", "client", "stage", "weight", "time")
    for name in columns:
        if name not in known:
            raise InvalidInputError(f"columns: a log has no {name!r}; {did_you_mean(name, known)}")
    hint = "name it like that, or say what it is called with columns={'round': ..., ...}"
    need_columns("log", frame, [*columns.values()], "columns= may name only those")
    # A column that stands in for another hides one of that other name.
    frame = frame.drop(
        [name for name in columns if name in frame.columns and columns[name] != name]
    )
    frame = frame.rename({theirs: ours for ours, theirs in columns.items()})
    need_columns("log", frame, ["round", "client"], hint)
    return frame


def _rounds(column: pl.Series) -> pl.Series:
    if column.is_empty():
        return column.cast(pl.Int64, strict=False)
    if not column.dtype.is_numeric():
        raise InvalidInputError(
            f"round: type {column.dtype} is no number; give whole numbers from 0"
        )
    rounds = column.cast(pl.Int64, strict=False)
    wrong = column.filter((rounds != column).fill_null(True) | (rounds < 0).fill_null(True))
    if len(wrong):
        raise InvalidInputError(f"round: {wrong[0]} is no round; give whole numbers from 0")
    return rounds


def _stages(frame: pl.DataFrame) -> pl.Series:
    if "stage" not in frame.columns:
        return pl.Series("stage", ["used"], dtype=Stage).new_from_index(0, len(frame))
    stages = frame["stage"].cast(pl.String).fill_null("used")
    for stage in stages.unique():
        _stage_number(stage)
    return stages.cast(Stage)


def _weights(frame: pl.DataFrame) -> pl.Series:
    if "weight" not in frame.columns:
        return pl.Series("weight", [None], dtype=pl.Float64).new_from_index(0, len(frame))
    column = frame["weight"]
    try:
        weights = column.cast(pl.Float64)
    except pl.exceptions.PolarsError:
        raise InvalidInputError(f"weight: type {column.dtype} is no number; give numbers") from None
    wrong = weights.filter(~weights.is_finite() | (weights < 0))
    if len(wrong):
        raise InvalidInputError(
            f"weight: {wrong[0]} is no weight; give finite numbers of at least 0"
        )
    return weights


def _refuse_repeated(log: pl.DataFrame) -> None:
    repeated = log.filter(log.select("round", "client").is_duplicated())
    if len(repeated):
        t, client = repeated.select("round", "client").row(0)
        raise InvalidInputError(
            f"client: {client!r} is twice in round {t}; keep one row, of the furthest stage"
        )


def _stage_number(stage: str) -> int:
    if stage not in STAGES:
        raise InvalidInputError(f"stage: {stage!r} is unknown; {did_you_mean(stage, STAGES)}")
    return STAGES.index(stage)
