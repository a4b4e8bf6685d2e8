"""Collecting the rows of a log batch by batch, and building the log from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.participation_log import (
    Floats,
    ParticipationLog,
    check_length,
    repeated_client,
)
from fedtide.auditing.log.refusals import ReasonColumn, format_reasons
from fedtide.auditing.log.round_numbers import (
    describe_time,
    find_step,
    reject_gaps,
    reject_times,
)
from fedtide.auditing.log.times import TimeColumn
from fedtide.auditing.log.values import (
    NO_STAGE,
    STAGE_HINT,
    parse_clients,
    parse_codes,
    parse_numbers,
    parse_rounds,
    parse_stages,
)
from fedtide.errors import InvalidInputError, list_names
from fedtide.participation.log.client_ids import parse_whole_numbers
from fedtide.participation.log.schema import STAGES

_USED = STAGES.index("used")

_COUNT_SUM = 10.0
"""Whole-numbered weights are sample counts if they typically sum to at least this in a round."""


class Entries:
    """The rows of a log, collected batch by batch: 8 bytes each, and 4 for each optional number.

    A row with a reason takes 12 bytes more.

    Clients are numbered in the order of their first row at any stage: a client that was only
    available or selected belongs to the federation too.

    Args:
        round_seconds: the length of a round, if the log has times instead of rounds.
        weights_are_final: whether a weight is q_t^n even if it looks like a sample count.
        ids_are_text: whether client ids that are whole numbers come as text.
        ids_are_exact: whether client ids are names as they are, with blanks around them or "none".
        decimal_comma: whether numbers may come as text with a decimal comma.
    """

    def __init__(
        self,
        round_seconds: float | None = None,
        weights_are_final: bool = False,
        ids_are_text: bool = False,
        ids_are_exact: bool = False,
        decimal_comma: bool = False,
    ) -> None:
        self.notes: list[str] = []
        self._nanoseconds = None if round_seconds is None else round(round_seconds * 1e9)
        self._times = TimeColumn()
        self._weights_are_final = weights_are_final
        self._ids_are_text = ids_are_text
        self._ids_are_exact = ids_are_exact
        self._decimal_comma = decimal_comma
        self._codes: dict[int | str, int] = {}
        self._rounds: list[NDArray[np.integer]] = []
        self._clients: list[NDArray[np.int32]] = []
        self._stages: list[NDArray[np.uint8]] = []
        self._numbers: dict[str, list[NDArray[np.float32]]] = {"weight": [], "samples": []}
        self._reasons = ReasonColumn()
        self._listed: list[NDArray[np.integer]] = []
        self._size = 0

    def add(self, batch: Mapping[str, pa.Array], listed: bool = False) -> None:
        """Add the columns of a batch, by our names; all batches of a log have the same columns.

        Args:
            batch: the columns.
            listed: whether the clients come from lists.
        """
        self._rounds.append(self._parse_rounds(batch))
        self._clients.append(self._encode(batch["client"], None if listed else self._size))
        if "stage" in batch:
            self._stages.append(parse_stages(batch["stage"]))
        for field, parts in self._numbers.items():
            if field in batch:
                parts.append(parse_numbers(field, batch[field], self._decimal_comma))
        if "reason" in batch:
            self._reasons.add(batch["reason"], self._size)
        self._size += len(self._rounds[-1])

    def add_rounds(self, batch: Mapping[str, pa.Array]) -> None:
        """Make the rounds of a batch part of the log, even if they have no clients."""
        self._listed.append(self._parse_rounds(batch))

    def build(
        self,
        roster: ClientTable | None,
        clients: int | None,
        span: tuple[int, int] | None,
        step: int | None = None,
    ) -> ParticipationLog:
        """Return the log of the roster's clients, of 0..clients − 1, or of the clients seen.

        Args:
            roster: all clients.
            clients: N.
            span: first round and one past the last; None: from the first row to the last, at
                whatever stage.
            step: the difference between the numbers of consecutive rounds; None: see `find_step`.

        Raises:
            InvalidInputError: mixed ids, an unknown client, a client twice at the same stage of a
                round, times instead of rounds, or entries that `ParticipationLog.from_entries`
                refuses.
        """
        names, rows = self._collect(roster, clients)
        if span is None:
            rows, span = self._number_rounds(rows, step)
        declared = _average_by_client(rows.clients, rows.samples, len(names))
        if rows.samples is not None:
            self._note_fractions(rows.samples)
        refusals = None
        if rows.stages is None and self._reasons:
            self.notes.append("the reasons are not used: without stages, every row was used")
        elif rows.stages is not None:
            refusals = self._reasons.count(rows.rounds, rows.clients, rows.stages, _USED)
            rows = self._drop_claimed(rows, rows.stages)
        if self._nanoseconds is not None:
            rows = self._merge_repeated(rows, len(names), declared)
        available = selected = reported = None
        if rows.stages is not None and (rows.stages < _USED).any():
            available, selected, reported = _index_stages(names, rows, rows.stages, span)
            rows = rows.where(rows.stages == _USED)
        if refusals is not None and not len(rows.rounds):
            raise InvalidInputError(
                f"log: no update was used in {span[1] - span[0]:,} rounds: "
                f"{format_reasons(refusals.total())}; an audit needs updates that were used"
            )
        weights, counts = self._find_weights(rows)
        if declared is None and counts is not None:
            declared = _average_by_client(rows.clients, counts, len(names))
        log = ParticipationLog.from_entries(names, rows.rounds, rows.clients, span, weights)
        return replace(
            log,
            samples=declared,
            available=available,
            selected=selected,
            reported=reported,
            complete=roster is not None or clients is not None,
            refusals=refusals,
            notes=tuple(self.notes),
        )

    def _parse_rounds(self, batch: Mapping[str, pa.Array]) -> NDArray[np.integer]:
        if self._nanoseconds is None:
            return parse_rounds(batch["round"])
        bins = np.floor_divide(self._times.parse(batch["time"]), self._nanoseconds)
        fits = len(bins) == 0 or (bins.min() >= -(2**31) and bins.max() < 2**31)
        return bins.astype(np.int32) if fits else bins

    def _collect(self, roster: ClientTable | None, clients: int | None) -> tuple[pl.Series, _Rows]:
        """Return the clients' names and all rows, whose clients are positions in the names."""
        seen = list(self._codes)
        _reject_decimals(seen)
        if self._ids_are_text:
            seen = parse_whole_numbers(pl.Series(seen, dtype=pl.String)).to_list()
        if len({type(name) for name in seen}) > 1:
            raise InvalidInputError(
                "client: ids are numbers and strings; give whole numbers only or strings only"
            )
        names = _client_names(seen, roster, clients)
        positions = _find_positions(seen, names, "--clients" if roster is None else "--roster")
        codes = _concatenate(self._clients)
        for low in range(0, len(codes), 1 << 22):  # in place: no third copy of a long log
            codes[low : low + (1 << 22)] = positions[codes[low : low + (1 << 22)]]
        return names, _Rows(
            _concatenate(self._rounds),
            codes,
            self._join_stages(),
            *(_concatenate(parts) if parts else None for parts in self._numbers.values()),
        )

    def _join_stages(self) -> NDArray[np.uint8] | None:
        """Return the stages of all rows; None: no row has one."""
        if all((part == NO_STAGE).all() for part in self._stages):
            return None
        stages = _concatenate(self._stages)
        if missing := int((stages == NO_STAGE).sum()):
            row = int((stages == NO_STAGE).argmax()) + 1
            raise InvalidInputError(
                f"stage: {missing:,} of {len(stages):,} rows have no stage, row {row:,} first; "
                f"{STAGE_HINT}, or remove the column if all rows are used"
            )
        return stages

    def _number_rounds(self, rows: _Rows, step: int | None) -> tuple[_Rows, tuple[int, int]]:
        """Number the rounds consecutively; return the rows, and the first round and the end."""
        rounds = rows.rounds
        known = np.concatenate([rounds, *self._listed]) if self._listed else rounds
        first, end = _find_span(known)
        if self._nanoseconds is not None:
            self._times.reject_dates()
            reject_gaps(known, self._nanoseconds)
            start = describe_time(first * self._nanoseconds)
            self.notes.append(
                f"rounds are {self._nanoseconds / 1e9:g} s long; the first one begins at {start}"
            )
            first, end, rounds = 0, end - first, rounds - first
        else:
            if step is None:
                reject_times(known)
                step = find_step(known)
            if step > 1:
                _reject_between(known, first, step)
                self.notes.append(
                    f"the numbers of the rounds advance by {step} from {first} on: numbered "
                    "consecutively from 0 (--round-step 1 keeps the rounds between them as empty)"
                )
                first, end, rounds = 0, (end - first - 1) // step + 1, (rounds - first) // step
            check_length(end - first, len(rounds))
        return replace(rows, rounds=rounds), (first, end)

    def _merge_repeated(self, rows: _Rows, clients: int, declared: Floats | None) -> _Rows:
        """Return one row for each client and round of the times, at the last stage."""
        keys = _sort_keys(rows, clients)
        pairs, stages = np.divmod(keys, len(STAGES))
        last = np.append(pairs[1:] != pairs[:-1], True)
        repeated = len(last) - int(last.sum())
        if not repeated:
            return rows
        self.notes.append(
            f"{repeated:,} of {len(last):,} rows repeat a client within a round and count once"
            + ("; the weights are therefore not used" if rows.weights is not None else "")
        )
        rounds, codes = np.divmod(pairs[last], clients)
        return _Rows(
            rounds,
            codes.astype(np.int32),
            None if rows.stages is None else stages[last].astype(np.uint8),
            None,
            None if declared is None else declared[codes].astype(np.float32),
        )

    def _drop_claimed(self, rows: _Rows, stages: NDArray[np.uint8]) -> _Rows:
        """Return the rows without clients that were not there: others claimed their names."""
        claimed = self._reasons.find_claimed()
        claimed = claimed[stages[claimed] == STAGES.index("available")]
        if not len(claimed):
            return rows
        there = np.ones(len(stages), dtype=np.bool_)
        there[claimed] = False
        return rows.where(there)

    def _find_weights(
        self, used: _Rows
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Return q_t^n of each used row, and the sample counts behind it; None where unknown.

        Weights are kept only if every used row has one.
        """
        weights, counts = used.weights, used.samples
        if weights is not None and self._has_all("weights", "used", weights):
            if self._weights_are_final or not _look_like_counts(used.rounds, weights):
                return weights, counts
            self.notes.append(
                "the weights are whole numbers that sum to far more than 1 in a round: read as "
                "sample counts, and divided by their sum in each round (--columns weight=NAME "
                "keeps them as they are)"
            )
            counts = weights
        if counts is None or not self._has_all("sample counts", "used as weights", counts):
            return None, counts
        return _normalise_by_round(used.rounds, counts), counts

    def _note_fractions(self, samples: NDArray[np.float32]) -> None:
        """Note sample counts that are not whole numbers: a point may separate thousands."""
        for low in range(0, len(samples), 1 << 20):  # bounds the temporaries
            part = samples[low : low + (1 << 20)]
            odd = part[np.isfinite(part) & (part != np.round(part))]
            if len(odd):
                self.notes.append(
                    f"some sample counts are not whole numbers, such as {odd[0]:g}: write counts "
                    "without a separator of thousands"
                )
                return

    def _has_all(self, what: str, how: str, numbers: NDArray[np.float32]) -> bool:
        """Return whether no number is missing; note it if only some are."""
        missing = int(np.isnan(numbers).sum())
        if 0 < missing < len(numbers):
            self.notes.append(
                f"the {what} are not {how}: {missing:,} of {len(numbers):,} used rows "
                f"{'has' if missing == 1 else 'have'} none"
            )
        return missing == 0

    def _encode(self, clients: pa.Array, first_row: int | None) -> NDArray[np.int32]:
        """Return the code of each row's client; new clients get the next codes."""
        encoded = parse_clients(clients, self._ids_are_exact, first_row)
        codes, names = parse_codes(encoded), encoded.dictionary.to_pylist()
        table = np.zeros(len(names), dtype=np.int32)
        for code in pc.unique(encoded.indices).to_pylist():  # a category may have no row
            table[code] = self._codes.setdefault(names[code], len(self._codes))
        joined: NDArray[np.int32] = table[codes]
        return joined


@dataclass(frozen=True, eq=False)
class _Rows:
    """The columns of a log: E rounds and clients, and what the log has of the others."""

    rounds: NDArray[np.integer]
    clients: NDArray[np.int32]
    stages: NDArray[np.uint8] | None
    weights: NDArray[np.float32] | None
    samples: NDArray[np.float32] | None

    def where(self, mask: NDArray[np.bool_]) -> _Rows:
        columns: dict[str, Any] = {
            name: None if column is None else column[mask] for name, column in vars(self).items()
        }
        return _Rows(**columns)


def _index_stages(
    names: pl.Series, rows: _Rows, levels: NDArray[np.uint8], span: tuple[int, int]
) -> tuple[ParticipationLog | None, ParticipationLog | None, ParticipationLog | None]:
    """Return who was available, selected and reported, as far as the log distinguishes them.

    A client may have several rows in a round, one for each stage; the last one counts.

    Args:
        names: of the clients.
        rows: of the log.
        levels: the index in STAGES of each row.
        span: of the log.
    """
    counts = np.bincount(levels, minlength=len(STAGES))
    keys = _sort_keys(rows, len(names), span[0])
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
    reported = index(STAGES.index("reported")) if counts[STAGES.index("reported")] else None
    return available, selected, reported


def _sort_keys(rows: _Rows, clients: int, first: int = 0) -> NDArray[np.int64]:
    """Return one number per row, sorted: by round, from `first` on, then client, then stage."""
    keys = rows.rounds.astype(np.int64) - first
    keys *= clients
    keys += rows.clients
    keys *= len(STAGES)
    keys += _USED if rows.stages is None else rows.stages
    keys.sort()
    return keys


def _reject_between(rounds: NDArray[np.integer], first: int, step: int) -> None:
    between = rounds[(rounds - first) % step != 0]
    if len(between):
        raise InvalidInputError(
            f"round_step: round {between[0]} is not a multiple of {step} after round {first}; "
            "give the difference between the numbers of consecutive rounds"
        )


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
    for low in range(0, len(weights), 1 << 20):  # most other weights show in the first part
        part = weights[low : low + (1 << 20)]
        if (part != np.round(part)).any():
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


def _reject_decimals(names: Sequence[int | str]) -> None:
    """Raise InvalidInputError if two ids are the same number, as in 7 and 7.0."""
    written = set(names)
    for name in names:
        if isinstance(name, str) and name.endswith(".0") and name[:-2] in written:
            raise InvalidInputError(
                f"client: the log has the clients {name[:-2]!r} and {name!r}; "
                "write the id of a client in one way"
            )


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
            f"client: {list_names(unknown)} not among the {len(names)} "
            f"client{'' if len(names) == 1 else 's'} of {option}; {hint}"
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
