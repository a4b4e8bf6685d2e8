"""The clients of a log: those of a roster, with groups and wanted weights, 0..N − 1, or as seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean, list_names
from fedtide.participation.log.columns import list_columns, recognise
from fedtide.participation.log.tables import open_table, require_columns, to_polars
from fedtide.participation.log.values import parse_amounts, parse_clients

_MAX_GROUPS = 50


@dataclass(frozen=True, eq=False)
class ClientTable:
    """All clients of a federation, including those that never took part.

    Args:
        names: unique client ids, shape (N,).
        groups: one column of N group labels per grouping.
        wanted: the wanted weight a_n >= 0 of each client, summing to 1, (N,); None: 1 / N each.
        samples: the sample count of each client, (N,), NaN where it has none; None: not known.
        notes: facts about how the table was read, one sentence each.
    """

    names: pl.Series
    groups: dict[str, pl.Series] = field(default_factory=dict)
    wanted: NDArray[np.float64] | None = None
    samples: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_file(cls, path: str | Path, group: str | None = None) -> ClientTable:
        """Read a Parquet, CSV or JSON lines file; columns as in `from_frame`.

        Raises:
            InvalidInputError: an unreadable file, or a table that `from_frame` refuses.
        """
        client = _recognise("client", open_table("roster", path).names) or "client"
        return cls.from_frame(to_polars("roster", path, client), group)

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, group: str | None = None) -> ClientTable:
        """Return the clients in a table with a column `client`, or an alias known from logs.

        A column `weight` gives the wanted weights, in any unit, and a column `samples`, or an
        alias known from logs, the sample counts. Every other column with 2 to 50 distinct values is
        a grouping, unless they are lists or objects; `group` selects one column instead, however
        many values it has. Case does not matter in these names.

        Raises:
            InvalidInputError: no column `client` or `group`, a `group` of lists or objects, no
                rows, a client twice, or invalid weights or sample counts.
        """
        client, weight = (_recognise(ours, frame.columns) for ours in ("client", "weight"))
        if client is None:
            require_columns("roster", frame, ["client"], "name the column of client ids 'client'")
        names = _parse_names(frame[client or "client"])
        others = [name for name in frame.columns if name not in (client, weight)]
        flat = [name for name in others if not _is_no_label(frame[name].dtype)]
        if group is not None and group not in flat:
            what = f"the roster has no column {group!r}; {did_you_mean(group, others)}"
            if group in others:
                what = f"the roster's column {group!r} has lists or objects; give one value each"
            raise InvalidInputError(f"groups: {what}")
        counts = _recognise("samples", flat)
        chosen = [n for n in flat if n != counts and 1 < frame[n].n_unique() <= _MAX_GROUPS]
        chosen = [group] if group else chosen
        unread = list_columns([name for name in others if name not in {*chosen, counts}])
        return cls(
            names,
            {name: frame[name].cast(pl.String).fill_null("(none)") for name in chosen},
            None if weight is None else _normalise_weights(frame[weight], names),
            None if counts is None else _parse_samples(frame[counts]),
            (f"columns of the roster that are not read: {unread}",) if unread else (),
        )


def number_names(
    seen: pl.Series, roster: pl.Series | None, clients: int | None
) -> tuple[pl.Series, NDArray[np.int32]]:
    """Return the names of all clients, and the position of each client seen.

    Args:
        seen: the clients in the log, each once: numbers or strings.
        roster: the names of all clients; None: unknown.
        clients: their number; None: unknown.

    Raises:
        InvalidInputError: a client that is not in the roster, or not among 0..clients − 1; more
            clients than there should be.
    """
    if roster is None and clients is not None and seen.dtype != pl.String:
        roster = pl.Series("client", np.arange(clients))
    if roster is None:
        names = seen.sort()
        if clients is not None:
            if len(seen) > clients:
                raise InvalidInputError(
                    f"clients: the log names {len(seen)} clients, more than {clients}; "
                    "give a larger number"
                )
            unnamed = [f"(unnamed {i + 1})" for i in range(clients - len(seen))]
            names = names.extend(pl.Series("client", unnamed, dtype=pl.String))
        positions = names.head(len(seen)).search_sorted(seen)
        return names.alias("client"), positions.to_numpy().astype(np.int32)
    known = roster
    if known.dtype != seen.dtype:  # 7 and "7" are one name
        known, seen = known.cast(pl.String), seen.cast(pl.String)
    order = known.arg_sort()
    places = known.gather(order).search_sorted(seen).clip(upper_bound=len(known) - 1)
    found = order.gather(places)
    if len(unknown := seen.filter(known.gather(found) != seen)):
        where = (
            f"{len(known)} client{'' if len(known) == 1 else 's'} of the roster, such as "
            f"{known[0]!r:.60}; complete it, or write ids in one way"
        )
        if clients is not None:
            where = (
                f"clients 0 to {clients - 1}; give more with clients= or --clients, or their names "
                "with roster= or --roster, if ids count from 1"
            )
        verb = "is" if len(unknown) == 1 else "are"
        raise InvalidInputError(
            f"client: {list_names(unknown.sort().to_list())} {verb} not among the {where}"
        )
    return roster, found.to_numpy().astype(np.int32)


def _recognise(ours: str, names: list[str]) -> str | None:
    try:
        return recognise(ours, names)
    except InvalidInputError as error:
        what = str(error).removeprefix("columns: ").partition("; ")[0]
        raise InvalidInputError(f"roster: {what}; remove one") from None


def _parse_names(column: pl.Series) -> pl.Series:
    """Return the ids of the clients; raise InvalidInputError if there are none, or duplicates."""
    try:
        names = parse_clients(column, exact=False, texts=False)
    except InvalidInputError as error:
        raise InvalidInputError(f"roster: {str(error).removeprefix('client: ')}") from None
    if names.is_empty():
        raise InvalidInputError("roster: the table is empty; give one row per client")
    if names.is_duplicated().any():
        raise InvalidInputError(
            f"roster: client {names.filter(names.is_duplicated())[0]!r} appears twice; "
            "give one row per client"
        )
    return names


def _is_no_label(kind: pl.DataType) -> bool:
    return kind.is_nested() or kind in (pl.Binary, pl.Duration, pl.Object)


def _normalise_weights(column: pl.Series, names: pl.Series) -> NDArray[np.float64]:
    weights = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        given = column[int(wrong[0])]
        said = "none" if given is None else repr(given)
        raise InvalidInputError(
            f"roster: the weight of client {names[int(wrong[0])]!r:.60} is {said:.40}; give every "
            "client a number of at least 0"
        )
    if not weights.any():
        raise InvalidInputError(
            "roster: all weights are 0; give at least one client a positive one"
        )
    weights = weights / weights.max()  # the sum of finite numbers may not be finite
    return np.asarray(weights / weights.sum())


def _parse_samples(column: pl.Series) -> NDArray[np.float64]:
    try:
        return parse_amounts("samples", column).fill_null(np.nan).to_numpy()
    except InvalidInputError as error:
        what = str(error).removeprefix("samples: ")
        raise InvalidInputError(
            f"roster: in {column.name!r:.60}, {what}; rename the column if it says something else"
        ) from None
