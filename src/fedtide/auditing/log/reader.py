"""Where a log comes from: a table in a file, a run's folder, a database, or memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.entries import Entries
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.log.schema import normalise_log
from fedtide.participation.log.tables import read_table

Log = str | Path | pl.DataFrame
Watch = Callable[[str, float], None]
"""Called with what is being done and which share of it is done."""

_BATCH = 1 << 21
_COLUMNS = ("round", "client", "stage", "weight")
_ALIASES = {
    "round": ("server_round", "round_number", "rnd", "current_round", "iteration", "epoch", "step"),
    "client": ("client_id", "cid", "node_id", "partition_id", "clientid", "device", "user", "id"),
}


def read_attendance(
    log: Log,
    clients: int | None = None,
    roster: ClientTable | None = None,
    columns: Mapping[str, str] | None = None,
    watch: Watch = lambda task, share: None,
) -> ParticipationLog:
    """Return who took part, from any kind of log.

    Args:
        log: a Parquet, CSV or JSON lines file; the folder of a run; the database URL of a
            deployment's ledger, such as sqlite:///ledger.db (a federation's name after #, where it
            holds several); or a DataFrame. Rows may come in any order.
        clients: N. Ids that are numbers must then be 0..N − 1; if they are strings, those that the
            log does not name are unnamed. None: the clients of the roster, of the run, or those
            that the log names.
        roster: who could have come.
        columns: what the log calls `round`, `client`, `stage` or `weight`.
        watch: is told how far the reading is.

    Raises:
        InvalidInputError: a log that cannot be used, in one sentence.
    """
    if clients is not None and clients < 1:
        raise InvalidInputError(f"clients: {clients} clients; at least 1 is needed")
    if clients is not None and roster is not None:
        raise InvalidInputError(
            "clients: the roster says how many there are; leave one of the two out"
        )
    entries, span = Entries(), None
    if isinstance(log, str | Path) and Path(log).is_dir():
        log, span, found = _run_folder(Path(log))
        roster = roster if roster or clients else found
    if isinstance(log, str) and "://" in log:
        log, span = _ledger(log)
    if isinstance(log, str | Path) and Path(log).suffix.lower() == ".parquet":
        _stream(Path(log), columns or {}, entries, watch)
    else:
        _add_frame(log, columns or {}, entries)
    watch("sorting", 0.0)
    return entries.attendance(roster, clients, span)


def _run_folder(folder: Path) -> tuple[Path, tuple[int, int] | None, ClientTable | None]:
    """Return a run's log, the rounds that it covers, and its clients."""
    path = folder / "participation.parquet"
    if not path.is_file():
        raise InvalidInputError(
            f"log: {str(folder)!r} holds no participation.parquet; give a run's folder"
        )
    summary, table = folder / "summary.json", folder / "clients.parquet"
    span = (0, int(json.loads(summary.read_text())["rounds"])) if summary.is_file() else None
    roster = ClientTable(pl.read_parquet(table)["client"]) if table.is_file() else None
    return path, span, roster


def _stream(path: Path, columns: Mapping[str, str], entries: Entries, watch: Watch) -> None:
    """Take in a Parquet file, some million rows at a time."""
    if not path.is_file():
        raise InvalidInputError(f"log: there is no file {str(path)!r}; give the path of one")
    if path.stat().st_size == 0:
        raise InvalidInputError(f"log: {str(path)!r} is empty; write it again")
    try:
        with pq.ParquetFile(path) as file:
            names = find_columns(file.schema_arrow.names, columns)
            wanted, done = list(names.values()), 0
            for batch in file.iter_batches(_BATCH, columns=wanted):
                entries.add(*(batch[names[name]] if name in names else None for name in _COLUMNS))
                done += len(batch)
                watch("reading", done / file.metadata.num_rows)
    except InvalidInputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InvalidInputError(
            f"log: {str(path)!r} is no readable .parquet file ({reason}); write it again"
        ) from None


def _add_frame(log: Log, columns: Mapping[str, str], entries: Entries) -> None:
    """Take in a table that is, or fits, in memory."""
    frame = log
    if not isinstance(frame, pl.DataFrame):
        frame = read_table("log", frame, columns.get("client", "client"))
    names = find_columns(frame.columns, columns)
    frame = frame.select(pl.col(theirs).alias(ours) for ours, theirs in names.items())
    table = normalise_log(frame).select(_COLUMNS).to_arrow()
    for batch in table.to_batches():
        entries.add(*batch.columns)


def find_columns(there: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return what the log calls round, client and, if it has them, stage and weight.

    Raises:
        InvalidInputError: an unknown name in `columns`, or a column that is not there.

    >>> find_columns(["server_round", "client"], {"round": "server_round"})
    {'round': 'server_round', 'client': 'client'}
    """
    for ours, theirs in columns.items():
        if ours not in _COLUMNS:
            options = did_you_mean(ours, _COLUMNS)
            raise InvalidInputError(f"columns: an audit has no use for {ours!r}; {options}")
        if theirs not in there:
            raise InvalidInputError(
                f"columns: the log has no {theirs!r}; {did_you_mean(theirs, there)}"
            )
    names = {}
    for ours in ("round", "client"):
        names[ours] = columns.get(ours, ours)
        if names[ours] not in there:
            listed = ", ".join(repr(name) for name in there)
            raise InvalidInputError(
                f"log: there is no column {ours!r} among {listed}; say which it is with "
                f"--columns {ours}={_guess(ours, there)}"
            )
    for ours in ("stage", "weight"):
        if columns.get(ours, ours) in there:
            names[ours] = columns.get(ours, ours)
    return names


def _guess(ours: str, there: Sequence[str]) -> str:
    lower = {name.lower(): name for name in there}
    return next((lower[alias] for alias in _ALIASES[ours] if alias in lower), "NAME")


def _ledger(url: str) -> tuple[pl.DataFrame, tuple[int, int] | None]:
    """Return the log in the ledger of a deployment, and the rounds that have ended."""
    from fedtide.participation.log.ledger import (  # an extra brings SQLAlchemy
        read_ledger,
        read_rounds,
    )

    frame, ended = read_ledger(url), read_rounds(url)["round"].to_list()
    return frame, (ended[0], ended[-1] + 1) if ended else None
