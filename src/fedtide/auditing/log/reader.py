"""Reading a participation log: from a file, a run folder, a ledger or a table in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.cohort_lists import CohortLists
from fedtide.auditing.log.columns import ColumnNames, find_columns, says_outcome
from fedtide.auditing.log.log_builder import LogBuilder
from fedtide.auditing.log.outcome_column import OutcomeColumn
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.log.stage_column import StageColumn
from fedtide.auditing.log.table_source import TableSource, open_source, read_frame
from fedtide.errors import InvalidInputError, first_line
from fedtide.participation.log.tables import MemoryTable
from fedtide.validation import expand_home, require_positive, require_whole_number

LogSource = str | Path | MemoryTable
OnProgress = Callable[[str, float], None]
"""Called with the name of the current step and the completed share of it."""

_FILE_SCHEMES = ("http://", "https://", "s3://", "gs://", "hdfs://")
"""URLs of files; all others are those of databases."""
_METHOD = re.compile(r"^algorithm:\n  type: (\S+)", re.MULTILINE)
"""The method in the experiment.yaml of a run."""


def read_participation_log(
    source: LogSource,
    clients: int | None = None,
    roster: ClientTable | None = None,
    columns: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda step, share: None,
    *,
    stages: Mapping[str, str] | None = None,
    round_seconds: float | None = None,
    round_step: int | None = None,
    from_round: int = 0,
) -> ParticipationLog:
    """Read a participation log; rows may be in any order.

    Args:
        source: a file of Parquet, delimited text (CSV, TSV) or JSON, see `open_source`; a run
            folder; the database URL of a ledger, such as sqlite:///ledger.db (with the federation's
            name after # if it holds several); or a table in memory: a DataFrame of Polars, pandas
            or another library, or a list of rows.
        clients: N. Numeric ids must then be 0..N − 1; string ids missing from the log get
            placeholder names. None: the clients of the roster, of the run, or of the log.
        roster: all clients of the federation.
        columns: the log's own names of `round`, `client`, `stage`, `weight`, `samples`, `time` or
            `reason`. Without them, common names are recognised. A column given as `weight` holds
            q_t^n, one given as `samples` sample counts. If none is given, the entries of a column
            `weight` are sample counts if all are whole numbers that typically sum to 10 or more in
            a round. If all are 1, though rounds have several clients, or all are equal and
            typically sum to more than 3, the clients of a round count alike. Run folders and
            ledgers always hold q_t^n. Without stages, a row with weight or sample count 0 does not
            count as participation.
        on_progress: progress callback.
        stages: the stage that each value of the column `stage` means, as in `StageColumn`; without
            such a column, of the column whose name suggests that it tells who failed.
        round_seconds: the length of a round in seconds; the log then has times, in a column `time`
            or `round`. Rounds begin at multiples of it (UTC), and a client that has several rows
            within a round counts once.
        round_step: the difference between the numbers of consecutive rounds; None: detected by
            `find_step`. 1 takes all numbers as they are.
        from_round: earlier rounds, by the numbers of the result, are left out; their clients stay.

    Raises:
        InvalidInputError: a log that cannot be used.
    """
    _check_arguments(clients, roster, round_seconds, round_step, from_round)
    timed, columns = round_seconds is not None, columns or {}
    with _open_log(source, timed) as opened:
        table = opened.table
        column = StageColumn(stages or {})
        builder = LogBuilder(
            table,
            round_seconds,
            column,
            weights_are_final=opened.recorded or "weight" in columns,
            ids_are_exact=opened.recorded,
        )
        found = find_columns(table.names, columns, timed, bool(stages))
        lists = None
        if opened.recorded:  # further columns are fedtide's own
            found = replace(found, unread="", outcomes=())
        else:
            lists = CohortLists(None if "client" in columns else found.columns["client"])
        builder.notes.extend(filter(None, (found.note, found.unread)))
        if opened.method not in ("", "fedavg", "fedprox"):
            builder.notes.append(f"the run's method is {opened.method}; the audit judges averaging")
        _read_rows(table, found, lists, builder, on_progress)
        with _named_columns(found.columns):
            column.join()
    if builder.is_empty:
        raise InvalidInputError("log: it has no rows; give at least two rounds")
    if roster is None and clients is None:
        roster = opened.roster
    span = opened.span if round_step is None and not timed else None
    on_progress("sorting", 0.0)
    log = builder.build(roster, clients, span, round_step, from_round)
    if found.unread and "stage" not in found.columns and len(log.clients) == log.size * log.length:
        note = (
            "every client has a row in every round, and so counts as always there; if a column "
            "that is not read says who was absent, remove those rows, or name the column with "
            "--columns stage=NAME --stages VALUE=STAGE,..."
        )
        log = replace(log, notes=(*log.notes, note))
    if log.length < 2 and timed:
        raise InvalidInputError(
            f"round_seconds: all rows are in one round of {round_seconds:g} s; make rounds "
            f"shorter, or leave it out if {found.columns['time']!r:.60} counts rounds"
        )
    if log.length < 2:
        raise InvalidInputError(
            f"round: all rows are in round {log.first_round}; an audit needs at least two rounds"
        )
    return log


def _check_arguments(
    clients: int | None,
    roster: ClientTable | None,
    round_seconds: float | None,
    round_step: int | None,
    from_round: int,
) -> None:
    if clients is not None:
        require_whole_number("clients", clients)
    if clients is not None and roster is not None:
        raise InvalidInputError(
            "clients: the roster already gives the number of clients; leave one of the two out"
        )
    if round_seconds is not None:
        require_positive("round_seconds", round_seconds)
        if not 1e-6 <= round_seconds <= 1e9:
            raise InvalidInputError(
                f"round_seconds: {round_seconds:g} cannot be the length of a round; "
                "give seconds between a microsecond and a billion"
            )
    require_whole_number("from_round", from_round, 0)
    if round_step is not None:
        require_whole_number("round_step", round_step)
        if round_seconds is not None:
            raise InvalidInputError(
                "round_step: with round_seconds, rounds are consecutive; leave one of the two out"
            )


def _read_rows(
    table: TableSource,
    found: ColumnNames,
    lists: CohortLists | None,
    builder: LogBuilder,
    on_progress: OnProgress,
) -> None:
    """Give the rows of a table to the builder, by batches; without `lists`, one client a row."""
    alone = [name for name in found.outcomes if says_outcome(name)]
    outcomes = {name: OutcomeColumn(name, alone == [name]) for name in found.outcomes}
    wanted = dict.fromkeys([*found.columns.values(), *outcomes])
    for batch, share in table.read([*wanted]):
        for name, outcome in outcomes.items():
            outcome.add(batch[name], batch.get(found.columns.get("samples", "")))
        rows = {ours: _widen(batch[theirs]) for ours, theirs in found.columns.items()}
        with _named_columns(found.columns):
            expanded, listed = (rows, False) if lists is None else lists.expand(rows)
            if len(expanded["client"]):
                builder.add(expanded, listed)
            if listed:  # a round with an empty list is a round, too
                builder.add_rounds(rows)
        on_progress("reading", share)
    for outcome in outcomes.values():
        outcome.reject_failures()
    if lists is not None:
        builder.notes.extend(lists.notes)


def _widen(column: pa.Array) -> pa.Array:
    """Return a column in a type with which Arrow can compute.

    16-bit floats become 32-bit ones. Decimals, which databases may use for whole numbers, become
    integers if all are whole, else floats.
    """
    if pa.types.is_float16(column.type):
        return column.cast(pa.float32())
    if pa.types.is_decimal(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            return column.cast(pa.float64())
    return column


@contextmanager
def _named_columns(columns: Mapping[str, str]) -> Iterator[None]:
    """Add a column's name in the log to errors about it; refuse what Arrow cannot compute."""
    try:
        yield
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"log: a column has values or a type that cannot be read ({first_line(error)}); "
            "give numbers, text or times"
        ) from None
    except InvalidInputError as error:
        what, semicolon, hint = str(error).partition("; ")
        theirs = columns.get(what.partition(":")[0], "")
        if theirs in ("", what.partition(":")[0]):
            raise
        raise InvalidInputError(f"{what} (column {theirs!r}){semicolon}{hint}") from None


@dataclass(frozen=True)
class _OpenLog:
    """A log that is being read.

    Args:
        table: its rows.
        recorded: whether fedtide recorded it, so that ids are exact names, each row has one client,
            and weights are q_t^n.
        span: its first round and one past the last; None: as far as its rows reach.
        roster: all clients; None: unknown.
        method: the `type` of the run's method; empty: unknown.
    """

    table: TableSource
    recorded: bool = False
    span: tuple[int, int] | None = None
    roster: ClientTable | None = None
    method: str = ""


@contextmanager
def _open_log(source: LogSource, timed: bool) -> Iterator[_OpenLog]:
    """Open a log; `timed`: rounds are to be computed from times."""
    if isinstance(source, str) and source.startswith(_FILE_SCHEMES):
        raise InvalidInputError(
            f"log: {source!r:.80} is not on this machine; download it, and give its path"
        )
    if isinstance(source, str) and "://" in source:
        with _open_ledger(source) as opened:
            yield opened
        return
    if isinstance(source, str | Path):
        source = expand_home(source)
        if source.is_dir():
            yield _open_run_folder(source, timed)
            return
    yield _OpenLog(open_source(source))


def _open_run_folder(folder: Path, timed: bool) -> _OpenLog:
    path = folder / "participation.parquet"
    if not path.is_file():
        run = min((log.parent for log in folder.glob(f"**/{path.name}")), default=None)
        example = ", or join tables of parts into one" if run is None else f", such as {run}"
        raise InvalidInputError(
            f"log: {str(folder)!r} has no participation.parquet; give the folder of a run{example}"
        )
    if timed:
        raise InvalidInputError("round_seconds: a run folder has no times; leave it out")
    summary, table = folder / "summary.json", folder / "clients.parquet"
    span = (0, int(json.loads(summary.read_text())["rounds"])) if summary.is_file() else None
    roster = ClientTable(pl.read_parquet(table, glob=False)["client"]) if table.is_file() else None
    return _OpenLog(open_source(path), True, span, roster, _read_method(folder))


def _read_method(folder: Path) -> str:
    """Return the `type` of the method of a run; empty: unknown."""
    experiment = folder / "experiment.yaml"
    # Not parsed: with a number for each of many clients, that takes seconds.
    found = _METHOD.search(experiment.read_text("utf-8")) if experiment.is_file() else None
    return found[1] if found else ""


@contextmanager
def _open_ledger(url: str) -> Iterator[_OpenLog]:
    """Open a ledger; rows and the span of completed rounds are read as of the same moment."""
    from fedtide.flower.ledger.ledger import read_history  # needs SQLAlchemy, which is optional

    frame, rounds = read_history(url)
    frame = frame.with_columns(pl.col("stage").cast(pl.String))
    ended = rounds["round"]
    span = (ended[0], ended[-1] + 1) if len(ended) else None
    yield _OpenLog(TableSource(frame.columns, partial(read_frame, frame)), True, span)
