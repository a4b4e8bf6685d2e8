"""The tables of ledgers in a database: their columns and versions, and connections to them."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fedtide.errors import InvalidInputError, MissingExtraError, did_you_mean

try:
    import sqlalchemy as sql
except ImportError:
    raise MissingExtraError("ledger", "flower") from None

VERSION = 3
"""The version of the tables; earlier ones can be read but not written."""

READABLE = (1, 2, VERSION)
"""The versions that can be read."""

ADDED = {"reason": 2, "step_weight": 3, "norm": 3}
"""The version since which `participation` has a column."""

_PATIENCE = 60
"""Seconds for which SQLite waits for another writer."""

_PASSWORD = re.compile(r"(password=)[^&]*", re.IGNORECASE)
"""A password among the options of a URL, which SQLAlchemy shows."""

_LOCK_KEY = 0xFED71DE
"""The key of the PostgreSQL advisory lock on creating or migrating the tables."""

TABLES = sql.MetaData()
"""The tables below."""

SCHEMA = sql.Table("fedtide_schema", TABLES, sql.Column("version", sql.Integer, primary_key=True))
"""The version of the tables."""

ROUNDS = sql.Table(
    "rounds",
    TABLES,
    sql.Column("federation", sql.String(200), primary_key=True),
    sql.Column("round", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("time", sql.Double, nullable=False),
)
"""The rounds that have ended."""

PARTICIPATION = sql.Table(
    "participation",
    TABLES,
    sql.Column("federation", sql.String(200), primary_key=True),
    sql.Column("round", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("client", sql.String(200), primary_key=True),
    sql.Column("stage", sql.String(9), nullable=False),
    sql.Column("weight", sql.Double),
    sql.Column("time", sql.Double),
    sql.Column("asked", sql.BigInteger),
    sql.Column("reason", sql.String(20)),
    sql.Column("step_weight", sql.Double),
    sql.Column("norm", sql.Double),
    sql.ForeignKeyConstraint(["federation", "round"], ["rounds.federation", "rounds.round"]),
)
"""The participation log."""

METRICS = sql.Table(
    "metrics",
    TABLES,
    sql.Column("federation", sql.String(200), primary_key=True),
    sql.Column("round", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("source", sql.String(10), primary_key=True),
    sql.Column("name", sql.String(200), primary_key=True),
    sql.Column("value", sql.Double),
)
"""What was measured after a round, see `Ledger.record`; since version 3."""

QUARANTINE = sql.Table(
    "quarantine",
    TABLES,
    sql.Column("federation", sql.String(200), primary_key=True),
    sql.Column("client", sql.String(200), primary_key=True),
    sql.Column("time", sql.Double, nullable=False),
)
"""The clients that a federation does not ask, since when; since version 3."""


@contextmanager
def open_ledger(url: str) -> Iterator[tuple[sql.Connection, int, str]]:
    """Connect to a ledger to read it, as it is at one moment.

    Yields:
        The connection, the version of the tables, and the federation in the URL.
    """
    url, _, federation = url.partition("#")
    with open_existing(url) as engine, engine.connect() as connection:
        if connection.dialect.name == "sqlite":  # its driver begins no transaction for reads
            connection.exec_driver_sql("BEGIN")
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        yield connection, check_version(connection, READABLE), federation


@contextmanager
def open_existing(url: str) -> Iterator[sql.Engine]:
    """Connect to an existing ledger; the name of a federation after # is ignored."""
    engine = create_engine(url.partition("#")[0])
    file = find_file(engine.url)
    if file and not os.path.isfile(file):  # SQLite would create it
        raise InvalidInputError(f"ledger: no database {file!r}; give the path of an existing file")
    try:
        with database_errors(engine):
            yield engine
    finally:
        engine.dispose()


def find_federation(connection: sql.Connection, name: str) -> str:
    """Return `name` if it or no federation has rounds; the only federation if `name` is empty."""
    names: Sequence[str] = connection.scalars(sql.select(ROUNDS.c.federation).distinct()).all()
    if name in names or not names:
        return name
    if name:
        raise InvalidInputError(f"ledger: no federation {name!r}; {did_you_mean(name, names)}")
    if len(names) > 1:
        raise InvalidInputError(
            f"ledger: the database holds {len(names)} federations; append #{min(names)} or another "
            "name to the URL"
        )
    return names[0]


def create_engine(url: str) -> sql.Engine:
    """Return the engine of a database.

    Raises:
        InvalidInputError: an invalid URL, or a driver that is not installed.
    """
    try:  # pool_pre_ping replaces connections that died between rounds, which are minutes apart
        engine = sql.create_engine(url, pool_pre_ping=True)
    except (sql.exc.ArgumentError, ValueError):  # the latter if a port, say, is not a number
        hint = f"write sqlite:///{url}" if os.path.isfile(url) else "write sqlite:///ledger.db"
        shown = "this" if {":", "@", "="} & {*url} else repr(url)  # it may hold a password
        raise InvalidInputError(
            f"ledger: {shown} is not the URL of a database; {hint}, or driver://user@host/database "
            "with special characters of a password percent-encoded (# is %23)"
        ) from None
    except ImportError as error:
        raise InvalidInputError(f"ledger: {error}; install the driver of this database") from None
    if engine.dialect.name == "sqlite":
        sql.event.listen(engine, "connect", _wait_for_locks)
    return engine


def _wait_for_locks(connection: Any, record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE}")


def prepare_writing(engine: sql.Engine) -> None:
    """Keep readers of an SQLite file from blocking its writer, and make a new file private."""
    if engine.dialect.name != "sqlite":
        return
    file = find_file(engine.url)
    # Only for a new file: closing one releases all locks of this process on it, those of SQLite
    # included, and another process would remove the write-ahead log of an open ledger.
    if file and not os.path.exists(file):
        with suppress(OSError):  # SQLite will report it
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))

    @sql.event.listens_for(engine, "connect")
    def log_ahead(connection: Any, record: Any) -> None:
        with suppress(sqlite3.OperationalError):  # locked by a writer, who has set this in the file
            connection.execute("PRAGMA journal_mode = WAL")


def find_file(url: sql.URL) -> str | None:
    """Return the file of an SQLite database; None: in memory, given as a URI, or not SQLite."""
    if url.get_backend_name() != "sqlite" or url.database == ":memory:" or "uri" in url.query:
        return None
    return url.database


def lock_tables(connection: sql.Connection) -> None:
    """Keep others from creating or migrating the tables until this transaction ends."""
    if connection.dialect.name == "sqlite":  # its driver begins one when the first row is written
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if connection.dialect.name == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK_KEY)))


def check_version(connection: sql.Connection, wanted: Sequence[int]) -> int:
    """Return the version of the tables.

    Raises:
        InvalidInputError: it is not among the wanted ones, or there are no such tables.
    """
    url = _mask(connection.engine)
    if not sql.inspect(connection).has_table(SCHEMA.name):
        raise InvalidInputError(
            f"ledger: {url!r} holds no ledger; give the database that a federation writes"
        )
    versions: list[int] = list(connection.scalars(sql.select(SCHEMA.c.version)))
    if len(versions) == 1 and versions[0] in wanted:
        return versions[0]
    found, hint = ", ".join(map(str, versions)) or "none", "use the fedtide that wrote it"
    if set(versions) < set(READABLE):
        hint = f"stop its federation and run fedtide ledger migrate {url}"
    raise InvalidInputError(
        f"ledger: {url!r} has tables of version {found}, this fedtide writes {VERSION}; {hint}"
    )


def _mask(engine: sql.Engine) -> str:
    return _PASSWORD.sub(r"\1***", engine.url.render_as_string(hide_password=True))


@contextmanager
def database_errors(engine: sql.Engine) -> Iterator[None]:
    """Turn errors of the database into an InvalidInputError."""
    try:
        yield
    except sql.exc.SQLAlchemyError as error:
        reason, hint = str(error).splitlines()[0], "check the database"
        if "readonly database" in reason or "unable to open database file" in reason:
            hint = (
                "it takes the right to read and write the file, its -wal and -shm, and the folder; "
                "who lacks it reads a copy"
            )
        raise InvalidInputError(f"ledger: {_mask(engine)!r} fails ({reason}); {hint}") from None
