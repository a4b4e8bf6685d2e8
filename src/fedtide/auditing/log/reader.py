"""Reading a participation log: from a file, a run folder, a ledger or a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.cohort_lists import CohortLists
from fedtide.auditing.log.columns import find_columns
from fedtide.auditing.log.entries import Entries
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.log.table_source import (
    ArrowTable,
    Batches,
    TableSource,
    open_source,
    read_frame,
)
from fedtide.auditing.log.values import refuse_absent
from fedtide.errors import InvalidInputError, first_line
from fedtide.validation import expand_home, require_positive, require_whole_number

LogSource = str | Path | pl.DataFrame | ArrowTable
OnProgress = Callable[[str, float], None]
"""Called with the name of the current step and the completed share of it."""


def read_participation_log(
    source: LogSource,
    clients: int | None = None,
    roster: ClientTable | None = None,
    columns: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda step, share: None,
    *,
    round_seconds: float | None = None,
    round_step: int | None = None,
) -> ParticipationLog:
    """Read a participation log; rows may be in any order.

    Args:
        source: a file of Parquet, delimited text (CSV, TSV) or JSON, see `open_source`; a run
            folder; the database URL of a ledger, such as sqlite:///ledger.db (with the federation's
            name after # if it holds several); or a DataFrame of Polars, pandas or another library.
        clients: N. Numeric ids must then be 0..N − 1; string ids missing from the log get
            placeholder names. None: the clients of the roster, of the run, or of the log.
        roster: all clients of the federation.
        columns: the log's own names of `round`, `client`, `stage`, `weight`, `samples`, `time` or
            `reason`. Without them, common names are recognised. A column given as `weight` holds
            q_t^n, one given as `samples` sample counts. If none is given and all entries of a
            column `weight` are whole numbers whose sum in a round is typically 10 or more, they are
            sample counts; run folders and ledgers hold q_t^n in any case.
        on_progress: progress callback.
        round_seconds: the length of a round in seconds; the log then has times, in a column `time`
            or `round`. Rounds begin at multiples of it (UTC), and a client that has several rows
            within a round counts once.
        round_step: the difference between the numbers of consecutive rounds; None: found, as
            described in `find_step`. 1 takes all numbers as they are.

    Raises:
        InvalidInputError: a log that cannot be used.
    """
    if clients is not None:
        require_whole_number("clients", clients)
    if clients is not None and roster is not None:
        raise InvalidInputError(
            "clients: the roster already gives the number of clients; leave one of the two out"
        )
    if round_seconds is not None:
        _require_length(round_seconds)
    if round_step is not None:
        require_whole_number("round_step", round_step)
        if round_seconds is not None:
            raise InvalidInputError(
                "round_step: rounds of times follow one another; leave it or round_seconds out"
            )
    columns, span, recorded = columns or {}, None, False
    if isinstance(source, Path) or (isinstance(source, str) and "://" not in source):
        source = expand_home(source)
    if isinstance(source, Path) and source.is_dir():
        source, span, clients_of_run = _open_run_folder(source)
        roster = roster if roster or clients else clients_of_run
        recorded = True
        if round_seconds is not None:
            raise InvalidInputError("round_seconds: a run folder has no times; leave it out")
    with ExitStack() as stack:
        if isinstance(source, str) and "://" in source:
            table, span = stack.enter_context(_open_ledger(source))
            recorded = True
        else:
            table = open_source(source)
        entries = Entries(
            round_seconds,
            weights_are_final=recorded or "weight" in columns,
            ids_are_text=table.ids_are_text,
            ids_are_exact=recorded,
            decimal_comma=table.decimal_comma,
        )
        found = find_columns(table.names, columns, timed=round_seconds is not None)
        unread = "" if recorded else found.unread
        entries.notes.extend([*table.notes, *filter(None, (found.note, unread))])
        list_name = None if "client" in columns else found.columns["client"]
        has_rows, lists = False, CohortLists(list_name)
        flags = () if recorded else found.flags
        for batch, share in table.read([*dict.fromkeys([*found.columns.values(), *flags])]):
            for flag in flags:
                refuse_absent(flag, batch[flag])
            rows = {ours: _widen(batch[theirs]) for ours, theirs in found.columns.items()}
            has_rows |= len(rows["client"]) > 0
            with _named_columns(found.columns):
                if table.may_list and not recorded:
                    _add_rows(entries, rows, lists)
                else:
                    entries.add(rows)
            on_progress("reading", share)
    entries.notes.extend(lists.notes)
    if round_seconds is not None or round_step is not None:
        span = None
    if not has_rows:
        raise InvalidInputError("log: it has no rows; give at least two rounds")
    on_progress("sorting", 0.0)
    log = entries.build(roster, clients, span, round_step)
    if log.length < 2 and round_seconds is not None:
        raise InvalidInputError(
            f"round_seconds: all rows are in one round of {round_seconds:g} s; make rounds "
            f"shorter, or leave it out if {found.columns['time']!r:.60} counts rounds"
        )
    if log.length < 2:
        raise InvalidInputError(
            f"round: all rows are in round {log.first_round}; an audit needs at least two rounds"
        )
    return log


def _require_length(round_seconds: float) -> None:
    require_positive("round_seconds", round_seconds)
    if not 1e-6 <= round_seconds <= 1e9:
        raise InvalidInputError(
            f"round_seconds: {round_seconds:g} is no length of a round; "
            "give seconds between a microsecond and a billion"
        )


def _widen(column: pa.Array) -> pa.Array:
    """Return numbers of 16 bits as numbers of 32 bits: Arrow computes little with the former."""
    return column.cast(pa.float32()) if pa.types.is_float16(column.type) else column


def _add_rows(entries: Entries, rows: dict[str, pa.Array], lists: CohortLists) -> None:
    """Add the rows of a batch; a round with an empty list is a round, too."""
    expanded, listed = lists.expand(rows)
    if len(expanded["client"]):
        entries.add(expanded, listed)
    if listed:
        entries.add_rounds(rows)


@contextmanager
def _named_columns(columns: Mapping[str, str]) -> Iterator[None]:
    """Let errors about a column say its name in the log, too; refuse what Arrow cannot compute."""
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


def _open_run_folder(folder: Path) -> tuple[Path, tuple[int, int] | None, ClientTable | None]:
    """Return the log file of a run, the rounds it covers, and its clients."""
    path = folder / "participation.parquet"
    if not path.is_file():
        run = min((log.parent for log in folder.glob(f"**/{path.name}")), default=None)
        example = "" if run is None else f", such as {run}"
        raise InvalidInputError(
            f"log: {str(folder)!r} has no participation.parquet; give the folder of a run{example}"
        )
    summary, table = folder / "summary.json", folder / "clients.parquet"
    span = (0, int(json.loads(summary.read_text())["rounds"])) if summary.is_file() else None
    roster = ClientTable(pl.read_parquet(table, glob=False)["client"]) if table.is_file() else None
    return path, span, roster


@contextmanager
def _open_ledger(url: str) -> Iterator[tuple[TableSource, tuple[int, int] | None]]:
    """Open a ledger; return its rows and the span of its completed rounds, of the same moment."""
    from fedtide.participation.log.ledger import (  # needs SQLAlchemy, an optional dependency
        LOG_COLUMNS,
        LedgerStream,
        stream_ledger,
    )

    def read(ledger: LedgerStream, names: Sequence[str]) -> Batches:
        done = 0
        for frame in ledger.batches:
            done += len(frame)
            for batch, _ in read_frame(frame, names):
                yield batch, done / ledger.size

    with stream_ledger(url) as ledger:
        ended = ledger.rounds["round"]
        span = (ended[0], ended[-1] + 1) if len(ended) else None
        yield TableSource(list(LOG_COLUMNS), partial(read, ledger), may_list=False), span
