"""Maintenance of ledgers: checks, migration of older tables, and removal of old rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sqlalchemy as sql

from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger_tables import (
    PARTICIPATION,
    READABLE,
    ROUNDS,
    SCHEMA,
    VERSION,
    check_version,
    find_federation,
    lock_tables,
    open_for_changes,
    open_ledger,
    read_versions,
)
from fedtide.participation.log.schema import REASONS, STAGES

LEAST_KEPT = 2
"""The smallest number of rounds to keep: an audit needs two, and a resumed training may, too."""

_MIGRATIONS = {1: "ALTER TABLE participation ADD COLUMN reason VARCHAR(20)"}
"""The SQL that turns tables of a version into those of the next one."""

_TOLERANCE = 1e-6
"""By how much the sum of a round's weights may differ from 1."""

_NAMED = 3
"""The largest number of rounds named in a sentence."""

_DELETED_ROWS = 10_000
"""The number of rows deleted per transaction: few, so that a federation need not wait long."""

_PAUSE = 0.12
"""Seconds between two transactions: a process waiting for an SQLite file retries every 0.1 s."""

_WRONG: dict[str, Callable[[Any], bool]] = {
    "weights are negative": lambda row: (row.least or 0) < 0,
    "used clients have no weight": lambda row: row.weighted < row.used,
    "the weights of used clients do not sum to 1": lambda row: (
        row.used == row.weighted > 0 and not abs(row.total - 1) <= _TOLERANCE
    ),
    "clients appear more than once": lambda row: row.clients < row.size,
    "stages are unknown": lambda row: row.stages,
    "reasons are unknown": lambda row: row.reasons,
    "used clients have a reason for being left out": lambda row: row.contradictions,
    "replies answer a request (`asked`) that is not of an earlier round": lambda row: row.requests,
}
"""What may be wrong with the rows of a round, and how `_sum_up_rounds` shows it."""


@dataclass(frozen=True)
class LedgerCheck:
    """What a check found in the ledger of one federation.

    Args:
        federation: its name.
        version: of the tables.
        first: its first round; None: it has no round.
        last: its last round.
        rounds: how many rounds have ended.
        rows: in the participation log.
        faults: the errors found, one sentence each.
    """

    federation: str
    version: int
    first: int | None
    last: int | None
    rounds: int
    rows: int
    faults: list[str]


@dataclass(frozen=True)
class Pruning:
    """Which rounds of a ledger are removed.

    Args:
        federation: its name.
        first: its first round.
        rounds: how many rounds are removed.
        rows: how many rows of the participation log are removed with them.
        kept: how many rounds are kept.
        first_kept: the first of them.
        last_kept: the last of them.
    """

    federation: str
    first: int
    rounds: int
    rows: int
    kept: int
    first_kept: int
    last_kept: int


def check_ledger(url: str) -> list[LedgerCheck]:
    """Check the ledger of a federation, or of all federations in a database.

    Args:
        url: of the database; # and the name of a federation checks that one only.

    Raises:
        InvalidInputError: a database that is damaged, cannot be read or holds no ledger; an unknown
            federation.
    """
    with open_ledger(url) as (connection, version, federation):
        if federation:
            names = [find_federation(connection, federation)]
        else:
            owners = (sql.select(table.c.federation) for table in (ROUNDS, PARTICIPATION))
            names = sorted(connection.scalars(sql.union(*owners)))
        if connection.dialect.name == "sqlite":
            first = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
            if first != "ok":
                raise InvalidInputError(f"ledger: the file is damaged ({first}); restore a backup")
        return [_check_federation(connection, version, name) for name in names]


def migrate_ledger(url: str) -> int:
    """Bring the tables of a database to the current version, in one transaction.

    Args:
        url: of the database; the name of a federation after # is ignored.

    Returns:
        The version that they had; VERSION: nothing was changed.

    Raises:
        InvalidInputError: a database that cannot be written or holds no ledger, or one of a newer
            version.
    """
    with open_for_changes(url) as engine, engine.begin() as connection:
        lock_tables(connection)
        former = check_version(engine, read_versions(connection), READABLE)
        for version in range(former, VERSION):
            connection.execute(sql.text(_MIGRATIONS[version]))
        connection.execute(SCHEMA.update().values(version=VERSION))
    return former


def plan_pruning(url: str, keep: int) -> Pruning:
    """Return what `prune_ledger` would remove.

    Args:
        url: as in `read_ledger`.
        keep: how many rounds to keep, the last ones.

    Raises:
        InvalidInputError: fewer than LEAST_KEPT rounds to keep, or as in `read_ledger`.
    """
    if keep < LEAST_KEPT:
        raise InvalidInputError(
            f"keep: {keep} is too few; keep at least {LEAST_KEPT}: an audit needs them, and so may "
            "a resumed training"
        )
    with open_ledger(url) as (connection, _, federation):
        federation = find_federation(connection, federation)
        rounds = _read_rounds(connection, federation)
        if not rounds:
            raise InvalidInputError("ledger: it has no rounds; nothing can be removed")
        kept = rounds[-keep:]
        old = (PARTICIPATION.c.federation == federation) & (PARTICIPATION.c.round < kept[0])
        rows = connection.scalar(sql.select(sql.func.count()).where(old)) or 0
    removed = len(rounds) - len(kept)
    return Pruning(federation, rounds[0], removed, rows, len(kept), kept[0], kept[-1])


def prune_ledger(url: str, pruning: Pruning) -> Iterator[int]:
    """Remove the rounds before the first one that is kept, the oldest first.

    The federation may continue meanwhile: rounds are removed together with their rows in short
    transactions, so the ledger is valid at any time.

    Args:
        url: as in `read_ledger`.
        pruning: what `plan_pruning` returned.

    Yields:
        How many rounds have been removed so far.

    Raises:
        InvalidInputError: the database fails.
    """
    done, step = 0, max(1, _DELETED_ROWS * pruning.rounds // max(1, pruning.rows))
    with open_for_changes(url) as engine:
        for low in range(pruning.first, pruning.first_kept, step):
            if done:
                time.sleep(_PAUSE)
            end = min(low + step, pruning.first_kept)
            with engine.begin() as connection:
                for table in (PARTICIPATION, ROUNDS):
                    old = (table.c.federation == pruning.federation) & (table.c.round < end)
                    removed = connection.execute(sql.delete(table).where(old)).rowcount
            done += removed
            yield done


def _check_federation(connection: sql.Connection, version: int, name: str) -> LedgerCheck:
    ended, rows = _read_rounds(connection, name), _sum_up_rounds(connection, version, name)
    faults = [*_find_gaps(ended)]
    wrong = {
        text: [row.round for row in rows if is_wrong(row)] for text, is_wrong in _WRONG.items()
    }
    wrong["clients have rows, and `rounds` no end"] = sorted({r.round for r in rows} - {*ended})
    faults += [f"{text} in {_name_rounds(rounds)}" for text, rounds in wrong.items() if rounds]
    count = sum(row.size for row in rows)
    first, last = (ended[0], ended[-1]) if ended else (None, None)
    return LedgerCheck(name, version, first, last, len(ended), count, faults)


def _read_rounds(connection: sql.Connection, name: str) -> Sequence[int]:
    """Return the rounds of a federation that have ended, ascending."""
    query = sql.select(ROUNDS.c.round).where(ROUNDS.c.federation == name)
    return connection.scalars(query.order_by(ROUNDS.c.round)).all()


def _sum_up_rounds(connection: sql.Connection, version: int, name: str) -> Sequence[sql.Row[Any]]:
    """Return what `_WRONG` needs to know about the rows of each round."""
    columns = PARTICIPATION.c
    reason = sql.null() if version == 1 else columns.reason
    is_used = columns.stage == "used"
    weight = sql.case((is_used, columns.weight))
    counts = {
        "used": is_used,
        "stages": columns.stage.not_in(STAGES),
        "reasons": reason.not_in([*REASONS]),
        "contradictions": is_used & reason.is_not(None),
        "requests": (columns.asked >= columns.round) | (columns.asked < 0),
    }
    query = sql.select(
        columns.round,
        sql.func.count().label("size"),
        sql.func.count(columns.client.distinct()).label("clients"),
        sql.func.count(weight).label("weighted"),
        sql.func.sum(weight).label("total"),
        sql.func.min(columns.weight).label("least"),
        *(sql.func.count(sql.case((what, 1))).label(label) for label, what in counts.items()),
    )
    query = query.where(columns.federation == name).group_by(columns.round)
    return connection.execute(query.order_by(columns.round)).all()


def _find_gaps(ended: Sequence[int]) -> Iterator[str]:
    """Describe rounds that are missing or repeated among those that have ended, ascending."""
    missing = [t for a, b in pairwise(ended) if b > a + 1 for t in range(a + 1, b)]
    if missing:
        yield (
            f"between round {ended[0]} and round {ended[-1]} the ledger lacks "
            f"{_name_rounds(missing)}, which an audit counts as rounds without clients"
        )
    if repeated := [a for a, b in pairwise(ended) if a == b]:
        yield f"the tables have lost their keys: there are several of {_name_rounds(repeated)}"


def _name_rounds(rounds: Sequence[int]) -> str:
    others = len(rounds) - _NAMED
    listed = ", ".join(map(str, rounds[:_NAMED])) + (f" and {others:,} more" if others > 0 else "")
    return f"round {listed}" if len(rounds) == 1 else f"rounds {listed}"
