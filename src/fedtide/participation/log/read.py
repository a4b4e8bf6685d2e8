"""The reader of participation logs: files, run folders and tables in memory become rows.

It refuses what it would have to guess, and names the option that says what is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from fedtide.errors import InvalidInputError
from fedtide.participation.log.columns import (
    NOUNS,
    as_words,
    find_columns,
    find_undecided,
    list_columns,
    name_columns,
    name_stages,
    plain_value,
    refuse_undecided,
)
from fedtide.participation.log.opening import LogSource, OpenLog, open_log
from fedtide.participation.log.schema import STAGES, Stage
from fedtide.participation.log.tables import (
    OpenTable,
    Query,
    open_frame,
    open_table,
    parse_numbers,
    write_table,
)
from fedtide.participation.log.times import (
    describe_rounds,
    divide_time,
    number_rounds,
    parse_rounds,
)
from fedtide.participation.log.values import (
    expand_lists,
    is_used,
    parse_amounts,
    parse_clients,
    parse_reasons,
    parse_stages,
)
from fedtide.validation import require_positive, require_whole_number

_INDEX = re.compile(r"|__index_level_\d+__|Unnamed: \d+")
"""Names of a pandas index in a file."""
_STAGE_HINT = f"give one of {', '.join(STAGES)}"


@dataclass(frozen=True)
class LogRows:
    """The rows of a log.

    Args:
        frame: round (Int64), client (Int64 or String), and those of stage (Stage), weight, samples
            (Float64), reason (String) and time that the log has; in its order.
        log: where they come from, with the span of all rounds, and notes on the reading.
        columns: the log's own name of each column.
        is_mapped: whether `stages` said what values mean, of which several may mean one stage.
    """

    frame: pl.DataFrame
    log: OpenLog
    columns: Mapping[str, str] = field(default_factory=dict)
    is_mapped: bool = False


def read_rows(
    source: LogSource | OpenLog,
    *,
    columns: Mapping[str, str] | None = None,
    stages: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    round_seconds: float | None = None,
    time_zone: str | None = None,
    round_step: int | None = None,
) -> LogRows:
    """Read the rows of a participation log, in any order.

    Args:
        source: a file of Parquet, delimited text or JSON; a run folder; a table in memory.
        columns: the log's own names of COLUMNS. Without them, common names are recognised.
        stages: the stage that each value of the column `stage` means; "" stands for a missing
            value, "other" for all that are not named. Without such a column, of the only unread
            column that has the values.
        where: values of columns; only rows that have them are read.
        ignore: columns that say nothing about who took part.
        round_seconds: the length of a round, for a log with times.
        time_zone: of times without a zone, and of midnight, where rounds of days begin.
        round_step: the difference between the numbers of consecutive rounds; 1 takes all numbers as
            they are.

    Raises:
        InvalidInputError: a log that cannot be used, or that could mean several things.
    """
    log = source if isinstance(source, OpenLog) else open_log(source)
    columns, stages, where = columns or {}, stages or {}, where or {}
    _check_options(log, stages, where, ignore, round_seconds, time_zone, round_step)
    names = [n for n in log.table.names if n not in ignore and not _INDEX.fullmatch(n)]
    found, notes = find_columns(names, columns, timed=round_seconds is not None)
    rest = [name for name in names if name not in {*found.values(), *where}]

    def keep(rows: pl.LazyFrame) -> pl.LazyFrame:
        kinds = rows.collect_schema()
        for name, value in where.items():
            rows = rows.filter(as_words(name, kinds[name]).fill_null("") == plain_value(value))
        return rows

    if stages and "stage" not in found:
        found["stage"] = _find_stage_column(log.table, [*where], keep, rest, stages)
        rest.remove(found["stage"])
    read = log.table.read([*found.values(), *where], keep)
    if where and read.is_empty():
        raise InvalidInputError(f"where: no row of the log has {dict(where)}; give other values")
    with _named(found):
        frame = read.select(**{ours: pl.col(theirs) for ours, theirs in found.items()})
        frame, span, more = _parse_rounds(frame, log, round_seconds, time_zone, round_step)
        literal = "client" in columns or (log.recorded and "clients" not in found)
        frame, cells, said = expand_lists(frame, found, literal)
        frame = _parse(frame, log, stages, texts=log.table.is_text or cells)
        if "stage" not in frame:
            rest += [found[ours] for ours in ("reason",) if ours in found]
            frame = frame.drop("reason", strict=False)
            _refuse_gaps(frame, found)
    stage = found["stage"] if "stage" in frame else None
    _check_undecided(log, [*where], keep, rest, stage, stages)
    listed = [name for name in rest if name not in found.values()]
    notes = [*log.notes, ", ".join(notes), *more, *said]
    if listed and not log.recorded:
        notes.append(f"columns that are not read: {list_columns(listed)}")
    log = replace(log, span=log.span or span, notes=tuple(filter(None, notes)))
    return LogRows(frame, log, found, bool(stages))


def read_log(path: str | Path, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Read and validate the participation log in a Parquet, CSV or JSON file.

    Args:
        path: of the file.
        columns: the file's names of log columns, such as {"round": "server_round"}.

    Returns:
        round (Int64), client (Int64 or String), stage (Enum of STAGES; "used" if missing), weight
        (Float64, null if missing), and time and reason (String) if the file has them; in the order
        of the file.

    Raises:
        InvalidInputError: a file that is missing, empty, damaged or of an unknown type, or rows
            that `normalise_log` rejects.
    """
    return _normalise(open_table("log", path), columns)


def normalise_log(frame: pl.DataFrame, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Validate a table and return it in the form of `read_log`.

    Raises:
        InvalidInputError: no column round or client; a round that is negative or not a whole
            number; client ids that are mixed or missing; an unknown stage; a weight that is
            negative or not finite; reasons that are not text; a client twice in a round; a column
            that may say who failed.

    >>> normalise_log(pl.DataFrame({"round": [0], "client": ["ann"]})).row(0)
    (0, 'ann', 'used', None)
    """
    return _normalise(open_frame("log", frame), columns)


def keep_furthest(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row per round and client, that of the furthest stage.

    Raises:
        InvalidInputError: a client twice in a round, without stages.
    """
    if (twice := _find_twice(frame)) is None:
        return frame
    if "stage" in frame:
        return frame.sort("stage").unique(["round", "client"], keep="last", maintain_order=True)
    raise InvalidInputError(
        f"client: {twice[1]!r} appears twice in round {twice[0]}; keep one row for each"
    )


def _find_twice(frame: pl.DataFrame) -> tuple[int, int | str] | None:
    """Return a round and a client that is twice in it; None: there is none."""
    # A table of all pairs would take 150 bytes a row.
    twice = frame.group_by("round").agg(pl.col("client").n_unique() < pl.len()).filter("client")
    if twice.is_empty():
        return None
    pairs = frame.select("round", "client")
    found: tuple[int, int | str] = pairs.filter(pairs.is_duplicated()).row(0)
    return found


def write_log(path: str | Path, frame: pl.DataFrame) -> None:
    """Write a participation log atomically as Parquet, CSV or JSON lines, by the suffix.

    Raises:
        InvalidInputError: an unknown suffix, or rows that `normalise_log` rejects.
    """
    write_table("log", path, normalise_log(frame))


def _normalise(table: OpenTable, columns: Mapping[str, str] | None) -> pl.DataFrame:
    time = {"time": "time"} if "time" in table.names else {}
    frame = read_rows(OpenLog(table, recorded=True), columns={**time, **(columns or {})}).frame
    if "stage" not in frame:
        frame = frame.with_columns(pl.lit("used", Stage).alias("stage"))
    if "weight" not in frame:
        frame = frame.with_columns(pl.lit(None, pl.Float64).alias("weight"))
    if (twice := _find_twice(frame)) is not None:
        raise InvalidInputError(
            f"client: {twice[1]!r} appears twice in round {twice[0]}; keep the row of the furthest "
            "stage"
        )
    if "time" in frame and frame["time"].dtype == pl.String:
        frame = frame.with_columns(parse_numbers(frame["time"]))
    more = [name for name in ("time", "reason") if name in frame]
    return frame.select("round", "client", "stage", "weight", *more)


def _check_options(
    log: OpenLog,
    stages: Mapping[str, str],
    where: Mapping[str, str],
    ignore: Sequence[str],
    round_seconds: float | None,
    time_zone: str | None,
    round_step: int | None,
) -> None:
    for value, stage in stages.items():
        if stage not in STAGES:
            raise InvalidInputError(f"stages: {value!r:.60} is to mean {stage!r}; {_STAGE_HINT}")
    for option, names in (("where", where), ("ignore", ignore)):
        if unknown := [name for name in names if name not in log.table.names]:
            raise InvalidInputError(
                f"{option}: the log has no column {unknown[0]!r:.60} among "
                f"{list_columns(log.table.names)}; give one of these"
            )
    if round_step is not None:
        require_whole_number("round_step", round_step)
    if round_seconds is None:
        if time_zone is not None:
            raise InvalidInputError(
                "time_zone: it has no effect without round_seconds; leave it out"
            )
        return
    require_positive("round_seconds", round_seconds)
    if not 1e-6 <= round_seconds <= 1e9:
        raise InvalidInputError(
            f"round_seconds: {round_seconds:g} cannot be the length of a round; "
            "give seconds between a microsecond and a billion"
        )
    if round_step is not None or log.span is not None:
        raise InvalidInputError(
            "round_seconds: a log with numbered rounds has no need of it; leave it out"
        )


def _parse_rounds(
    frame: pl.DataFrame,
    log: OpenLog,
    seconds: float | None,
    zone: str | None,
    step: int | None,
) -> tuple[pl.DataFrame, tuple[int, int] | None, list[str]]:
    """Return the rows with a column of rounds, the span of the rounds, and notes on them."""
    if seconds is not None and len(frame):
        rounds, note = divide_time(frame["time"], seconds, zone)
        notes = [note]
        frame = frame.drop("time")
    else:
        given = frame["time" if seconds is not None else "round"]
        rounds, notes = parse_rounds(given), []
        if len(rounds) and not (log.recorded and step is None):
            rounds = number_rounds(rounds, step)
    frame = frame.with_columns(rounds.alias("round"))
    if rounds.is_empty():
        return frame, None, notes
    first, last = int(rounds.min()), int(rounds.max())  # type: ignore[arg-type]
    if not log.recorded:
        notes += describe_rounds(rounds, first, last, in_order=seconds is None)
    return frame, (first, last + 1), notes


def _parse(
    frame: pl.DataFrame, log: OpenLog, stages: Mapping[str, str], texts: bool
) -> pl.DataFrame:
    """Return the rows with the values of all columns but the round in their types.

    Args:
        frame: a row for each client.
        log: where they come from.
        stages: what values of the stage mean.
        texts: whether whole numbers among client ids are written as text.
    """
    clients = parse_clients(frame["client"], exact=log.recorded, texts=texts)
    columns: dict[str, pl.Series] = {"client": clients}
    for ours in ("weight", "samples"):
        if ours in frame:
            columns[ours] = parse_amounts(ours, frame[ours], log.table.decimal_comma)
    if "stage" in frame and (found := parse_stages(frame["stage"], stages)) is not None:
        columns["stage"] = found
    if "reason" in frame:
        columns["reason"] = parse_reasons(frame["reason"])
    more = [name for name in frame.columns if name in columns or name == "time"]
    return frame.with_columns(**columns).select([*dict.fromkeys(["round", "client", *more])])


def _find_stage_column(
    table: OpenTable, read: Sequence[str], keep: Query, names: list[str], stages: Mapping[str, str]
) -> str:
    """Return the only column of these that has one of the values."""
    values = [plain_value(value) for value in stages if value not in ("", "other")]
    with table.guarded():
        rows = keep(table.scan([*names, *read]))
        if values and names:
            kinds = rows.collect_schema()
            has = rows.select(as_words(name, kinds[name]).is_in(values).any() for name in names)
            found = [n for n, one in zip(names, has.collect().row(0), strict=True) if one]
        else:
            found = [*find_undecided(rows, names)]
    if len(found) == 1:
        return found[0]
    what = f"{found[0]!r} and {found[1]!r} have" if found else "no column has"
    raise InvalidInputError(
        f"stages: {what} these values; name the column with "
        f"{name_columns({'stage': (*found, 'NAME')[0]})}"
    )


def _check_undecided(
    log: OpenLog,
    read: Sequence[str],
    keep: Query,
    names: list[str],
    stage: str | None,
    stages: Mapping[str, str],
) -> None:
    """Refuse columns that tell apart rows that count as participation.

    Args:
        log: whose rows these are.
        read: the columns that `keep` needs.
        keep: leaves out the rows that are not read.
        names: of the columns that are not read.
        stage: the column that says which rows count; None: all do.
        stages: what its values mean.
    """
    if names:
        with log.table.guarded():
            rows = keep(
                log.table.scan(list(dict.fromkeys([*names, *read, *([stage] if stage else [])])))
            )
            if stage is not None and not (kind := rows.collect_schema()[stage]).is_nested():
                rows = rows.filter(is_used(stage, kind, stages))
            refuse_undecided(find_undecided(rows, names))


def _refuse_gaps(frame: pl.DataFrame, found: Mapping[str, str]) -> None:
    """Raise InvalidInputError if only some rows have a weight or count, without stages."""
    for ours in ("weight", "samples"):
        lacking = frame[ours].null_count() if ours in frame else 0
        if 0 < lacking < len(frame):
            theirs = found[ours]
            mapped = name_columns({ours: theirs, "stage": theirs})
            meanings = name_stages({"": "selected", "other": "used"})
            raise InvalidInputError(
                f"{ours}: {lacking:,} of {len(frame):,} rows have no {NOUNS[ours]}; if their "
                f"clients failed, say so with {mapped} and {meanings}, otherwise leave the column "
                f"out with ignore=[{theirs!r}] or --ignore {theirs}"
            )


@contextmanager
def _named(columns: Mapping[str, str]) -> Iterator[None]:
    """Add a column's name in the log to errors about it."""
    try:
        yield
    except InvalidInputError as error:
        what, semicolon, hint = str(error).partition("; ")
        ours = what.partition(":")[0]
        theirs = columns.get(ours, columns.get(f"{ours}s", ours))
        if theirs == ours:
            raise
        raise InvalidInputError(f"{what} (column {theirs!r}){semicolon}{hint}") from None
