"""Reading a participation log: from a file, a run folder, a ledger or a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.columns import (
    COLUMNS,
    find_columns,
    parse_clients,
    parse_codes,
    parse_rounds,
    parse_used,
    parse_weights,
)
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.errors import InvalidInputError
from fedtide.participation.log.client_ids import list_names
from fedtide.participation.log.schema import normalise_log
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
        columns: the log's own names of `round`, `client`, `stage` or `weight`.
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
    entries, span = _Entries(), None
    if isinstance(source, str | Path) and Path(source).is_dir():
        source, span, clients_of_run = _open_run_folder(Path(source))
        roster = roster if roster or clients else clients_of_run
    if isinstance(source, str) and "://" in source:
        source, span = _read_ledger(source)
    if isinstance(source, str | Path) and Path(source).suffix.lower() == ".parquet":
        _stream_parquet(Path(source), columns or {}, entries, on_progress)
    else:
        _read_frame(source, columns or {}, entries)
    on_progress("sorting", 0.0)
    return entries.build(roster, clients, span)


class _Entries:
    """The used rows of a log, collected batch by batch in 8 bytes each.

    Clients are numbered in the order of their first row at any stage: a client that was only
    available or selected belongs to the federation too.
    """

    def __init__(self) -> None:
        self._codes: dict[int | str, int] = {}
        self._rounds: list[NDArray[np.integer]] = []
        self._clients: list[NDArray[np.int32]] = []
        self._weights: list[NDArray[np.float32]] | None = []

    def add(
        self,
        rounds: pa.Array,
        clients: pa.Array,
        stages: pa.Array | None = None,
        weights: pa.Array | None = None,
    ) -> None:
        """Add a batch of rows. Weights are kept only if every used row has one."""
        numbers = parse_rounds(rounds)
        codes = self._encode(clients)
        given = None if weights is None else parse_weights(weights)
        if stages is not None:
            used = parse_used(stages)
            numbers, codes = numbers[used], codes[used]
            given = None if given is None else given[used]
        if given is None or np.isnan(given).any():
            self._weights = None
        elif self._weights is not None:
            self._weights.append(given)
        self._rounds.append(numbers)
        self._clients.append(codes)

    def build(
        self, roster: ClientTable | None, clients: int | None, span: tuple[int, int] | None
    ) -> ParticipationLog:
        """Return the log of the roster's clients, of 0..clients − 1, or of the clients seen.

        Raises:
            InvalidInputError: mixed ids, an unknown client, or entries that
                `ParticipationLog.from_entries` refuses.
        """
        seen = list(self._codes)
        if len({type(name) for name in seen}) > 1:
            raise InvalidInputError(
                "client: ids are numbers and strings; give whole numbers only or strings only"
            )
        names = _client_names(seen, roster, clients)
        positions = _find_positions(seen, names, "--clients" if roster is None else "--roster")
        rounds = _concatenate(self._rounds)
        codes = _concatenate(self._clients)
        for low in range(0, len(codes), 1 << 22):  # in place: no third copy of a long log
            codes[low : low + (1 << 22)] = positions[codes[low : low + (1 << 22)]]
        weights = _concatenate(self._weights) if self._weights else None
        return ParticipationLog.from_entries(names, rounds, codes, span, weights)

    def _encode(self, clients: pa.Array) -> NDArray[np.int32]:
        """Return the code of each row's client; new clients get the next codes."""
        encoded = parse_clients(clients)
        names = encoded.dictionary.to_pylist()
        table = np.array(
            [self._codes.setdefault(name, len(self._codes)) for name in names], dtype=np.int32
        )
        codes: NDArray[np.int32] = table[parse_codes(encoded)]
        return codes


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
    path: Path, columns: Mapping[str, str], entries: _Entries, on_progress: OnProgress
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


def _read_frame(source: LogSource, columns: Mapping[str, str], entries: _Entries) -> None:
    """Add the rows of a DataFrame, or of a file that is read as a whole."""
    if isinstance(source, pl.DataFrame):
        frame = source
    else:
        frame = read_table("log", source, columns.get("client", "client"))
    names = find_columns(frame.columns, columns)
    frame = frame.select(pl.col(theirs).alias(ours) for ours, theirs in names.items())
    for batch in normalise_log(frame).select(COLUMNS).to_arrow().to_batches():
        entries.add(*batch.columns)


def _client_names(
    seen: Sequence[int | str], roster: ClientTable | None, clients: int | None
) -> pl.Series:
    if roster is not None:
        return roster.names
    if clients is None:
        return pl.Series("client", sorted(seen))
    if seen and isinstance(seen[0], str):
        if len(seen) > clients:
            raise InvalidInputError(
                f"clients: the log names {len(seen)} clients, more than {clients}; "
                "give a larger number"
            )
        unnamed = [f"(unnamed {i + 1})" for i in range(clients - len(seen))]
        return pl.Series("client", [*sorted(seen), *unnamed])
    return pl.Series("client", np.arange(clients))


def _find_positions(seen: Sequence[int | str], names: pl.Series, option: str) -> NDArray[np.int32]:
    """Return the position in `names` of each client seen."""
    positions = {str(name): i for i, name in enumerate(names.to_list())}
    unknown = [name for name in seen if str(name) not in positions]
    if unknown:
        hint = "give a larger number, or --roster" if option == "--clients" else "complete it"
        raise InvalidInputError(
            f"client: the {len(names)} clients of {option} do not include {list_names(unknown)}; "
            f"{hint}"
        )
    return np.array([positions[str(name)] for name in seen], dtype=np.int32)


def _concatenate(parts: list[Any]) -> NDArray[Any]:
    """Concatenate and empty `parts`, so that each part is freed once copied."""
    if not parts:
        return np.empty(0, dtype=np.int32)
    joined = np.empty(sum(map(len, parts)), dtype=np.result_type(*parts))
    low = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        joined[low : low + len(part)] = part
        low += len(part)
    return joined
