"""Why clients were left out of rounds, as far as a log gives reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import printable
from fedtide.participation.log.columns import MISSING
from fedtide.participation.log.schema import REASONS

_LONGEST_REASON = 60


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


def count_refusals(rows: pl.DataFrame) -> Refusals | None:
    """Return how often each client was left out for each reason; None: the log gives none.

    In a round in which a client has several rows, its furthest stage counts; a reason does not
    count in a round in which the client was used.

    Args:
        rows: of a log: round, client (a number from 0), stage and reason.
    """
    given = rows.filter(pl.col("reason").is_not_null())
    words = given["reason"].unique()
    short = [_to_one_line(word) for word in words]
    given = given.with_columns(
        pl.col("reason").replace_strict(words, short, return_dtype=pl.String)
    ).drop_nulls("reason")
    used = rows.filter(pl.col("stage") == "used")
    given = given.join(used, on=["round", "client"], how="anti").sort("stage")
    furthest = given.unique(["round", "client"], keep="last", maintain_order=True)
    if furthest.is_empty():
        return None
    counts = furthest.group_by("client", "reason").len("n").sort("client", "reason")
    reasons = counts["reason"].unique().sort()
    codes = reasons.search_sorted(counts["reason"]).cast(pl.Int64).to_numpy()
    clients, numbers = (counts[name].cast(pl.Int64).to_numpy() for name in ("client", "n"))
    return Refusals(reasons.to_list(), clients, codes, numbers)


def format_reasons(counts: Mapping[str, int], most: int = 3) -> str:
    """Return reasons in words with their counts, such as those of `Refusals.total`.

    >>> format_reasons({"error": 12, "quota": 1})
    'its app failed (12), quota (1)'
    """
    shown = [f"{REASONS.get(reason, reason)} ({n:,})" for reason, n in counts.items()]
    others = sum(list(counts.values())[most:])
    return ", ".join(shown[:most]) + (f", other reasons ({others:,})" if others else "")


def _to_one_line(text: str) -> str | None:
    """Return text that cannot control a terminal, short enough for a table; None: none."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return None if line.lower() in MISSING else printable(line, most=_LONGEST_REASON)
