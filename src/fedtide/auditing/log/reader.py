"""Reading a participation log: from a file, a run folder, a ledger or a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.columns import COLUMNS, find_columns
from fedtide.auditing.log.entries import Entries
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.errors import InvalidInputError
from fedtide.participation.log.tables import read_table

LogSource = str | Path | pl.DataFrame
OnProgress = Callable[[str, float], None]
"""Called with the name of the current step and the completed share of it."""

_BATCH = 1 << 21


def read_participation_log(
    source: LogSource,
    clients: int | None = None,
    roster: ClientTable | None = None,
    columns: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda step, share: None,
) -> ParticipationLog:
    """Read a participation log; rows may be in any order.

    Args:
        source: a Parquet, CSV or JSON lines file; a run folder; the database URL of a ledger, such
            as sqlite:///ledger.db (with the federation's name after # if it holds several); or a
            DataFrame.
        clients: N. Numeric ids must then be 0..N − 1; string ids missing from the log get
            placeholder names. None: the clients of the roster, of the run, or of the log.
        roster: all clients of the federation.
        columns: the log's own names of `round`, `client`, `stage`, `weight` or `samples`. A column
            given as `weight` holds q_t^n, one given as `samples` sample counts. If none is given
            and all entries of a column `weight` are whole numbers whose sum in a round is typically
            10 or more, they are sample counts; run folders and ledgers hold q_t^n in any case.
        on_progress: progress callback.

    Raises:
        InvalidInputError: a log that cannot be used.
    """
    if clients is not None and clients < 1:
        raise InvalidInputError(f"clients: {clients} clients; give at least 1")
    if clients is not None and roster is not None:
        raise InvalidInputError(
            "clients: the roster already gives the number of clients; leave one of the two out"
        )
    recorded, span = False, None
    if isinstance(source, str | Path) and Path(source).is_dir():
        source, span, clients_of_run = _open_run_folder(Path(source))
        roster = roster if roster or clients else clients_of_run
        recorded = True
    if isinstance(source, str) and "://" in source:
        source, span = _read_ledger(source)
        recorded = True
    entries = Entries(weights_are_final=recorded or "weight" in (columns or {}))
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".parquet":
        _stream_parquet(Path(source), columns or {}, entries, on_progress)
    else:
        _read_frame(source, columns or {}, entries)
    on_progress("sorting", 0.0)
    return entries.build(roster, clients, span)


def _open_run_folder(folder: Path) -> tuple[Path, tuple[int, int] | None, ClientTable | None]:
    """Return the log file of a run, the rounds it covers, and its clients."""
    path = folder / "participation.parquet"
    if not path.is_file():
        raise InvalidInputError(
            f"log: {str(folder)!r} has no participation.parquet; give the folder of a run"
        )
    summary, table = folder / "summary.json", folder / "clients.parquet"
    span = (0, int(json.loads(summary.read_text())["rounds"])) if summary.is_file() else None
    roster = ClientTable(pl.read_parquet(table)["client"]) if table.is_file() else None
    return path, span, roster


def _read_ledger(url: str) -> tuple[pl.DataFrame, tuple[int, int] | None]:
    """Return the rows of a ledger and the span of its completed rounds."""
    from fedtide.participation.log.ledger import (  # needs SQLAlchemy, an optional dependency
        read_ledger,
        read_rounds,
    )

    frame, ended = read_ledger(url), read_rounds(url)["round"].to_list()
    return frame, (ended[0], ended[-1] + 1) if ended else None


def _stream_parquet(
    path: Path, columns: Mapping[str, str], entries: Entries, on_progress: OnProgress
) -> None:
    """Add the rows of a Parquet file, two million at a time."""
    if not path.is_file():
        raise InvalidInputError(f"log: no file {str(path)!r}; give the path of a log")
    if path.stat().st_size == 0:
        raise InvalidInputError(f"log: {str(path)!r} is empty; write it again")
    try:
        with pq.ParquetFile(path) as file:
            names = find_columns(file.schema_arrow.names, columns)
            done = 0
            for batch in file.iter_batches(_BATCH, columns=list(names.values())):
                entries.add(*(batch[names[name]] if name in names else None for name in COLUMNS))
                done += len(batch)
                on_progress("reading", done / file.metadata.num_rows)
    except InvalidInputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InvalidInputError(
            f"log: {str(path)!r} is not a readable Parquet file ({reason}); write it again"
        ) from None


def _read_frame(source: LogSource, columns: Mapping[str, str], entries: Entries) -> None:
    """Add the rows of a DataFrame, or of a file that is read as a whole."""
    if isinstance(source, pl.DataFrame):
        frame = source
    else:
        frame = read_table("log", source, columns.get("client", "client"))
    names = find_columns(frame.columns, columns)
    frame = frame.select(pl.col(theirs).alias(ours) for ours, theirs in names.items())
    frame = frame.with_columns(pl.selectors.decimal().cast(pl.Float64))
    for batch in frame.to_arrow().to_batches():
        entries.add(*(batch[name] if name in names else None for name in COLUMNS))
