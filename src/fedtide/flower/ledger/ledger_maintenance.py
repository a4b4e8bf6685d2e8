"""Maintenance of ledgers: checks, migration, removal of rounds, and clients in quarantine."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sql

from fedtide.errors import InvalidInputError, did_you_mean, quantify
from fedtide.flower.ledger.ledger_tables import (
    METRICS,
    PARTICIPATION,
    QUARANTINE,
    READABLE,
    ROUNDS,
    SCHEMA,
    TABLES,
    VERSION,
    check_version,
    find_federation,
    lock_tables,
    open_existing,
    open_ledger,
)

_MIGRATIONS = {
    1: ["ALTER TABLE participation ADD COLUMN reason VARCHAR(20)"],
    2: [
        "ALTER TABLE participation ADD COLUMN step_weight DOUBLE PRECISION",
        "ALTER TABLE participation ADD COLUMN norm DOUBLE PRECISION",
    ],
}
"""The SQL that turns tables of a version into those of the next one, but for new tables."""

_TOLERANCE = 1e-6
"""By how much the sum of a round's weights may differ from 1."""


@dataclass(frozen=True)
class LedgerCheck:
    """What a check found in the ledger of one federation.

    Args:
        federation: its name.
        version: of the tables.
        rounds: those that have ended, ascending.
        faults: the errors found, one sentence each.
    """

    federation: str
    version: int
    rounds: list[int]
    faults: list[str]


def check_ledger(url: str) -> list[LedgerCheck]:
    """Check the ledger of a federation, or of all federations in a database.

    Args:
        url: of the database; # and the name of a federation checks that one only.

    Raises:
        InvalidInputError: a database that is damaged, cannot be read or holds no ledger; an unknown
            federation.
    """
    with open_ledger(url) as (connection, version, federation):
        if connection.dialect.name == "sqlite":
            first = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
            if first != "ok":
                raise InvalidInputError(f"ledger: the file is damaged ({first}); restore a backup")
        names = [find_federation(connection, federation)] if federation else []
        names = names or sorted(connection.scalars(sql.select(ROUNDS.c.federation).distinct()))
        return [_check_federation(connection, version, name) for name in names]


def _check_federation(connection: sql.Connection, version: int, name: str) -> LedgerCheck:
    own, rows = ROUNDS.c.federation == name, PARTICIPATION.c
    ended = list(connection.scalars(sql.select(ROUNDS.c.round).where(own).order_by("round")))
    missing = sorted(set(range(ended[0], ended[-1] + 1)) - set(ended)) if ended else []
    sums = sql.select(rows.round, sql.func.sum(rows.weight))
    sums = sums.where((rows.federation == name) & (rows.stage == "used")).group_by(rows.round)
    totals = {t: total or 0.0 for t, total in connection.execute(sums)}
    wrong = sorted(t for t, total in totals.items() if abs(total - 1) > _TOLERANCE)
    faults = []
    if missing:
        faults.append(
            f"the ledger lacks {quantify(len(missing), 'round')} from {missing[0]} on, which an "
            "audit counts as rounds without clients"
        )
    if wrong:
        faults.append(
            f"the weights of used clients do not sum to 1 in {quantify(len(wrong), 'round')} from "
            f"{wrong[0]} on"
        )
    return LedgerCheck(name, version, ended, faults)


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
    with open_existing(url) as engine, engine.begin() as connection:
        lock_tables(connection)
        former = check_version(connection, READABLE)
        for version in range(former, VERSION):
            for statement in _MIGRATIONS[version]:
                connection.execute(sql.text(statement))
        TABLES.create_all(connection)
        connection.execute(SCHEMA.update().values(version=VERSION))
    return former


def quarantine(url: str, name: str, begins: bool) -> None:
    """Begin or end the quarantine of a client, which a running federation obeys at once.

    Args:
        url: as in `read_ledger`.
        name: of the client.
        begins: whether it begins.

    Raises:
        InvalidInputError: a client that the ledger does not know; the database fails, or has
            tables of an older version.
    """
    with open_existing(url) as engine, engine.begin() as connection:
        check_version(connection, [VERSION])
        of = find_federation(connection, url.partition("#")[2])
        clients = sql.select(PARTICIPATION.c.client).where(PARTICIPATION.c.federation == of)
        known = set(connection.scalars(clients.distinct()))
        if name not in known:
            raise InvalidInputError(
                f"name: {of!r} has no client {name!r}; {did_you_mean(name, known)}"
            )
        keys = {"federation": of, "client": name}
        own = (QUARANTINE.c.federation == of) & (QUARANTINE.c.client == name)
        connection.execute(QUARANTINE.delete().where(own))
        if begins:
            connection.execute(QUARANTINE.insert().values(time=time.time(), **keys))


def prune_ledger(url: str, first: int, end: int | None = None) -> None:
    """Remove all rounds of a federation but some; the federation may continue meanwhile.

    Args:
        url: as in `read_ledger`.
        first: the first round that is kept.
        end: the first round after those that are kept; None: the last ones are kept.

    Raises:
        InvalidInputError: the database fails, or has tables of an older version.
    """
    with open_existing(url) as engine, engine.begin() as connection:
        check_version(connection, [VERSION])
        name = find_federation(connection, url.partition("#")[2])
        for table in (METRICS, PARTICIPATION, ROUNDS):
            removed = table.c.round < first
            if end is not None:
                removed |= table.c.round >= end
            connection.execute(sql.delete(table).where((table.c.federation == name) & removed))
