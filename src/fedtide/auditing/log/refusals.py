"""Why clients were left out of rounds, as far as a log gives reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedtide.auditing.log.values import USED, parse_reasons, to_numpy
from fedtide.participation.log.schema import CLAIMED, REASONS


@dataclass(frozen=True, eq=False)
class Refusals:
    """How often each client was left out of a round for each reason.

    Args:
        reasons: those of the log, shape (R,).
        clients: the client of each count, ascending, shape (K,).
        codes: the index in `reasons` of each count, (K,).
        counts: in how many rounds that client was left out for that reason, (K,), positive.
    """

    reasons: list[str]
    clients: NDArray[np.int64]
    codes: NDArray[np.int64]
    counts: NDArray[np.int64]

    def of_client(self, client: int) -> dict[str, int]:
        """Return in how many rounds a client was left out for each reason, the most first."""
        low, high = np.searchsorted(self.clients, [client, client + 1])
        return self._sort(self.codes[low:high], self.counts[low:high])

    def total(self) -> dict[str, int]:
        """Return the sums over all clients, the largest first."""
        sums = np.bincount(self.codes, self.counts, len(self.reasons)).astype(np.int64)
        return self._sort(np.flatnonzero(sums), sums[sums > 0])

    def count_rounds(self, clients: int) -> NDArray[np.int64]:
        """Return in how many rounds each client was left out for any reason, shape (clients,)."""
        return np.bincount(self.clients, self.counts, clients).astype(np.int64)

    def rank_clients(self) -> list[tuple[int, int]]:
        """Return each client that was left out, and of how many rounds, most often first."""
        rounds = self.count_rounds(0)
        ranks = np.argsort(-rounds, kind="stable")[: np.count_nonzero(rounds)]
        return list(zip(ranks.tolist(), rounds[ranks].tolist(), strict=True))

    def list_most_frequent(self, clients: int) -> list[str | None]:
        """Return each client's most frequent reason; None: it was never left out for one."""
        order = np.lexsort((-self.counts, self.clients))
        found, first = np.unique(self.clients[order], return_index=True)
        reasons: list[str | None] = [None] * clients
        for n, code in zip(found.tolist(), self.codes[order[first]].tolist(), strict=True):
            reasons[n] = self.reasons[code]
        return reasons

    def _sort(self, codes: NDArray[np.int64], counts: NDArray[np.int64]) -> dict[str, int]:
        order = np.argsort(-counts, kind="stable")
        return {self.reasons[codes[i]]: int(counts[i]) for i in order}


def format_reasons(counts: Mapping[str, int], most: int = 3) -> str:
    """Return reasons in words with their counts, such as those of `Refusals.total`.

    >>> format_reasons({"error": 12, "quota": 1})
    'its app failed (12), quota (1)'
    """
    shown = [f"{REASONS.get(reason, reason)} ({n:,})" for reason, n in counts.items()]
    others = sum(list(counts.values())[most:])
    return ", ".join(shown[:most]) + (f", other reasons ({others:,})" if others else "")


class ReasonColumn:
    """The reasons of a log, collected batch by batch: 12 bytes for each row that has one."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._rows: list[NDArray[np.int64]] = []
        self._reasons: list[NDArray[np.int32]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, column: pa.Array, first_row: int) -> None:
        """Add the reasons of a batch whose first row is this one of the log."""
        if column.null_count == len(column):
            return
        rows = np.flatnonzero(np.from_dlpack(column.is_valid().cast(pa.uint8())))
        encoded = parse_reasons(column.drop_null())
        table = np.array(
            [
                self._codes.setdefault(name, len(self._codes)) if name else -1
                for name in encoded.dictionary.to_pylist()
            ],
            dtype=np.int32,
        )
        codes = table[to_numpy(encoded.indices)]
        if (given := codes >= 0).any():
            self._rows.append(rows[given] + first_row)
            self._reasons.append(codes[given])

    def find_claimed(self) -> NDArray[np.int64]:
        """Return the rows whose reason is that another node claimed the client's name."""
        code = self._codes.get(CLAIMED, -2)
        found = [rows[codes == code] for rows, codes in zip(self._rows, self._reasons, strict=True)]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def count(
        self,
        rounds: NDArray[np.integer],
        clients: NDArray[np.int32],
        stages: NDArray[np.uint8],
        first: int,
    ) -> Refusals | None:
        """Return how often each client was left out for each reason; None: the log gives none.

        In a round in which a client has several rows, its furthest stage counts; a reason does not
        count in a round in which the client was used.

        Args:
            rounds: of all rows of the log, shape (E,).
            clients: of all rows, (E,).
            stages: the index in STAGES of each row's stage, (E,).
            first: the reasons of earlier rounds do not count.
        """
        if not self._rows:
            return None
        rows, codes = np.concatenate(self._rows), np.concatenate(self._reasons)
        size = int(clients.max()) + 1
        pairs = rounds.astype(np.int64) * size + clients
        left_out = ~np.isin(pairs[rows], pairs[stages == USED]) & (rounds[rows] >= first)
        rows, codes = rows[left_out], codes[left_out]
        if not len(rows):
            return None
        order = np.lexsort((stages[rows], pairs[rows]))
        rows, codes = rows[order], codes[order]
        furthest = np.append(pairs[rows][1:] != pairs[rows][:-1], True)
        found, reasons = clients[rows[furthest]].astype(np.int64), list(self._codes)
        keys, counts = np.unique(found * len(reasons) + codes[furthest], return_counts=True)
        return Refusals(reasons, *np.divmod(keys, len(reasons)), counts)
