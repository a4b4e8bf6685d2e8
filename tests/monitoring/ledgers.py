"""Ledgers of invented federations, and what plain loops over their rows say."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from math import ceil, log, log2
from typing import NamedTuple

import numpy as np

from fedtide.flower.ledger.ledger import Entry, Ledger

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


def used(t: int, *clients: str, **facts: float) -> list[Entry]:
    """Return the entries of a round in which these clients took part."""
    return [Entry(name, "used", 1 / len(clients), end_of(t) - 1, **facts) for name in clients]


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


def find_gone(seen: dict[str, list[int]], now: int, window: int = 100) -> dict[str, bool]:
    """Return whether each client is gone after round `now`, given the rounds in which it was seen.

    The rule, in words: its silence is so long that, if its rounds were exchangeable, it had a
    chance below 0.001 / N; its score, the logarithm of that chance, is more than twice as high as
    those of its own silences that ended since round 2^(e-1), where 2^e <= now < 2^(e+1), and of
    those of 95% of the clients; it is more than twice as long as 95% of the clients took to appear,
    of whom those count that did in the last three quarters of the rounds; all of that for at most
    as many rounds as the window has; and of the others that were seen within twice its length,
    fewer than two in five have been silent for half as long.
    """
    names = list(seen)
    begin = min(rounds[0] for rounds in seen.values())
    waits = [rounds[0] - begin for rounds in seen.values()]
    appeared = _most([wait if wait >= (now - begin) / 4 else 0 for wait in waits])
    lately = 2 ** (int(log2(now)) - 1) if now else 0
    peaks = {}
    for name, rounds in seen.items():
        returns = [i for i in range(2, len(rounds)) if rounds[i] - rounds[i - 1] > 1]
        recent = [i for i in returns if rounds[i] >= lately]
        peaks[name] = max((_score(rounds[:i], rounds[i] - 1) for i in recent), default=0.0)
    shared = _most(list(peaks.values()))

    def is_unusual(name: str, t: int) -> bool:
        limit = max(log(len(names) / 0.001), 2 * peaks[name], 2 * shared)
        return _score(seen[name], t) > limit and t - seen[name][-1] > 2 * appeared

    def is_common(name: str) -> bool:
        silence = now - seen[name][-1]
        ends = [rounds[-1] for other, rounds in seen.items() if other != name]
        near = [end for end in ends if now - end <= 2 * silence]
        quiet = [end for end in near if now - end >= silence / 2]
        return len(quiet) >= 0.4 * len(near)

    return {
        name: is_unusual(name, now) and not is_unusual(name, now - window) and not is_common(name)
        for name in names
    }


def _score(rounds: list[int], t: int) -> float:
    """Return minus the logarithm of the chance that all returns fell before the last silence."""
    returns = len(rounds) - 1
    if returns == 0 or t <= rounds[-1]:
        return 0.0
    return returns * log((t - rounds[0]) / (rounds[-1] - rounds[0]))


def _most(values: list[float]) -> float:
    """Return the least value that at least 95% of the others do not exceed."""
    return sorted(values)[ceil(0.95 * (len(values) - 1))]


def count_reasons(rows: list[Row]) -> Counter[str]:
    return Counter(row.reason for row in rows if row.reason)


def look_often(monkeypatch) -> None:
    """Let monitors look into their ledgers all the time."""
    monkeypatch.setattr("fedtide.monitoring.monitor._POLL", 0.02)
    monkeypatch.setattr("fedtide.monitoring.monitor._SHARE", 1.0)
