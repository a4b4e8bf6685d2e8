"""Ledgers of invented federations, and what plain loops over their rows say."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from fedtide.participation.log.ledger import Entry, Ledger

BEGIN, SECONDS = 1_800_000_000.0, 30.0


class Row(NamedTuple):
    """A row of the table `participation`."""

    round: int
    client: str
    stage: str
    weight: float | None
    time: float
    asked: int | None
    reason: str | None


def end_of(t: int) -> float:
    return BEGIN + SECONDS * (t + 1)


def used(t: int, *clients: str) -> list[Entry]:
    """Return the entries of a round in which these clients took part."""
    return [Entry(name, "used", 1 / len(clients), end_of(t) - 1) for name in clients]


def write(url: str, rounds: Iterable[list[Entry]], federation: str = "north") -> None:
    """Append rounds to a ledger."""
    ledger = Ledger(url, federation)
    for t, entries in enumerate(rounds, ledger.ended):
        ledger.commit(t, entries, end_of(t))
    ledger.close()


def draw_rounds(clients: int, rounds: int, seed: int = 0, first: int = 0) -> list[list[Entry]]:
    """Return rounds with every stage, late replies and some reasons; one of them is empty."""
    draws = np.random.default_rng(seed)
    rates = np.linspace(0.2, 0.9, clients)
    found = []
    for t in range(first, first + rounds):
        there = np.flatnonzero(draws.random(clients) < rates) if t != first + 3 else []
        fates = draws.choice(["used", "refused", "late", "silent", "spared"], len(there))
        share = 1 / max(1, int(np.isin(fates, ["used", "late"]).sum()))
        found.append([_entry(t, f"site-{n}", f, share) for n, f in zip(there, fates, strict=True)])
    return found


def _entry(t: int, name: str, fate: str, share: float) -> Entry:
    now = end_of(t) - 2
    if fate == "refused":
        return Entry(name, "reported", None, now, None, "not finite" if t % 2 else "malformed")
    if fate == "silent":
        return Entry(name, "selected", None, now, None, "no reply")
    if fate == "spared":
        return Entry(name, "available", None, now)
    return Entry(name, "used", share, now, max(0, t - 3) if fate == "late" and t else None)


def read_rows(url: str) -> list[Row]:
    """Return all rows of a ledger."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        query = "SELECT round, client, stage, weight, time, asked, reason FROM participation"
        return [Row(*row) for row in connection.execute(query + " ORDER BY round, client")]


def influences(rows: list[Row], names: list[str]) -> np.ndarray:
    """Return each client's share of the participation weights."""
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.stage == "used":
            sums[row.client] += row.weight or 0.0
    return np.array([sums[name] for name in names]) / sum(sums.values())


def find_gone(seen: dict[str, list[int]], now: int) -> dict[str, bool]:
    """Return whether each client is gone by round `now`, given the rounds in which it was seen.

    The rule, in words: it has been silent for more than twice as long as ever before, and as the
    longest silence of half of the clients that were silent and came back; if it was never silent
    before, for more than twice as long as any client that came back. And if its rounds were drawn
    at random from all since the first, such a silence had a chance of at most 0.001 / N.
    """
    longest = {
        name: max((later - earlier - 1 for earlier, later in pairwise(rounds)), default=0)
        for name, rounds in seen.items()
    }
    ended = [silence for silence in longest.values() if silence] or [0]
    found = {}
    for name, rounds in seen.items():
        first, last, silence = rounds[0], rounds[-1], now - rounds[-1]
        random = ((last - first) / max(now - first, 1)) ** (len(rounds) - 1)
        usual = max(longest[name], median(ended)) if longest[name] else max(ended)
        unusual = silence > 2 * usual
        found[name] = unusual and len(rounds) > 1 and len(seen) * random <= 0.001
    return found


def count_reasons(rows: list[Row]) -> Counter[str]:
    return Counter(row.reason for row in rows if row.reason)


def look_often(monkeypatch) -> None:
    """Let monitors look into their ledgers all the time."""
    monkeypatch.setattr("fedtide.monitoring.monitor._POLL", 0.02)
    monkeypatch.setattr("fedtide.monitoring.monitor._SHARE", 1.0)
