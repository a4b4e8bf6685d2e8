"""Collecting the rows of a log batch by batch, and building the log from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.columns import (
    parse_clients,
    parse_codes,
    parse_numbers,
    parse_rounds,
    parse_stages,
)
from fedtide.auditing.log.participation_log import (
    Floats,
    ParticipationLog,
    check_length,
    repeated_client,
)
from fedtide.errors import InvalidInputError
from fedtide.participation.log.client_ids import list_names
from fedtide.participation.log.schema import STAGES

_USED = STAGES.index("used")

_COUNT_SUM = 10.0
"""Whole-numbered weights are sample counts if they typically sum to at least this in a round."""


class Entries:
    """The rows of a log, collected batch by batch: 8 bytes each, and 4 for each optional number.

    Clients are numbered in the order of their first row at any stage: a client that was only
    available or selected belongs to the federation too.

    Args:
        weights_are_final: whether a weight is q_t^n even if it looks like a sample count.
    """

    def __init__(self, weights_are_final: bool = False) -> None:
        self.notes: list[str] = []
        self._weights_are_final = weights_are_final
        self._codes: dict[int | str, int] = {}
        self._rounds: list[NDArray[np.integer]] = []
        self._clients: list[NDArray[np.int32]] = []
        self._stages: list[NDArray[np.uint8]] = []
        self._weights: list[NDArray[np.float32]] = []
        self._samples: list[NDArray[np.float32]] = []

    def add(
        self,
        rounds: pa.Array,
        clients: pa.Array,
        stages: pa.Array | None = None,
        weights: pa.Array | None = None,
        samples: pa.Array | None = None,
    ) -> None:
        """Add a batch of rows; all batches of a log have the same columns."""
        if len(rounds) == 0:
            return
        self._rounds.append(parse_rounds(rounds))
        self._clients.append(self._encode(clients))
        if stages is not None:
            self._stages.append(parse_stages(stages))
        if weights is not None:
            self._weights.append(parse_numbers("weight", weights))
        if samples is not None:
            self._samples.append(parse_numbers("samples", samples))

    def build(
        self, roster: ClientTable | None, clients: int | None, span: tuple[int, int] | None
    ) -> ParticipationLog:
        """Return the log of the roster's clients, of 0..clients − 1, or of the clients seen.

        Args:
            roster: all clients.
            clients: N.
            span: first round and one past the last; None: from the first row to the last, at
                whatever stage.

        Raises:
            InvalidInputError: mixed ids, an unknown client, a client twice at the same stage of a
                round, or entries that `ParticipationLog.from_entries` refuses.
        """
        names, rows = self._collect(roster, clients)
        if span is None:
            span = _find_span(rows.rounds)
            check_length(span[1] - span[0], len(rows.rounds))
        declared = _average_by_client(rows.clients, rows.samples, len(names))
        available = selected = None
        if rows.stages is not None and (rows.stages < _USED).any():
            available, selected = _index_stages(names, rows, rows.stages, span)
            rows = rows.where(rows.stages == _USED)
        weights, counts = self._find_weights(rows)
        if declared is None and counts is not None:
            declared = _average_by_client(rows.clients, counts, len(names))
        log = ParticipationLog.from_entries(names, rows.rounds, rows.clients, span, weights)
        return replace(
            log,
            samples=declared,
            available=available,
            selected=selected,
            notes=tuple(self.notes),
        )

    def _collect(self, roster: ClientTable | None, clients: int | None) -> tuple[pl.Series, _Rows]:
        """Return the clients' names and all rows, whose clients are positions in the names."""
        seen = list(self._codes)
        if len({type(name) for name in seen}) > 1:
            raise InvalidInputError(
                "client: ids are numbers and strings; give whole numbers only or strings only"
            )
        names = _client_names(seen, roster, clients)
        positions = _find_positions(seen, names, "--clients" if roster is None else "--roster")
        codes = _concatenate(self._clients)
        for low in range(0, len(codes), 1 << 22):  # in place: no third copy of a long log
            codes[low : low + (1 << 22)] = positions[codes[low : low + (1 << 22)]]
        optional = (self._stages, self._weights, self._samples)
        columns = (_concatenate(parts) if parts else None for parts in optional)
        return names, _Rows(_concatenate(self._rounds), codes, *columns)

    def _find_weights(
        self, used: _Rows
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Return q_t^n of each used row, and the sample counts behind it; None where unknown.

        Weights are kept only if every used row has one.
        """
        weights, counts = used.weights, used.samples
        if weights is not None and not np.isnan(weights).any():
            if self._weights_are_final or not _look_like_counts(used.rounds, weights):
                return weights, counts
            self.notes.append(
                "the weights are whole numbers that sum to far more than 1 in a round: read as "
                "sample counts, and divided by their sum in each round (--columns weight=NAME "
                "keeps them as they are)"
            )
            counts = weights
        if counts is None or np.isnan(counts).any():
            return None, counts
        return _normalise_by_round(used.rounds, counts), counts

    def _encode(self, clients: pa.Array) -> NDArray[np.int32]:
        """Return the code of each row's client; new clients get the next codes."""
        encoded = parse_clients(clients)
        names = encoded.dictionary.to_pylist()
        table = np.array(
            [self._codes.setdefault(name, len(self._codes)) for name in names], dtype=np.int32
        )
        codes: NDArray[np.int32] = table[parse_codes(encoded)]
        return codes


@dataclass(frozen=True, eq=False)
class _Rows:
    """The columns of a log: E rounds and clients, and what the log has of the others."""

    rounds: NDArray[np.integer]
    clients: NDArray[np.int32]
    stages: NDArray[np.uint8] | None
    weights: NDArray[np.float32] | None
    samples: NDArray[np.float32] | None

    def where(self, mask: NDArray[np.bool_]) -> _Rows:
        columns: dict[str, Any] = vars(self)
        return _Rows(**{k: None if v is None else v[mask] for k, v in columns.items()})


def _index_stages(
    names: pl.Series, rows: _Rows, levels: NDArray[np.uint8], span: tuple[int, int]
) -> tuple[ParticipationLog | None, ParticipationLog | None]:
    """Return who was available, and who was selected, as far as the log distinguishes them.

    A client may have several rows in a round, one for each stage; the last one counts.

    Args:
        names: of the clients.
        rows: of the log.
        levels: the index in STAGES of each row.
        span: of the log.
    """
    counts = np.bincount(levels, minlength=len(STAGES))
    # One sortable number per row: by round, then client, then stage.
    keys = rows.rounds.astype(np.int64) - span[0]
    keys *= len(names)
    keys += rows.clients
    keys *= len(STAGES)
    keys += levels
    keys.sort()
    repeated = np.flatnonzero(keys[1:] == keys[:-1])
    pairs, stages = np.divmod(keys, len(STAGES))
    rounds, clients = np.divmod(pairs, len(names))
    if len(repeated):
        n, t = int(clients[repeated[0]]), span[0] + int(rounds[repeated[0]])
        raise repeated_client(names[n], t)
    last = np.append(pairs[1:] != pairs[:-1], True)

    def index(lowest: int) -> ParticipationLog:
        kept = last & (stages >= lowest)
        entries = (rounds[kept] + span[0], clients[kept].astype(np.int32))
        return ParticipationLog.from_entries(names, *entries, span)

    available = index(STAGES.index("available")) if counts[0] else None
    selected = index(STAGES.index("selected")) if counts[1:_USED].any() else None
    return available, selected


def _find_span(rounds: NDArray[np.integer]) -> tuple[int, int]:
    """Return the first round and one past the last."""
    return (int(rounds.min()), int(rounds.max()) + 1) if len(rounds) else (0, 0)


def _average_by_client(
    clients: NDArray[np.int32], samples: NDArray[np.float32] | None, size: int
) -> Floats | None:
    """Return each client's mean sample count, (N,), NaN without one; None if there are none."""
    if samples is None or np.isnan(samples).all():
        return None
    given = ~np.isnan(samples)
    sums = np.bincount(clients[given], samples[given], minlength=size)
    rows = np.bincount(clients[given], minlength=size)
    return np.where(rows > 0, sums / np.maximum(rows, 1), np.nan)


def _look_like_counts(rounds: NDArray[np.integer], weights: NDArray[np.float32]) -> bool:
    """Return whether these are sample counts rather than q_t^n, whose sums are about 1."""
    if (weights != np.round(weights)).any():
        return False
    sums = np.bincount(rounds - rounds.min(), weights) if len(rounds) else np.zeros(0)
    sums = sums[sums > 0]
    return len(sums) > 0 and bool(np.median(sums) >= _COUNT_SUM)


def _normalise_by_round(
    rounds: NDArray[np.integer], counts: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return each count divided by the sum of its round; 0 in a round without samples."""
    if not len(rounds):
        return counts
    shifted = rounds - rounds.min()
    sums = np.bincount(shifted, counts)
    shares: NDArray[np.float32] = (counts / np.where(sums > 0, sums, 1.0)[shifted]).astype(
        np.float32
    )
    return shares


def _client_names(
    seen: Sequence[int | str], roster: ClientTable | None, clients: int | None
) -> pl.Series:
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


def _within_64_bits(names: list[Any]) -> list[Any]:
    """Return whole numbers beyond 64 bits, and all beside them, as strings."""
    fits = not names or isinstance(names[0], str) or -(2**63) <= names[0] <= names[-1] < 2**63
    return names if fits else [str(name) for name in names]


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
