"""The clients of a log: those of a roster, with groups and wanted weights, 0..N − 1, or as seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.auditing.log.columns import name_unread, recognise
from fedtide.auditing.log.values import parse_numbers
from fedtide.errors import InvalidInputError, did_you_mean, list_names
from fedtide.participation.log.client_ids import normalise_clients
from fedtide.participation.log.tables import read_table, require_columns
from fedtide.text_files import DAMAGE, read_header, split_suffix
from fedtide.validation import expand_home

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
        path = expand_home(path)
        return cls.from_frame(read_table("roster", path, _find_ids(path)), group)

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, group: str | None = None) -> ClientTable:
        """Return the clients in a table with a column `client`, or an alias known from logs.

        A column `weight` gives the wanted weights, in any unit, and a column `samples`, or an
        alias known from logs, the sample counts. Every other column with 2 to 50 distinct values is
        a grouping, unless they are lists or objects; `group` selects one column instead, however
        many values it has. Case does not matter in `client` and `weight`.

        Raises:
            InvalidInputError: no column `client` or `group`, a `group` of lists or objects, no
                rows, a client twice, or invalid weights or sample counts.
        """
        for ours in ("client", "weight"):
            written = recognise(ours, frame.columns)
            if written is not None and ours not in frame.columns:
                frame = frame.rename({written: ours})
        require_columns("roster", frame, ["client"], "name the column of client ids 'client'")
        names = _parse_names(frame["client"])
        others = [name for name in frame.columns if name not in ("client", "weight")]
        if "weight" in frame.columns and (other := recognise("weight", others)) is not None:
            raise InvalidInputError(
                f"roster: two columns may be the weights, one of them {other!r}; remove one"
            )
        if group is not None and group not in others:
            raise InvalidInputError(
                f"groups: the roster has no column {group!r}; {did_you_mean(group, others)}"
            )
        flat = [name for name in others if _has_labels(frame[name])]
        if group is not None and group not in flat:
            raise InvalidInputError(
                f"groups: the roster's column {group!r} has lists or objects; give one value each"
            )
        counts = recognise("samples", flat)
        chosen = [n for n in flat if n != counts and 1 < frame[n].n_unique() <= _MAX_GROUPS]
        chosen = [group] if group else chosen
        unread = name_unread([name for name in others if name not in {*chosen, counts}])
        return cls(
            names,
            {name: frame[name].cast(pl.String).fill_null("(none)") for name in chosen},
            _normalise_weights(frame["weight"], names) if "weight" in frame.columns else None,
            None if counts is None else _parse_samples(frame[counts]),
            (f"columns of the roster that are not read: {unread}",) if unread else (),
        )


def list_clients(
    seen: Sequence[int | str], roster: ClientTable | None, clients: int | None
) -> pl.Series:
    """Return the names of all clients, given those that the log names."""
    if roster is not None:
        return roster.names
    if clients is None:
        return pl.Series("client", _within_64_bits(sorted(seen)))
    if seen and isinstance(seen[0], str):
        if len(seen) > clients:
            raise InvalidInputError(
                f"clients: the log names {len(seen)} clients, more than {clients}; "
                "give a larger number"
            )
        unnamed = [f"(unnamed {i + 1})" for i in range(clients - len(seen))]
        return pl.Series("client", [*sorted(seen), *unnamed])
    return pl.Series("client", np.arange(clients))


def reject_decimals(names: Sequence[int | str]) -> None:
    """Raise InvalidInputError if two ids are the same number, as in 7 and 7.0."""
    written = set(names)
    for name in names:
        if isinstance(name, str) and name.endswith(".0") and name[:-2] in written:
            raise InvalidInputError(
                f"client: the log has the clients {name[:-2]!r} and {name!r}; "
                "write the id of a client in one way"
            )


def find_positions(
    seen: Sequence[int | str], names: pl.Series, of_roster: bool
) -> NDArray[np.int32]:
    """Return the position of each client seen in `names`, which are `of_roster` or 0..N − 1."""
    positions = {str(name): i for i, name in enumerate(names.to_list())}
    unknown = [name for name in seen if str(name) not in positions]
    if unknown:
        where = (
            f"{len(names)} client{'' if len(names) == 1 else 's'} of the roster, such as "
            f"{names[0]!r:.60}; complete it, or write ids in one way"
        )
        if not of_roster:
            counted = unknown == [len(names)] and 0 not in seen
            remedy = "" if counted else "more with clients= or --clients, or "
            where = (
                f"clients 0 to {len(names) - 1}; give {remedy}their names with roster= or --roster"
                f"{', if ids count from 1' if counted else ''}"
            )
        verb = "is" if len(unknown) == 1 else "are"
        raise InvalidInputError(f"client: {list_names(unknown)} {verb} not among the {where}")
    return np.array([positions[str(name)] for name in seen], dtype=np.int32)


def _parse_names(column: pl.Series) -> pl.Series:
    """Return the ids of the clients; raise InvalidInputError if there are none, or duplicates."""
    names = normalise_clients("roster", column)
    if names.dtype == pl.String:
        names = names.str.strip_chars()
    if names.is_empty():
        raise InvalidInputError("roster: the table is empty; give one row per client")
    if names.is_duplicated().any():
        raise InvalidInputError(
            f"roster: client {names.filter(names.is_duplicated())[0]!r} appears twice; "
            "give one row per client"
        )
    return names


def _has_labels(column: pl.Series) -> bool:
    """Return whether the values of a column may name groups."""
    return not (column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Duration, pl.Object))


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
    numbers = column.cast(pl.Float64) if column.dtype.is_numeric() else column
    try:
        return parse_numbers("samples", numbers.to_arrow()).astype(np.float64)
    except InvalidInputError as error:
        what = str(error).removeprefix("samples: ")
        raise InvalidInputError(
            f"roster: in {column.name!r:.60}, {what}; rename the column if it says something else"
        ) from None


def _find_ids(path: Path) -> str:
    """Return the column of clients in a text file, whose ids may have leading zeros."""
    if split_suffix(path)[0] not in (".csv", ".tsv") or not path.is_file():
        return "client"
    try:
        names = read_header(path).names
    except DAMAGE:  # `read_table` says what is wrong with the file
        return "client"
    return recognise("client", names) or "client"


def _within_64_bits(names: list[Any]) -> list[Any]:
    """Return all names as strings if whole numbers among them exceed 64 bits."""
    fits = not names or isinstance(names[0], str) or -(2**63) <= names[0] <= names[-1] < 2**63
    return names if fits else [str(name) for name in names]
