"""Maintenance of ledgers: checks, migration of older tables, and removal of old rounds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
"""The largest number of rounds or clients named in a sentence."""

_STORAGE: dict[type[Any], tuple[tuple[str, ...], str]] = {
    sql.BigInteger: (("integer",), "a whole number"),
    sql.Double: (("integer", "real"), "a number"),
    sql.String: (("text",), "text"),
}
"""How SQLite stores the values of columns of these types, and what messages call them."""

_DELETED_ROWS = 10_000
"""The number of rows deleted per transaction: few, so that a federation need not wait long."""

_PAUSE = 0.12
"""Seconds between two transactions: a process waiting for an SQLite file retries every 0.1 s."""


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
        rounds: how many rounds are removed.
        rows: how many rows of the participation log are removed with them.
        kept: how many rounds are kept.
        first_kept: the first of them.
        last_kept: the last of them.
    """

    federation: str
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
        _reject_damage(connection)
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
        own = ROUNDS.c.federation == federation
        query = sql.select(ROUNDS.c.round).where(own).order_by(ROUNDS.c.round)
        rounds = connection.scalars(query).all()
        if not rounds:
            raise InvalidInputError("ledger: it has no rounds; nothing can be removed")
        kept = rounds[-keep:]
        old = (PARTICIPATION.c.federation == federation) & (PARTICIPATION.c.round < kept[0])
        rows = connection.scalar(sql.select(sql.func.count()).where(old)) or 0
    return Pruning(federation, len(rounds) - len(kept), rows, len(kept), kept[0], kept[-1])


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
    done = 0
    with open_for_changes(url) as engine:
        for low, high, rounds in _split(engine, pruning):
            if done:
                time.sleep(_PAUSE)
            with engine.begin() as connection:
                for table in (PARTICIPATION, ROUNDS):
                    old = table.c.federation == pruning.federation
                    old &= table.c.round.between(low, high)
                    connection.execute(sql.delete(table).where(old))
            done += rounds
            yield done


def _check_federation(connection: sql.Connection, version: int, name: str) -> LedgerCheck:
    query = sql.select(ROUNDS.c.round).where(ROUNDS.c.federation == name)
    ended = [t for t in connection.scalars(query.order_by(ROUNDS.c.round)) if isinstance(t, int)]
    found = _sum_up_rounds(connection, name)
    rows = [row for row in found if isinstance(row.round, int)]
    faults = [
        *_find_wrong_types(connection, version, name),
        *_find_negative(ended),
        *_find_gaps(ended),
        *_find_unended(ended, rows),
        *_find_wrong_weights(rows),
        *_find_unknown_words(connection, version, name),
        *_find_repeated_clients(connection, name),
        *_find_impossible_requests(connection, name),
    ]
    count = sum(row.size for row in found)
    first, last = (ended[0], ended[-1]) if ended else (None, None)
    return LedgerCheck(name, version, first, last, len(ended), count, faults)


def _find_wrong_types(connection: sql.Connection, version: int, name: str) -> Iterator[str]:
    """Describe values whose type is not their column's; SQLite stores any value anywhere."""
    if connection.dialect.name != "sqlite":
        return
    for column in [*ROUNDS.columns, *PARTICIPATION.columns]:
        if column.name == "federation" or (column.name == "reason" and version == 1):
            continue
        storage, what = _STORAGE[type(column.type)]
        wrong = sql.func.typeof(column).not_in((*storage, "null"))
        own = column.table.c.federation == name
        t = column.table.c.round
        rounds = connection.scalars(sql.select(t).where(own & wrong).distinct().order_by(t)).all()
        if rounds:
            yield (
                f"the column {column.name!r} of `{column.table.name}` does not hold {what} in "
                f"round {_list([str(t) for t in rounds])}"
            )


def _find_negative(ended: Sequence[int]) -> Iterator[str]:
    if negative := [str(t) for t in ended if t < 0]:
        yield f"rounds are below 0: {_list(negative)}"


def _sum_up_rounds(connection: sql.Connection, name: str) -> Sequence[sql.Row[tuple[int, ...]]]:
    """Return round, size, used, weighted, total and least of each round's rows.

    `total` is the sum of the weights of used clients, `least` the smallest weight.
    """
    columns = PARTICIPATION.c
    used = sql.case((columns.stage == "used", 1))
    weight = sql.case((columns.stage == "used", columns.weight))
    query = sql.select(
        columns.round,
        sql.func.count().label("size"),
        sql.func.count(used).label("used"),
        sql.func.count(weight).label("weighted"),
        sql.func.sum(weight).label("total"),
        sql.func.min(columns.weight).label("least"),
    )
    query = query.where(columns.federation == name).group_by(columns.round)
    return connection.execute(query.order_by(columns.round)).all()


def _find_gaps(ended: Sequence[int]) -> Iterator[str]:
    """Describe rounds that are missing or repeated among those that have ended, ascending."""
    gaps = [(a + 1, b - 1) for a, b in pairwise(ended) if b > a + 1]
    if gaps:
        missing = sum(high - low + 1 for low, high in gaps)
        texts = [str(low) if low == high else f"{low} to {high}" for low, high in gaps]
        yield (
            f"{_rounds_are(missing)} missing between round {ended[0]} and round {ended[-1]}: "
            f"{_list(texts)}; an audit counts them as rounds without clients"
        )
    if repeated := [str(a) for a, b in pairwise(ended) if a == b]:
        yield f"rounds appear more than once: {_list(repeated)}; the tables have lost their keys"


def _find_unended(ended: Sequence[int], rows: Sequence[sql.Row[tuple[int, ...]]]) -> Iterator[str]:
    known = set(ended)
    if unended := [str(row.round) for row in rows if row.round not in known]:
        yield (
            f"{_rounds_are(len(unended))} without an end: {_list(unended)}; their rows are in "
            "`participation`, and `rounds` does not have them"
        )


def _find_wrong_weights(rows: Sequence[sql.Row[tuple[int, ...]]]) -> Iterator[str]:
    negative = [str(row.round) for row in rows if isinstance(row.least, float) and row.least < 0]
    if negative:
        yield f"weights are negative in round {_list(negative)}"
    lacking = [str(row.round) for row in rows if row.weighted < row.used]
    if lacking:
        yield f"used clients have no weight in round {_list(lacking)}"
    wrong = [
        f"{row.round} ({row.total:.6g})"
        for row in rows
        if row.used and row.weighted == row.used and not abs(row.total - 1) <= _TOLERANCE
    ]
    if wrong:
        yield f"the weights of used clients do not sum to 1 in round {_list(wrong)}"


def _find_unknown_words(connection: sql.Connection, version: int, name: str) -> Iterator[str]:
    """Describe unknown stages and reasons, and used clients with a reason for not being used."""
    columns = PARTICIPATION.c
    reason = sql.null() if version == 1 else columns.reason
    query = sql.select(columns.stage, reason.label("reason"), sql.func.count().label("size"))
    query = query.where(columns.federation == name)
    groups = [columns.stage] if version == 1 else [columns.stage, columns.reason]
    found = connection.execute(query.group_by(*groups)).all()
    for row in found:
        have = "1 row has" if row.size == 1 else f"{row.size:,} rows have"
        if row.stage not in STAGES:
            yield f"{have} the unknown stage {row.stage!r}"
        if row.reason is not None and row.reason not in REASONS:
            yield f"{have} the unknown reason {row.reason!r}"
        if row.reason is not None and row.stage == "used":
            yield f"{have} the stage 'used' and yet a reason for being left out, {row.reason!r}"


def _find_repeated_clients(connection: sql.Connection, name: str) -> Iterator[str]:
    columns = PARTICIPATION.c
    query = _select_clients(name).group_by(columns.round, columns.client)
    if found := _name_clients(connection, query.having(sql.func.count() > 1)):
        yield f"clients appear more than once in a round: {_list(found)}"


def _find_impossible_requests(connection: sql.Connection, name: str) -> Iterator[str]:
    columns = PARTICIPATION.c
    impossible = (columns.asked >= columns.round) | (columns.asked < 0)
    if found := _name_clients(connection, _select_clients(name).where(impossible)):
        yield f"replies answer a request (`asked`) that is not of an earlier round: {_list(found)}"


def _select_clients(name: str) -> sql.Select[tuple[int, str]]:
    columns = PARTICIPATION.c
    query = sql.select(columns.round, columns.client).where(columns.federation == name)
    return query.order_by(columns.round, columns.client)


def _name_clients(connection: sql.Connection, query: sql.Select[tuple[int, str]]) -> list[str]:
    return [f"{row.client!r} in round {row.round}" for row in connection.execute(query)]


def _reject_damage(connection: sql.Connection) -> None:
    """Raise InvalidInputError for an SQLite file whose pages or indices are damaged."""
    if connection.dialect.name != "sqlite":
        return
    first = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if first != "ok":
        raise InvalidInputError(f"ledger: the file is damaged ({first}); restore a backup")


def _split(engine: sql.Engine, pruning: Pruning) -> list[tuple[int, int, int]]:
    """Return ranges of rounds that hold few rows each: the first, the last, and their number."""
    with engine.connect() as connection:
        sizes = {row.round: row.size for row in _sum_up_rounds(connection, pruning.federation)}
        own = ROUNDS.c.federation == pruning.federation
        query = sql.select(ROUNDS.c.round).where(own & (ROUNDS.c.round < pruning.first_kept))
        old = list(connection.scalars(query.order_by(ROUNDS.c.round)))
    ranges: list[tuple[int, int, int]] = []
    low = rows = count = 0
    for t in old:
        rows, count = rows + sizes.get(t, 0), count + 1
        if rows >= _DELETED_ROWS or t == old[-1]:
            ranges.append((low, t, count))
            low, rows, count = t + 1, 0, 0
    return ranges


def _rounds_are(count: int) -> str:
    return f"{count:,} round is" if count == 1 else f"{count:,} rounds are"


def _list(texts: Sequence[str]) -> str:
    others = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {others:,} more" if others > 0 else "")
