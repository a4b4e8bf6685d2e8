"""The columns of a log: which is which, by name, and which the reader would have to guess at."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from fedtide.errors import InvalidInputError, did_you_mean

COLUMNS = ("round", "client", "clients", "stage", "weight", "samples", "time", "reason")
"""The columns that a reader knows; `clients` holds a list of the clients of a round."""

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "round": (
        *("server_round", "round_number", "round_num", "round_id", "round_idx", "round_index"),
        *("rnd", "current_round", "global_round", "communication_round", "fl_round"),
    ),
    "client": (
        *("client_id", "client_name", "client_idx", "client_index", "cid", "node_id"),
        *("partition_id", "participant", "participant_id", "device", "device_id", "user"),
        *("user_id", "site", "site_name", "collaborator", "collaborator_name"),
    ),
    "clients": (
        *("client_ids", "participants", "cohort", "selected_clients", "sampled_clients"),
        *("client_indexes", "client_indices", "nodes", "node_ids"),
    ),
    "samples": ("num_examples", "num_samples", "n_samples", "examples"),
    "time": ("timestamp", "datetime", "date", "ts", "created_at", "started_at"),
    "reason": (
        *("failure_reason", "refusal_reason", "rejection_reason", "dropout_reason"),
        *("error_type", "error_message", "exception"),
    ),
}
"""Other names by which a column is recognised."""

NOUNS = {column: column for column in COLUMNS} | {"samples": "sample count"}
"""What a value of each column is called."""

MISSING = ("", "na", "nan", "n/a", "null", "none", "-")
"""Text that stands for a missing value."""

_OWN = ("time", "started", "staleness", "asked", "stepweight", "norm")
"""Further columns of fedtide's own logs, which do not say who took part."""

ANY = "any value"
"""Among the values of a column of many: all that are not missing."""

_MOST_WORDS, _MOST_NUMBERS, _SAMPLED = 50, 10, 20_000
_LISTED = 8


def find_columns(
    names: Sequence[str], columns: Mapping[str, str], timed: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Find the columns of a log: by the user's names, the standard names, or common aliases.

    Case, spaces, hyphens and underscores do not matter.

    Args:
        names: of the log's columns.
        columns: names given by the user, such as {"round": "my_round"}.
        timed: whether rounds are computed from times, in a column `time`, or else `round`.

    Returns:
        The log's own name of each of COLUMNS that it has, and notes on those recognised.

    Raises:
        InvalidInputError: a name that is unknown or not in the log, two columns that may be the
            same, no column of rounds or clients.

    >>> find_columns(["server_round", "cid", "loss"], {"client": "cid"})
    ({'client': 'cid', 'round': 'server_round'}, ["'server_round' is the round"])
    """
    for ours, theirs in columns.items():
        if ours not in COLUMNS:
            raise InvalidInputError(
                f"columns: a log has no column {ours!r}; {did_you_mean(ours, COLUMNS)}"
            )
        if theirs not in names:
            raise InvalidInputError(
                f"columns: the log has no column {theirs!r} among {list_columns(names)}; "
                f"{did_you_mean(theirs, names)}"
            )
    found, free = dict(columns), [name for name in names if name not in columns.values()]
    needed = ["time" if timed else "round", "client"]
    for ours in COLUMNS:
        unused = {"clients"} if "client" in found else set[str]()
        unused |= set() if timed else {"time"}
        if ours in {*found, *unused} or (ours == "client" and "clients" in columns):
            continue
        if (name := recognise(ours, free)) is not None:
            found[ours] = name
    if timed and "time" not in found and "round" in found:
        found["time"] = found["round"]
    if timed or "time" not in columns:
        found.pop("round" if timed else "time", None)
    if "client" not in found and "clients" in found:
        needed[1] = "clients"
    if missing := [ours for ours in needed if ours not in found]:
        _refuse_missing(missing, names, timed)
    notes = [
        f"{theirs!r} is the {NOUNS[ours]}"
        for ours, theirs in found.items()
        if ours not in columns and theirs not in (ours, "round")
    ]
    return found, notes


def recognise(ours: str, names: Sequence[str]) -> str | None:
    """Return which of these names stands for one of our COLUMNS, as written; None: none does.

    Raises:
        InvalidInputError: several aliases do.

    >>> recognise("client", ["region", "Client Name"])
    'Client Name'
    """
    if ours in names:
        return ours
    aliases = {_plain(alias) for alias in _ALIASES.get(ours, ())}
    found = [name for name in names if _plain(name) == ours]
    found = found or [name for name in names if _plain(name) in aliases]
    if len(found) > 1:
        raise InvalidInputError(
            f"columns: {found[0]!r} and {found[1]!r} may both be the {NOUNS[ours]}; "
            f"say which with {name_columns({ours: found[0]})}"
        )
    return found[0] if found else None


def list_columns(names: Sequence[str]) -> str:
    """Return the names of columns, in words."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"{name!r:.60}" for name in names[:_LISTED]) + more


def name_columns(columns: Mapping[str, str]) -> str:
    """Return how a user names columns, in Python and on the command line.

    >>> name_columns({"client": "worker"})
    "columns={'client': 'worker'} or --columns client=worker"
    """
    options = " ".join(
        f"--columns {shlex.quote(f'{ours}={theirs}')}" for ours, theirs in columns.items()
    )
    return f"columns={dict(columns)!r} or {options}"


def name_stages(meanings: Mapping[str, str]) -> str:
    """Return how a user says what values mean, in Python and on the command line.

    >>> name_stages({"OK": "used", "timed out": "selected"})
    "stages={'OK': 'used', 'timed out': 'selected'} or --stages 'OK=used,timed out=selected'"
    """
    pairs = ",".join(f"{value}={stage}" for value, stage in meanings.items())
    return f"stages={dict(meanings)!r} or --stages {shlex.quote(pairs)}"


def as_words(name: str, kind: pl.DataType) -> pl.Expr:
    """Return a column's values as words: trimmed text in lower case, null where one is missing.

    Whole numbers are written without a point; lists and objects, such as errors, are "object".
    """
    column = pl.col(name)
    if kind.is_nested() or kind in (pl.Object, pl.Binary, pl.Duration):
        return pl.when(column.is_not_null()).then(pl.lit("object")).alias(name)
    text = column.cast(pl.String).str.strip_chars().str.to_lowercase().str.strip_suffix(".0")
    return pl.when(~text.is_in(MISSING)).then(text).alias(name)


def plain_value(value: object) -> str:
    """Return a value given by the user as `as_words` writes it."""
    return "" if value is None else str(value).strip().lower().removesuffix(".0")


def find_undecided(rows: pl.LazyFrame, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the columns that tell rows apart, each with its values and how often they occur.

    Such a column may say who failed or what was not training, and a reader cannot know: it has
    two values; a few different words or whole numbers; or a value in only some rows. A missing
    value is "". Columns of measurements, ids or messages, and those that are the same in all rows,
    are not among them.

    Args:
        rows: that would count as participation.
        names: the columns that are not read.

    >>> rows = pl.LazyFrame({"ok": [1, 0, 1, 1], "loss": [0.1, 0.2, 0.3, 0.4], "v": ["a"] * 4})
    >>> find_undecided(rows, ["ok", "loss", "v"])
    {'ok': {'1': 3, '0': 1}}
    """
    names = [name for name in names if _plain(name) not in _OWN]
    kinds = rows.collect_schema()
    words = rows.select(as_words(name, kinds[name]) for name in names)
    sample = words.head(_SAMPLED).collect() if names else pl.DataFrame()
    few = [name for name in names if sample[name].n_unique() <= _MOST_WORDS + 1]
    sizes = words.select(
        pl.len().alias("rows"), *(pl.col(name).null_count().alias(f"_{name}") for name in names)
    )
    total = sizes.collect(engine="streaming").row(0, named=True) if names else {}
    undecided = {}
    for name in names:
        missing, size = total[f"_{name}"], total["rows"]
        if name not in few:
            found = {ANY: size - missing, "": missing}
        else:
            values = words.select(name).collect(engine="streaming")[name]
            counts = values.alias("value").value_counts(sort=True, name="n")  # may be called "n"
            found = {value or "": n for value, n in counts.rows()}
        if 0 < missing < size or (name in few and _is_enumeration(found)):
            undecided[name] = found
    return undecided


def _is_enumeration(values: Mapping[str, int]) -> bool:
    """Return whether values, of which each occurs so many times, are few and repeated."""
    if len(values) <= 2:
        return len(values) == 2 and sum(values.values()) > 2
    numbers = _to_numbers(values)
    most = _MOST_WORDS
    if not numbers.null_count():
        most = _MOST_NUMBERS if (numbers == numbers.round()).all() else 0
    return len(values) <= most and 2 * len(values) <= sum(values.values())


def _to_numbers(values: Iterable[str]) -> pl.Series:
    """Return the values as numbers, null where one is none."""
    return pl.Series([*values], dtype=pl.String).cast(pl.Float64, strict=False)


def refuse_undecided(undecided: Mapping[str, Mapping[str, int]]) -> None:
    """Raise InvalidInputError if `find_undecided` has found columns."""
    if not undecided:
        return
    name, values = next(iter(undecided.items()))
    ordered = sorted(values.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{value!r:.40} ({n:,})" for value, n in ordered[:4])
    shown += f" and {len(values) - 4} more" if len(values) > 4 else ""
    others = list_columns([other for other in undecided if other != name])
    also = f", and so do {others}" if others else ""
    example = next((value for value, _ in ordered if value not in ("", ANY)), "VALUE")
    means = {example: "used", "other": "selected"}
    if "" in values:  # which is the rule, a value or none?
        usual = 2 * values[""] > sum(values.values())
        means = {"": "used" if usual else "selected", "other": "selected" if usual else "used"}
    says = f"what its values mean with {name_columns({'stage': name})} and {name_stages(means)}"
    numbers = _to_numbers(values)
    if not numbers.null_count() and ((numbers >= 1) & (numbers == numbers.round())).all():
        # Read as stages, counts of samples would leave out all clients but those with one of them.
        other = f", or {says}" if len(values) == 2 else ""
        says = f"that it counts samples with {name_columns({'samples': name})}{other}"
    names, ignored = [*undecided], shlex.quote(",".join(undecided))
    raise InvalidInputError(
        f"log: the column {name!r:.60} tells rows apart that would all count as participation: "
        f"{shown}{also}; say {says}, or which rows to read with where={{{name!r}: {example!r}}} "
        f"or --where {shlex.quote(f'{name}={example}')}, or that it says nothing about who took "
        f"part with ignore={names!r} or --ignore {ignored}"
    )


def _refuse_missing(missing: Sequence[str], names: Sequence[str], timed: bool) -> None:
    if missing == ["round"] and (found := recognise("time", names)) is not None:
        raise InvalidInputError(
            f"log: no column 'round' among {list_columns(names)}; name it with "
            f"{name_columns({'round': 'NAME'})}, or give the length of a round with "
            f"round_seconds= or --round-seconds, as {found!r:.60} holds times"
        )
    hint = ", or if each client has a column, turn the columns into rows with unpivot"
    raise InvalidInputError(
        f"log: no column {' and '.join(map(repr, missing))} among {list_columns(names)}; name it "
        f"with {name_columns(dict.fromkeys(missing, 'NAME'))}"
        + (hint if missing == ["client"] and len(names) > _LISTED else "")
    )


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in " -_")
