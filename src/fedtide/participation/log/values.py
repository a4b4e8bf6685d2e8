"""The values of a log's columns: clients, lists of them, stages, weights and counts, reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping

import polars as pl

from fedtide.errors import InvalidInputError, list_names
from fedtide.participation.log.client_ids import normalise_clients, parse_whole_numbers
from fedtide.participation.log.columns import (
    MISSING,
    NOUNS,
    as_words,
    name_columns,
    name_stages,
    plain_value,
)
from fedtide.participation.log.schema import STAGES, Stage

_SEPARATORS = ";|,"
_LIKE_LIST = r"[;|,]|^\d+(\s+\d+)+$|^[\[({]"
"""Cells of one client per row that may be several clients."""
_STAGE_HINT = f"give one of {', '.join(STAGES)}"
_MOST_LISTED = 6


def expand_lists(
    frame: pl.DataFrame, found: dict[str, str], literal: bool
) -> tuple[pl.DataFrame, bool, list[str]]:
    """Return one row per client, whether cells of text were lists of clients, and notes on these.

    Args:
        frame: the rows.
        found: the log's own names; `clients` becomes `client`.
        literal: whether text in the column `client` is the name of one client.
    """
    plural = "clients" in found
    if plural:
        found["client"] = found.pop("clients")
        frame = frame.rename({"clients": "client"})
    notes = list[str]()
    clients, listed = frame["client"], None
    keys = (
        ["round", "stage"] if "stage" in frame and not frame["stage"].dtype.is_nested() else "round"
    )
    single = len(frame) > 1 and frame.select(keys).n_unique() == len(frame)
    is_text = clients.dtype == pl.String
    numbers = (
        clients.str.contains(r"^\s*\d*\s*$").all() if is_text else not clients.dtype.is_nested()
    )
    if plural and single and numbers:
        raise InvalidInputError(
            "client: every round has one number, which may be that of its clients; give their "
            f"names (if the numbers are names: {name_columns({'client': found['client']})})"
        )
    if is_text and (plural or not literal):
        listed = _parse_lists(clients, plural, notes)
        if listed is None:
            _refuse_doubtful(clients, found["client"], single)
        else:
            clients = listed
    if not isinstance(clients.dtype, pl.List | pl.Array):
        return frame, False, notes
    frame = frame.with_columns(clients.alias("client"))
    lists = [n for n in frame.columns if isinstance(frame[n].dtype, pl.List | pl.Array)]
    frame = frame.with_columns(pl.col(n).arr.to_list() for n in lists if frame[n].dtype == pl.Array)
    frame = frame.filter(pl.col("client").list.len() > 0)
    for ours in lists:
        if (frame[ours].list.len().fill_null(0) != frame["client"].list.len()).any():
            raise InvalidInputError(
                f"{ours}: a list is not as long as its round's list of clients; "
                "give one entry for each client"
            )
    return frame.explode(lists), listed is not None, notes


def _parse_lists(clients: pl.Series, plural: bool, notes: list[str]) -> pl.Series | None:
    """Return the lists that cells of text are; None: each is one client.

    Cells are JSON arrays, if all are, or else names in a column of lists, separated by one
    character.
    """
    cells = clients.fill_null("").str.strip_chars()
    given = cells.filter(cells != "")
    if len(given) and given.str.starts_with("[").all():
        arrays = [_parse_array(cell) if cell else [] for cell in cells]
        if None not in arrays:
            return pl.Series("client", arrays, dtype=pl.List(pl.String))
    if not plural:
        return None
    wrong = given.filter(given.str.contains(r"^[\[({]"))
    used = [s for s in _SEPARATORS if given.str.contains(s, literal=True).any()]
    if len(wrong) or len(used) > 1:
        example = wrong[0] if len(wrong) else given.filter(given.str.contains("[;|,]"))[0]
        raise InvalidInputError(
            f"client: {example!r:.60} is not a list of clients; write a JSON array, or separate "
            "the clients in all rows by one character, ann;bob;eve"
        )
    separator = used[0] if used else ""
    if not used and given.str.contains(r"^\d+(\s+\d+)*$").all():
        cells, separator = cells.str.replace_all(r"\s+", " "), " "
    lists = cells.str.split(separator) if separator else cells.reshape((-1, 1)).arr.to_list()
    lists = lists.list.eval(pl.element().str.strip_chars()).list.eval(
        pl.element().filter(pl.element() != "")
    )
    if len(several := cells.filter(lists.list.len() > 1)):
        notes.append(f"cells such as {several[0]!r:.60} are read as several clients")
    return lists.alias("client")


def _parse_array(cell: str) -> list[str] | None:
    try:
        clients = json.loads(cell)
    except (ValueError, RecursionError):
        return None
    return [str(client) for client in clients] if {*map(type, clients)} <= {str, int} else None


def _refuse_doubtful(clients: pl.Series, name: str, single: bool) -> None:
    """Raise InvalidInputError for text that may be several clients.

    Args:
        clients: of all rows.
        name: the log's own name of the column.
        single: whether no round has two rows, so that one such cell suffices; otherwise most are.
    """
    doubtful = clients.filter(clients.str.strip_chars().str.contains(_LIKE_LIST))
    if 2 * len(doubtful) > len(clients) or (single and len(doubtful)):
        raise InvalidInputError(
            f"client: {doubtful[0]!r:.60} may be one client or several; if it is a list, say so "
            f"with {name_columns({'clients': name})}, if it is a name, with "
            f"{name_columns({'client': name})}"
        )


def parse_clients(column: pl.Series, exact: bool, texts: bool) -> pl.Series:
    """Return client ids as int64 or as strings.

    Args:
        column: of ids.
        exact: whether names are taken literally, such as "none".
        texts: whether whole numbers are written as text, as in CSV.

    Raises:
        InvalidInputError: ids that are missing, or neither whole numbers nor strings.
    """
    if isinstance(column.dtype, pl.Struct):
        fields = list_names([field.name for field in column.dtype.fields])
        raise InvalidInputError(
            f"client: each value is an object with the fields {fields}; make the one that names "
            "the client a column of its own"
        )
    ids = normalise_clients("client", column.fill_nan(None) if column.dtype.is_float() else column)
    if ids.dtype != pl.String:
        return ids
    given = ids.unique()
    names = given if exact and not texts else given.str.strip_chars()
    if not exact and (absent := names.str.to_lowercase().is_in(MISSING)).any():
        row = int((ids == given.filter(absent)[0]).arg_max() or 0) + 1
        raise InvalidInputError(
            f"client: row {row:,} has the client {given.filter(absent)[0]!r:.60}, which stands for "
            "a missing value; give every row a client id, or rename the client if this is its name"
        )
    numbers = parse_whole_numbers(names) if texts else names
    points = names.filter(names.str.ends_with(".0"))
    if numbers.dtype == pl.String and points.str.strip_suffix(".0").is_in(names.implode()).any():
        raise InvalidInputError(
            f"client: the log has the clients {points[0].removesuffix('.0')!r} and {points[0]!r}; "
            "write the id of a client in one way"
        )
    if numbers.dtype == pl.String and (numbers == given).all():
        return ids
    return ids.replace_strict(given, numbers, return_dtype=numbers.dtype)


def parse_amounts(ours: str, column: pl.Series, decimal_comma: bool = False) -> pl.Series:
    """Return participation weights or sample counts, null where missing.

    Raises:
        InvalidInputError: anything but finite numbers of at least 0.
    """
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        text = text.set(text.str.to_lowercase().is_in(MISSING), None)
        if decimal_comma:
            text = text.str.replace(",", ".", literal=True)
        numbers = text.cast(pl.Float64, strict=False)
        if len(wrong := text.filter(numbers.is_null() & text.is_not_null())):
            raise InvalidInputError(
                f"{ours}: {wrong[0]!r:.60} is not a number; give numbers without a thousands "
                "separator"
            )
    elif column.dtype.is_numeric() or column.dtype == pl.Null:
        numbers = column.cast(pl.Float64).fill_nan(None)
    else:
        raise InvalidInputError(f"{ours}: type {column.dtype} is not numeric; give numbers")
    if len(wrong := numbers.filter(~numbers.is_finite() | (numbers < 0))):
        raise InvalidInputError(
            f"{ours}: {wrong[0]} is not a {NOUNS[ours]}; give finite numbers of at least 0"
        )
    return numbers


def parse_reasons(column: pl.Series) -> pl.Series:
    """Return reasons as text; raise InvalidInputError for lists and objects."""
    if column.dtype.is_nested():
        raise InvalidInputError(f"reason: type {column.dtype} is not text; give text")
    return column.cast(pl.String)


def parse_stages(column: pl.Series, meanings: Mapping[str, str]) -> pl.Series | None:
    """Return the stages of a log's rows; None: no row has one.

    Args:
        column: of stages, or of values with a meaning.
        meanings: the stage of each value; "" stands for a missing one, and "other" for all that are
            not named. Case and blanks around a value do not matter.

    Raises:
        InvalidInputError: values without a meaning; only some rows with a stage.

    >>> parse_stages(pl.Series(["OK", "late"]), {"ok": "used", "other": "selected"}).to_list()
    ['used', 'selected']
    """
    words = pl.DataFrame({"stage": column})
    if column.dtype.is_nested():
        column = words.select(as_words("stage", column.dtype))["stage"]
    values = column.unique()
    written = values.to_frame("stage").select(as_words("stage", values.dtype))["stage"].to_list()
    given = {plain_value(value): stage for value, stage in meanings.items()}
    rest = given.get("other")
    found = [
        given.get(word or "", word if word in STAGES else rest) if word else given.get("", rest)
        for word in written
    ]
    unknown = [v for v, word, f in zip(values, written, found, strict=True) if word and f is None]
    if unknown:
        counts = column.filter(column.is_in(unknown)).value_counts(sort=True, name="n")
        shown = [f"{value!r:.60} ({n:,})" for value, n in counts.head(_MOST_LISTED).rows()]
        more = f" and {len(counts) - _MOST_LISTED} more" if len(counts) > _MOST_LISTED else ""
        means = dict(meanings) | {str(v): "STAGE" for v in unknown[:_MOST_LISTED]}
        raise InvalidInputError(
            f"stage: unknown stage{'s' * (len(unknown) > 1)} {', '.join(shown)}{more}; "
            f"{_STAGE_HINT}, or say what the values mean with {name_stages(means)}"
        )
    if not any(found):
        return None
    stages = column.replace_strict(values, found, return_dtype=Stage)
    if missing := stages.null_count():
        row = int(stages.is_null().arg_max() or 0) + 1
        raise InvalidInputError(
            f"stage: {missing:,} of {len(stages):,} rows have no stage, row {row:,} first; "
            f"{_STAGE_HINT}, or say what a missing one means with "
            f"{name_stages({**meanings, '': 'selected'})}"
        )
    return stages


def is_used(name: str, kind: pl.DataType, meanings: Mapping[str, str]) -> pl.Expr:
    """Return which rows have a value that `parse_stages` reads as "used"."""
    word = as_words(name, kind).fill_null("")
    given = {stage: stage for stage in STAGES}
    given |= {plain_value(value): stage for value, stage in meanings.items()}
    if given.pop("other", "") == "used":
        return ~word.is_in([value for value, stage in given.items() if stage != "used"])
    return word.is_in([value for value, stage in given.items() if stage == "used"])
