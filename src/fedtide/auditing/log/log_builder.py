"""Collects the rows of a log batch by batch, and builds the log from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.auditing.log.client_table import (
    ClientTable,
    find_positions,
    list_clients,
    reject_decimals,
)
from fedtide.auditing.log.participation_log import (
    Floats,
    ParticipationLog,
    check_length,
    repeated_client,
)
from fedtide.auditing.log.refusals import ReasonColumn, Refusals, format_reasons
from fedtide.auditing.log.round_numbers import (
    describe_time,
    find_step,
    reject_gaps,
    reject_times,
)
from fedtide.auditing.log.stage_column import StageColumn
from fedtide.auditing.log.table_source import TableSource
from fedtide.auditing.log.times import TimeColumn
from fedtide.auditing.log.values import (
    USED,
    parse_clients,
    parse_numbers,
    parse_rounds,
    to_numpy,
)
from fedtide.auditing.log.weights import (
    average_by_client,
    check_counts,
    complete_samples,
    find_weights,
)
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.log.client_ids import parse_whole_numbers
from fedtide.participation.log.schema import STAGES


class LogBuilder:
    """The rows of a log, collected batch by batch: 8 bytes each, and 4 for each optional number.

    A row with a reason takes 12 bytes more.

    Rows of any stage count for the list of clients: one that was only available or selected belongs
    to the federation, too.

    Args:
        table: where the rows come from.
        round_seconds: the length of a round, if the log has times instead of rounds.
        stages: collects the stages.
        weights_are_final: whether a weight is q_t^n even if it looks like a sample count.
        ids_are_exact: whether client ids are taken literally, also " a " or "none".
    """

    def __init__(
        self,
        table: TableSource,
        round_seconds: float | None,
        stages: StageColumn,
        *,
        weights_are_final: bool,
        ids_are_exact: bool,
    ) -> None:
        self.notes = [*table.notes]
        self._table = table
        self._nanoseconds = None if round_seconds is None else round(round_seconds * 1e9)
        self._times = TimeColumn()
        self._weights_are_final = weights_are_final
        self._ids_are_exact = ids_are_exact
        self._codes: dict[int | str, int] = {}
        self._rounds: list[NDArray[np.integer]] = []
        self._clients: list[NDArray[np.int32]] = []
        self._stages = stages
        self._numbers: dict[str, list[NDArray[np.float32]]] = {"weight": [], "samples": []}
        self._reasons = ReasonColumn()
        self._listed: list[NDArray[np.integer]] = []
        self._size = 0

    @property
    def is_empty(self) -> bool:
        """Whether no rows have been added so far."""
        return not self._size and not any(map(len, self._listed))

    def add(self, batch: Mapping[str, pa.Array], listed: bool = False) -> None:
        """Add the columns of a batch, by our names; all batches of a log have the same columns.

        Args:
            batch: the columns.
            listed: whether the clients come from lists.
        """
        first_row = None if listed else self._size
        self._rounds.append(self._parse_rounds(batch, first_row))
        self._clients.append(self._encode(batch["client"], first_row))
        if "stage" in batch:
            self._stages.add(batch["stage"])
        for field, parts in self._numbers.items():
            if field in batch:
                parts.append(parse_numbers(field, batch[field], self._table.decimal_comma))
        if "reason" in batch:
            self._reasons.add(batch["reason"], self._size)
        self._size += len(self._rounds[-1])

    def add_rounds(self, batch: Mapping[str, pa.Array]) -> None:
        """Make the rounds of a batch part of the log, even if they have no clients."""
        self._listed.append(self._parse_rounds(batch, None))

    def build(
        self,
        roster: ClientTable | None,
        clients: int | None,
        span: tuple[int, int] | None,
        step: int | None,
        from_round: int = 0,
    ) -> ParticipationLog:
        """Return the log of the roster's clients, of 0..clients − 1, or of the clients seen.

        Args:
            roster: all clients.
            clients: N.
            span: first round and one past the last; None: from the first row to the last, at
                whatever stage.
            step: the difference between the numbers of consecutive rounds; None: see `find_step`.
            from_round: earlier rounds are left out, but not their clients.

        Raises:
            InvalidInputError: mixed ids, an unknown client, a client twice at the same stage of a
                round, times instead of rounds, no row from that round on, sample counts with a
                separator of thousands, or entries that `ParticipationLog.from_entries` refuses.
        """
        names, rows = self._collect(roster, clients)
        if span is None:
            rows, span = self._number_rounds(rows, step)
        rows, weightless = self._drop_weightless(rows)
        declared = average_by_client(rows.clients, rows.samples, len(names))
        if rows.samples is not None:
            check_counts(rows.samples, self.notes)
        refusals = self._count_refusals(rows, from_round)
        rows = self._drop_claimed(rows)
        if span[0] < from_round:
            rows, span = self._begin_at(from_round, rows, span)
        if self._nanoseconds is not None:
            rows = self._merge_repeated(rows, len(names), declared)
        available = selected = reported = None
        if rows.stages is not None and (rows.stages < USED).any():
            available, selected, reported = _index_stages(names, rows, span, self._stages.shared)
            rows = rows.where(rows.stages == USED)
        if refusals is not None and not len(rows.rounds):
            raise InvalidInputError(
                f"log: no update was used in {quantify(span[1] - span[0], 'round')}: "
                f"{format_reasons(refusals.total())}; an audit needs updates that were used"
            )
        own = None if declared is None else declared[rows.clients].astype(np.float32)
        weights, counts = find_weights(
            rows.rounds, rows.weights, rows.samples, own, self._weights_are_final, self.notes
        )
        if declared is None and counts is not None:
            declared = average_by_client(rows.clients, counts, len(names))
        if roster is not None:
            self.notes.extend(roster.notes)
            declared = complete_samples(declared, roster.samples, self.notes)
        log = ParticipationLog.from_entries(names, rows.rounds, rows.clients, span, weights)
        return replace(
            log,
            samples=declared,
            available=available,
            selected=selected,
            reported=reported,
            complete=roster is not None or clients is not None,
            refusals=refusals,
            weightless=weightless,
            notes=tuple(self.notes),
        )

    def _parse_rounds(
        self, batch: Mapping[str, pa.Array], first_row: int | None
    ) -> NDArray[np.integer]:
        if self._nanoseconds is None:
            return parse_rounds(batch["round"], first_row)
        bins = np.floor_divide(self._times.parse(batch["time"], first_row), self._nanoseconds)
        fits = len(bins) == 0 or (bins.min() >= -(2**31) and bins.max() < 2**31)
        return bins.astype(np.int32) if fits else bins

    def _collect(self, roster: ClientTable | None, clients: int | None) -> tuple[pl.Series, _Rows]:
        """Return the clients' names and all rows, whose clients are positions in the names."""
        seen = list(self._codes)
        reject_decimals(seen)
        if self._table.ids_are_text:
            seen = parse_whole_numbers(pl.Series(seen, dtype=pl.String)).to_list()
        if len({type(name) for name in seen}) > 1:
            raise InvalidInputError(
                "client: ids are numbers and strings; give whole numbers only or strings only"
            )
        names = list_clients(seen, roster, clients)
        positions = find_positions(seen, names, of_roster=roster is not None)
        if clients is not None and roster is None and seen and 0 not in seen and 1 in seen:
            self.notes.append(
                f"the ids are taken to be 0 to {clients - 1}, of which 0 never occurs; if they "
                "count from 1, give them with roster= or --roster"
            )
        codes = _concatenate(self._clients)
        for low in range(0, len(codes), 1 << 22):  # in place: no third copy of a long log
            codes[low : low + (1 << 22)] = positions[codes[low : low + (1 << 22)]]
        return names, _Rows(
            _concatenate(self._rounds),
            codes,
            self._stages.join(),
            *(_concatenate(parts) if parts else None for parts in self._numbers.values()),
        )

    def _number_rounds(self, rows: _Rows, step: int | None) -> tuple[_Rows, tuple[int, int]]:
        """Number the rounds consecutively; return the rows, and the first round and the end."""
        known = np.concatenate([rows.rounds, *self._listed]) if self._listed else rows.rounds
        first, last = int(known.min()), int(known.max())
        if self._nanoseconds is not None:
            self._check_times(known, first)
            step = 1
        else:
            if step is None:
                reject_times(known)
                step = find_step(known)
            check_length((last - first) // step + 1)
            if step == 1:
                return rows, (first, last + 1)
            _reject_between(known, first, step)
            self.notes.append(
                f"the numbers of the rounds advance by {step} from {first} on: numbered "
                "consecutively from 0; round_step=1 or --round-step 1 keeps those between as empty "
                "rounds"
            )
        numbers = rows.rounds - first
        numbers //= step
        return replace(rows, rounds=numbers), (0, (last - first) // step + 1)

    def _check_times(self, known: NDArray[np.integer], first: int) -> None:
        """Refuse values that are no times; note how long rounds are, and when the first begins."""
        assert self._nanoseconds is not None
        self._times.reject_dates()
        reject_gaps(known, self._nanoseconds)
        start, seconds = describe_time(first * self._nanoseconds), self._nanoseconds / 1e9
        self.notes.append(f"rounds are {seconds:g} s long; the first one begins at {start}")
        if (step := find_step(known)) > 1:
            self.notes.append(
                f"rows are {step} rounds apart or a multiple of that: rounds of "
                f"{step * seconds:g} s would have no empty ones between them"
            )

    def _begin_at(
        self, first: int, rows: _Rows, span: tuple[int, int]
    ) -> tuple[_Rows, tuple[int, int]]:
        """Leave out the rounds before this one."""
        later = rows.where(rows.rounds >= first)
        if not len(later.rounds):
            raise InvalidInputError(
                f"from_round: no row is of round {first} or later; the last round of the "
                f"log is {span[1] - 1}"
            )
        self.notes.append(f"the rounds before round {first} are left out")
        return later, (first, span[1])

    def _merge_repeated(self, rows: _Rows, clients: int, declared: Floats | None) -> _Rows:
        """Return one row for each client and round, at the last stage, of a log with times."""
        pairs, stages, last = _sort_rows(rows, clients)
        repeated = len(last) - int(last.sum())
        if not repeated:
            return rows
        self.notes.append(
            f"{repeated:,} of {len(last):,} rows {'repeats' if repeated == 1 else 'repeat'} a "
            "client within a round, which counts once"
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

    def _drop_weightless(self, rows: _Rows) -> tuple[_Rows, int]:
        """Return the rows without those of weight 0, which move no model, and how many these were.

        Tables with a row for every client in each round mark absent clients like this. Stages show
        them anyway, and a client that reported with weight 0 was not lost.
        """
        noun, weights = "weight", rows.weights
        if weights is None or np.isnan(weights).all():
            noun, weights = "sample count", rows.samples
        if weights is None or rows.stages is not None:
            return rows, 0
        weightless = weights == 0
        count = int(weightless.sum())
        if count in (0, len(weights)):
            return rows, 0
        self.notes.append(
            f"{count:,} of {len(weights):,} used rows {'has' if count == 1 else 'have'} the {noun} "
            "0, which does not count as participation"
        )
        return rows.where(~weightless), count

    def _count_refusals(self, rows: _Rows, first: int) -> Refusals | None:
        """Return how often clients were left out from round `first` on, and why; None: unknown."""
        if rows.stages is not None:
            return self._reasons.count(rows.rounds, rows.clients, rows.stages, first)
        if self._reasons:
            self.notes.append("the reasons are not used: without stages, every row was used")
        return None

    def _drop_claimed(self, rows: _Rows) -> _Rows:
        """Return the rows without those of nodes that claimed the name of an absent client."""
        if rows.stages is None:
            return rows
        claimed = self._reasons.find_claimed()
        claimed = claimed[rows.stages[claimed] == STAGES.index("available")]
        if not len(claimed):
            return rows
        there = np.ones(len(rows.stages), dtype=np.bool_)
        there[claimed] = False
        return rows.where(there)

    def _encode(self, clients: pa.Array, first_row: int | None) -> NDArray[np.int32]:
        """Return the code of each row's client; new clients get the next codes."""
        encoded = parse_clients(clients, self._ids_are_exact, first_row)
        codes, names = to_numpy(encoded.indices), encoded.dictionary.to_pylist()
        table = np.zeros(len(names), dtype=np.int32)
        for code in pc.unique(encoded.indices).to_pylist():  # a category may have no row
            table[code] = self._codes.setdefault(names[code], len(self._codes))
        joined: NDArray[np.int32] = table[codes]
        return joined


@dataclass(frozen=True, eq=False)
class _Rows:
    """The columns of a log: E rounds and clients, and those of the others that the log has."""

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
    names: pl.Series, rows: _Rows, span: tuple[int, int], shared: set[int]
) -> tuple[ParticipationLog | None, ParticipationLog | None, ParticipationLog | None]:
    """Return who was available, selected and reported, as far as the log distinguishes them.

    A client may have several rows in a round, one for each stage, and several for the stages that
    are `shared` by several values of the log; the last one counts.
    """
    pairs, stages, last = _sort_rows(rows, len(names), span[0])
    repeated = np.flatnonzero(~last[:-1] & (stages[1:] == stages[:-1]))
    repeated = repeated[~np.isin(stages[repeated], [*shared])]
    rounds, clients = np.divmod(pairs, len(names))
    if len(repeated):
        n, t = int(clients[repeated[0]]), span[0] + int(rounds[repeated[0]])
        raise repeated_client(names[n], t)

    def index(lowest: int) -> ParticipationLog:
        kept = last & (stages >= lowest)
        entries = (rounds[kept] + span[0], clients[kept].astype(np.int32))
        return ParticipationLog.from_entries(names, *entries, span)

    is_available, is_selected, is_reported = (bool((stages == s).any()) for s in range(USED))
    return (
        index(STAGES.index("available")) if is_available else None,
        index(STAGES.index("selected")) if is_selected or is_reported else None,
        index(STAGES.index("reported")) if is_reported else None,
    )


def _sort_rows(
    rows: _Rows, clients: int, first: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the rows sorted by round, client and stage.

    Args:
        rows: in any order.
        clients: N.
        first: the first round.

    Returns:
        (t - first) N + n and the stage of each row, and whether it is the last one of client n in
        round t, shape (E,).
    """
    keys = rows.rounds.astype(np.int64) - first
    keys *= clients
    keys += rows.clients
    keys *= len(STAGES)
    keys += USED if rows.stages is None else rows.stages
    keys.sort()
    pairs, stages = np.divmod(keys, len(STAGES))
    return pairs, stages, np.append(pairs[1:] != pairs[:-1], True)


def _reject_between(rounds: NDArray[np.integer], first: int, step: int) -> None:
    between = rounds[(rounds - first) % step != 0]
    if len(between):
        raise InvalidInputError(
            f"round_step: round {between[0]} is not a multiple of {step} after round {first}; "
            "give the difference between the numbers of consecutive rounds"
        )


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
