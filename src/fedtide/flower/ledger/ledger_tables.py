"""The tables of ledgers in a database: their columns and versions, and connections to them."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedtide.errors import InvalidInputError, MissingExtraError, did_you_mean

try:
    import sqlalchemy as sql
except ImportError:
    raise MissingExtraError("ledger", "flower") from None

VERSION = 2
"""The version of the tables; 1 has no `reason`, and can be read but not written."""

READABLE = (1, VERSION)
"""The versions that can be read."""

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
    sql.ForeignKeyConstraint(["federation", "round"], ["rounds.federation", "rounds.round"]),
)
"""The participation log."""


@contextmanager
def open_ledger(url: str) -> Iterator[tuple[sql.Connection, int, str]]:
    """Connect to a ledger; return also the version of its tables and the federation in the URL.

    All reads from the connection see the state of one moment.
    """
    url, _, federation = url.partition("#")
    engine = create_engine(url, reading=True)
    _reject_missing_file(engine.url)
    try:
        with database_errors(engine), engine.connect() as connection:
            connection = _begin_snapshot(connection)
            version = check_version(engine, read_versions(connection), READABLE)
            yield connection, version, federation
    finally:
        engine.dispose()


@contextmanager
def open_for_changes(url: str) -> Iterator[sql.Engine]:
    """Connect to an existing ledger to change it; the name of a federation after # is ignored."""
    engine = create_engine(url.partition("#")[0])
    _reject_missing_file(engine.url)
    _reject_unwritable_file(engine.url)
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


def create_engine(url: str, reading: bool = False) -> sql.Engine:
    """Return the engine of a database, perhaps only for reading.

    Raises:
        InvalidInputError: an invalid URL, or a driver that is not installed.
    """
    try:  # pool_pre_ping replaces connections that died between rounds, which are minutes apart
        options: dict[str, Any] = {"pool_pre_ping": True}
        file = _find_file(sql.make_url(url))
        if reading and file and _is_archived(file):
            options["creator"] = partial(_open_archived, file)
        engine = sql.create_engine(url, **options)
    except (sql.exc.ArgumentError, ValueError):  # the latter if a port, say, is not a number
        raise _not_a_url(url) from None
    except ImportError as error:
        raise InvalidInputError(f"ledger: {error}; install the driver of this database") from None
    if engine.dialect.name == "sqlite":
        sql.event.listen(engine, "connect", _wait_for_locks)
    return engine


def _not_a_url(text: str) -> InvalidInputError:
    """Return the error for a text that cannot be parsed, which may hold a password."""
    hint = (
        "write sqlite:///ledger.db, or driver://user:password@host:port/database with special "
        "characters of the password percent-encoded (# is %23)"
    )
    if os.path.isfile(text):
        hint = f"write sqlite:///{text}"
    shown = "this" if {":", "@", "="} & {*text} else repr(text)
    return InvalidInputError(f"ledger: {shown} is not the URL of a database; {hint}")


def _wait_for_locks(connection: Any, record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE}")


def prepare_writing(engine: sql.Engine) -> None:
    """Keep readers of an SQLite file from blocking its writer, and make a new file private."""
    if engine.dialect.name != "sqlite":
        return
    file = _find_file(engine.url)
    if file:
        # Only for a new file: closing one releases all locks of this process on it, those of SQLite
        # included, and another process would remove the write-ahead log of an open ledger.
        if not os.path.exists(file):
            with suppress(OSError):  # SQLite will report it
                os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        _reject_unwritable_file(engine.url)

    @sql.event.listens_for(engine, "connect")
    def log_ahead(connection: Any, record: Any) -> None:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # SQLite does not wait for other writers before it changes the journal
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.05)


def _reject_missing_file(url: sql.URL) -> None:
    """Raise InvalidInputError for a missing file, which SQLite would create."""
    file = _find_file(url)
    if file and not os.path.isfile(file):
        raise InvalidInputError(f"ledger: no database {file!r}; give the path of an existing file")


def _reject_unwritable_file(url: sql.URL) -> None:
    """Raise InvalidInputError for a file that SQLite would open, failing at the first commit."""
    file = _find_file(url)
    if file and os.path.isfile(file) and not os.access(file, os.W_OK):
        raise InvalidInputError(
            f"ledger: {file!r} cannot be written; change its mode, or run as its owner"
        )


def _find_file(url: sql.URL) -> str | None:
    """Return the file of an SQLite database; None: in memory, given as a URI, or not SQLite."""
    if url.get_backend_name() != "sqlite" or url.database == ":memory:" or "uri" in url.query:
        return None
    return url.database


def _is_archived(file: str) -> bool:
    """Return whether nobody is writing the file, and this process may not write it.

    An open ledger has a write-ahead log next to it. SQLite creates one even for reading, which
    fails in a folder that is not writable; and a reader who may not write the file leaves one that
    the federation cannot use.
    """
    file = os.path.realpath(file)
    if os.path.exists(f"{file}-wal") or os.path.exists(f"{file}-journal"):
        return False
    return not all(os.access(path, os.W_OK) for path in (file, os.path.dirname(file)))


def _open_archived(file: str) -> sqlite3.Connection:
    """Open a file without locks, assuming that it does not change."""
    return sqlite3.connect(f"{Path(file).resolve().as_uri()}?immutable=1", uri=True)


def _begin_snapshot(connection: sql.Connection) -> sql.Connection:
    """Begin a transaction that does not see later commits of others."""
    kind = connection.dialect.name
    if kind == "sqlite":  # its driver does not begin a transaction for reads
        connection.exec_driver_sql("BEGIN")
    if kind == "postgresql":
        return connection.execution_options(isolation_level="REPEATABLE READ")
    return connection


def lock_tables(connection: sql.Connection) -> None:
    """Keep others from creating or migrating the tables until this transaction ends."""
    kind = connection.dialect.name
    if kind == "sqlite":  # its driver begins a transaction only when the first row is written
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if kind == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK_KEY)))


def read_versions(connection: sql.Connection) -> Sequence[int]:
    """Return the versions recorded in the tables: one, unless something is wrong.

    Raises:
        InvalidInputError: a database without these tables.
    """
    if not sql.inspect(connection).has_table(SCHEMA.name):
        url = _masked_url(connection.engine)
        raise InvalidInputError(
            f"ledger: {url!r} holds no ledger; give the database that a federation writes"
        )
    return connection.scalars(sql.select(SCHEMA.c.version)).all()


def check_version(engine: sql.Engine, versions: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the version of the tables; raise InvalidInputError if it is not among the wanted."""
    if len(versions) == 1 and versions[0] in wanted:
        return versions[0]
    found = ", ".join(map(str, versions)) or "none"
    hint = "use the fedtide that wrote it"
    if list(versions) == [1]:
        hint = f"stop its federation and run fedtide ledger migrate {_masked_url(engine)}"
    raise InvalidInputError(
        f"ledger: {_masked_url(engine)!r} has tables of version {found}, this fedtide writes "
        f"{VERSION}; {hint}"
    )


def _masked_url(engine: sql.Engine) -> str:
    return _PASSWORD.sub(r"\1***", engine.url.render_as_string(hide_password=True))


@contextmanager
def database_errors(engine: sql.Engine) -> Iterator[Any]:
    """Turn errors of the database into an InvalidInputError."""
    try:
        yield
    except sql.exc.SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        hint = "check the database"
        if "readonly database" in reason or "unable to open database file" in reason:
            hint = (
                "it takes the right to read and write the file, its -wal and -shm, and the folder"
            )
        raise InvalidInputError(
            f"ledger: {_masked_url(engine)!r} fails ({reason}); {hint}"
        ) from None
