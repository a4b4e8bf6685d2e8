"""Who could have come: the clients by name, their groups, and how much each is meant to count."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.log.client_ids import normalise_clients
from fedtide.participation.log.tables import read_table, require_columns


@dataclass(frozen=True, eq=False)
class ClientTable:
    """The clients of a federation, whether they ever came or not.

    Args:
        names: their ids, each once, shape (N,).
        groups: what group each is in, by the name of the grouping: a column of N strings each.
        wanted: how much each is meant to count, a_n >= 0 with sum 1, (N,); None: 1 / N each.
    """

    names: pl.Series
    groups: dict[str, pl.Series] = field(default_factory=dict)
    wanted: NDArray[np.float64] | None = None


def read_roster(path: str | Path, group: str | None = None) -> ClientTable:
    """Return the roster in a Parquet, CSV or JSON lines file: `client`, and columns of groups.

    A column `weight` says how much each client is meant to count (in any unit). Every other column
    with at most 50 different values is a grouping; `group` asks for one by name, whatever it holds.

    Raises:
        InvalidInputError: a file that cannot be read, no column `client` or `group`, a client twice, or
            weights that are no weights.
    """
    return roster_of(read_table("roster", path), group)


def roster_of(frame: pl.DataFrame, group: str | None = None) -> ClientTable:
    """Return the roster in a table, as `read_roster` does from a file."""
    require_columns("roster", frame, ["client"], "name the column of client ids 'client'")
    names = normalise_clients("roster", frame["client"])
    if names.is_empty():
        raise InvalidInputError("roster: it names no clients; give one row for each client")
    if names.is_duplicated().any():
        raise InvalidInputError(
            f"roster: client {names.filter(names.is_duplicated())[0]!r} is there twice; "
            "give one row for each client"
        )
    others = [name for name in frame.columns if name not in ("client", "weight")]
    if group is not None and group not in others:
        raise InvalidInputError(
            f"groups: the roster has no column {group!r}; {did_you_mean(group, others)}"
        )
    chosen = [group] if group else [n for n in others if 1 < frame[n].n_unique() <= 50]
    groups = {name: frame[name].cast(pl.String).fill_null("(none)") for name in chosen}
    return ClientTable(names, groups, _wanted(frame))


def _wanted(frame: pl.DataFrame) -> NDArray[np.float64] | None:
    if "weight" not in frame.columns:
        return None
    weights = frame["weight"].cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        raise InvalidInputError(
            "roster: a weight is no number of at least 0; give one to every client"
        )
    return np.asarray(weights / weights.sum())
