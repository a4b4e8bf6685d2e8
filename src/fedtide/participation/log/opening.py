"""Where logs come from: files, run folders, tables in memory, and documents such as NVFlare's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.errors import InvalidInputError
from fedtide.participation.log.tables import (
    MemoryTable,
    OpenTable,
    open_frame,
    open_table,
    require_file,
)
from fedtide.text_files import DAMAGE, open_text, split_suffix, unreadable
from fedtide.validation import expand_home

LogSource = str | Path | MemoryTable | Mapping[str, Sequence[Any]]
FILE_SCHEMES = ("http://", "https://", "s3://", "gs://", "hdfs://")
_DATABASES = (".db", ".sqlite", ".sqlite3")
_PACKED = (".zst", ".bz2", ".xz", ".zip", ".tar", ".tgz")
_TEXT_LOGS = (".log", ".txt", ".log.gz", ".txt.gz")
"""Files of text that a program prints for people."""
_FLOWER_COUNTS = re.compile(r"received \d+ results and \d+ failures", re.IGNORECASE)
"""What a Flower server prints for a round: counts, which do not tell who took part."""
_STATISTICS = {"rounds", "participation", "timing"}
"""Keys of the job_stats_run_summary.json that NVFlare's JobStatsReporter writes."""


@dataclass(frozen=True)
class OpenLog:
    """A log whose rows have not been read yet.

    Args:
        table: its rows.
        recorded: whether fedtide wrote it, so that names and numbers of rounds are exact.
        span: its first round and one past the last; None: as far as its rows reach.
        clients: the names of all clients; None: unknown.
        notes: facts about the log, one sentence each.
    """

    table: OpenTable
    recorded: bool = False
    span: tuple[int, int] | None = None
    clients: pl.Series | None = None
    notes: tuple[str, ...] = ()


def open_log(source: LogSource) -> OpenLog:
    """Open a file, a run folder or a table in memory, without reading its rows.

    Raises:
        InvalidInputError: a source that is missing, damaged or no log.
    """
    if not isinstance(source, str | Path):
        return OpenLog(open_table("log", source))
    if isinstance(source, str) and "://" in source:
        if source.startswith(FILE_SCHEMES):
            raise InvalidInputError(
                f"log: {source!r:.80} is not on this machine; download it, and give its path"
            )
        raise InvalidInputError(
            "log: a database cannot be read here; write its log to a file with fedtide ledger "
            "export"
        )
    path = expand_home(source)
    if path.is_dir():
        return _open_run_folder(path)
    if path.suffix.lower() in _DATABASES:
        raise InvalidInputError(f"log: {str(path)!r} is a database; write sqlite:///{path}")
    if path.suffix.lower() in _PACKED and path.exists():
        raise InvalidInputError(
            f"log: {str(path)!r} is packed; unpack it (text may be compressed by gzip)"
        )
    kind, _ = split_suffix(path)
    try:
        if kind in _TEXT_LOGS:
            require_file("log", path, _TEXT_LOGS)
            raise _refuse_text(path)
        if kind == ".json" and path.is_file() and (found := _read_document(path)) is not None:
            return OpenLog(open_frame("log", found[0]), notes=tuple(found[1]))
    except InvalidInputError:
        raise
    except (pl.exceptions.PolarsError, TypeError, OverflowError, *DAMAGE) as error:
        raise unreadable("log", path, error) from None
    return OpenLog(open_table("log", path))


def _open_run_folder(folder: Path) -> OpenLog:
    path = folder / "participation.parquet"
    if not path.is_file():
        run = min((log.parent for log in folder.glob(f"**/{path.name}")), default=None)
        example = ", or join tables of parts into one" if run is None else f", such as {run}"
        raise InvalidInputError(
            f"log: {str(folder)!r} has no participation.parquet; give the folder of a run{example}"
        )
    summary, table = folder / "summary.json", folder / "clients.parquet"
    span = (0, int(json.loads(summary.read_text())["rounds"])) if summary.is_file() else None
    clients = pl.read_parquet(table, glob=False)["client"] if table.is_file() else None
    experiment = folder / "experiment.yaml"
    # Not parsed: with a number for each of many clients, that takes seconds.
    text = experiment.read_text("utf-8") if experiment.is_file() else ""
    method = re.search(r"^algorithm:\n  type: (\S+)", text, re.MULTILINE)
    notes = [] if method is None or method[1] in ("fedavg", "fedprox") else [method[1]]
    return OpenLog(
        open_table("log", path),
        recorded=True,
        span=span,
        clients=clients,
        notes=tuple(f"the run's method is {one}; the audit judges averaging" for one in notes),
    )


def _read_document(path: Path) -> tuple[pl.DataFrame, list[str]] | None:
    """Return the rows of a log in a JSON document, and notes on the reading; None: it is a table.

    A document is NVFlare's summary of a job, or {"0": ["ann", "bob"], "1": [], ...}: the clients of
    every round.

    Raises:
        InvalidInputError: another object.
    """
    with open_text(path) as file:
        start = file.read(1 << 16)
        lines = [line for line in start.splitlines() if line.strip()][:2]
        if not start.lstrip().startswith("{") or _is_row(lines):
            return None
        document = json.loads(start + file.read())
    if document.keys() >= _STATISTICS:
        return _read_statistics(document)
    if not document or not all(name.isdecimal() for name in document):
        raise InvalidInputError(
            f"log: an object with {', '.join(map(repr, list(document)[:4]))} is not a known log; "
            "write an array of rows, one JSON object per row, or the list of clients of each round"
        )
    for t, clients in document.items():
        if not isinstance(clients, list):
            raise InvalidInputError(
                f"log: round {t} has {clients!r:.60} instead of a list of clients; "
                'write {"0": ["ann", "bob"], "1": []}'
            )
    return pl.DataFrame({"round": map(int, document), "client": document.values()}), []


def _refuse_text(path: Path) -> InvalidInputError:
    """Return the error for text that a program prints for people, which names no clients."""
    with open_text(path) as file:
        counts = any(_FLOWER_COUNTS.search(line) for line in file)
    if counts:
        return InvalidInputError(
            f"log: {str(path)!r} is the log of a Flower server, which says how many clients "
            "took part, not which; record the clients with fedtide.flower.ParticipationObserver"
        )
    return InvalidInputError(
        f"log: {str(path)!r} is text without columns; give a table of rounds and clients "
        "(if it is one, rename it to .csv)"
    )


def _is_row(lines: list[str]) -> bool:
    """Return whether the first lines of a file are rows of a table, one object each."""
    try:
        first = json.loads(lines[0])
    except ValueError:
        return False
    if len(lines) > 1:
        return True
    return not (first.keys() >= _STATISTICS or (first and all(k.isdecimal() for k in first)))


def _read_statistics(summary: Mapping[str, Any]) -> tuple[pl.DataFrame, list[str]]:
    """Return one row per round, with lists of clients and stages, and notes on the reading.

    A client that a round targets was selected. It reported if a task of the round ended well, or if
    the aggregator rejected its result, and was used if its result was accepted. Rounds that had not
    ended are left out. The rounds of several workflows are numbered one after the other.

    Raises:
        InvalidInputError: no rounds; a round whose list of accepted clients is incomplete; a
            document without the fields of NVFlare 2.9.
    """
    try:
        rounds = [row for row in summary["rounds"] if row["ended_at"] is not None]
        _reject_incomplete(rounds)
        returned = {
            (task["workflow"], task["round"], task["client"])
            for task in summary["timing"]["tasks"]
            if task["received_at"] is not None and task["return_code"] in (None, "OK")
        }
        stages = [_find_stages(row, returned) for row in rounds]
        workflows = {row["workflow"] for row in rounds}
        numbers = [row["round"] for row in rounds]
        basis = summary["participation"]["participation_basis"]
    except (KeyError, TypeError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else f"unexpected values ({error})"
        raise InvalidInputError(
            f"log: NVFlare's summary has {what}; give a job_stats_run_summary.json of NVFlare 2.9"
        ) from None
    if not rounds:
        raise InvalidInputError(
            "log: NVFlare's summary has no round that ended; audit a longer job"
        )
    notes = []
    if unfinished := len(summary["rounds"]) - len(rounds):
        notes.append(f"rounds that had not ended are left out: {unfinished}")
    if basis != "aggregation_stats":
        notes.append(
            "NVFlare's aggregator did not publish whose results it used in every round; in the "
            "others, clients whose results were accepted, or arrived without an error, are used"
        )
    if len(workflows) > 1 or not all(type(number) is int for number in numbers):
        numbers = list(range(len(rounds)))
        notes.append(f"the rounds of {len(workflows)} workflows are numbered one after the other")
    columns = {
        "client": [list(one) for one in stages],
        "stage": [[*one.values()] for one in stages],
    }
    return pl.DataFrame({"round": numbers} | columns), notes


def _find_stages(row: Mapping[str, Any], returned: set[tuple[Any, Any, str]]) -> dict[str, str]:
    """Return the last stage of each client of a round."""
    stages = {}
    for client in row["targeted_clients"]:
        arrived = (row["workflow"], row["round"], client) in returned
        rejected = client in row["rejected_clients"]  # others are rejected as late: see their round
        stages[client] = "reported" if arrived or rejected else "selected"
    return stages | dict.fromkeys(row["accepted_client_names"], "used")


def _reject_incomplete(rounds: list[dict[str, Any]]) -> None:
    """Raise InvalidInputError if the names of some accepted clients are unknown."""
    unknown = [row for row in rounds if not row["accepted_client_names_complete"]]
    if unknown:
        first = unknown[0]
        raise InvalidInputError(
            f"log: NVFlare does not know which clients took part in {len(unknown)} of "
            f"{len(rounds)} rounds (round {first['round']}: {first['accepted_clients']} accepted, "
            f"{len(first['accepted_client_names'])} by name), so they cannot be audited; let the "
            "aggregator publish the names of its contributors"
        )
