"""The ledger: the participation log of a live federation in a database, written round by round.

It has three tables, which plain SQL may read: `rounds` (federation, round, time: every round that
has ended, including empty ones), `participation` (federation, round, client, stage, weight, time,
asked, reason: the log) and `fedtide_schema` (version). A database may hold the ledgers of several
federations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.errors import InvalidInputError, MissingExtraError, did_you_mean
from fedtide.participation.log.schema import REASONS, STAGES, normalise_log
from fedtide.validation import require_choice

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

_LOCK_KEY = 0xFED71DE
"""The key of the PostgreSQL advisory lock on creating the tables."""

_tables = sql.MetaData()
_schema = sql.Table("fedtide_schema", _tables, sql.Column("version", sql.Integer, primary_key=True))
_rounds = sql.Table(
    "rounds",
    _tables,
    sql.Column("federation", sql.String(200), primary_key=True),
    sql.Column("round", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("time", sql.Double, nullable=False),
)
_participation = sql.Table(
    "participation",
    _tables,
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


@dataclass(frozen=True)
class Entry:
    """One client's row of the log in one round.

    Args:
        client: its name.
        stage: the furthest stage that it reached, one of STAGES.
        weight: its q_t^n; None if its update was not used.
        time: when it reached the stage, in seconds since 1970 (UTC); None: unknown.
        asked: the round in which the reported update was requested; None: this round, or nothing
            was reported.
        reason: why its update was not used, one of REASONS; None: it was used, or was not asked.
    """

    client: str
    stage: str
    weight: float | None = None
    time: float | None = None
    asked: int | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        require_choice("stage", self.stage, STAGES)
        if self.reason is not None:
            require_choice("reason", self.reason, REASONS)


class Ledger:
    """The ledger of one federation, open for writing.

    Args:
        url: the SQLAlchemy URL of the database: sqlite:///ledger.db is a file in the working
            directory, postgresql+psycopg://user@host/name a database on a server. Missing tables
            are created.
        federation: the name of the federation; one database may hold several.

    Raises:
        InvalidInputError: a database that cannot be reached or written, or tables of another
            version.

    >>> ledger = Ledger("sqlite://", "example")
    >>> ledger.commit(0, [Entry("ann", "used", 1.0)], time=1.8e9)
    >>> ledger.ended
    1
    """

    def __init__(self, url: str, federation: str = "default") -> None:
        self.federation = federation
        self._engine = _create_engine(url)
        _prepare_writing(self._engine)
        with _database_errors(self._engine), self._engine.begin() as connection:
            _lock_table_creation(connection)
            _tables.create_all(connection)
            versions = _read_versions(connection)
            if not versions:
                connection.execute(_schema.insert().values(version=VERSION))
        _check_version(self._engine, versions or [VERSION], [VERSION])

    @property
    def ended(self) -> int:
        """The number of rounds that have ended: the last committed round plus 1."""
        last = sql.select(sql.func.max(_rounds.c.round)).where(self._in_federation(_rounds))
        with _database_errors(self._engine), self._engine.connect() as connection:
            t = connection.scalar(last)
        return 0 if t is None else int(t) + 1

    def commit(self, round: int, entries: Sequence[Entry], time: float) -> None:
        """Add a round in one transaction.

        Committing a round again with the same entries changes nothing, so a commit whose outcome is
        unknown may be repeated.

        Args:
            round: t.
            entries: of this round, each client at most once.
            time: when the round ended, in seconds since 1970 (UTC).

        Raises:
            InvalidInputError: the round was committed with other entries; the database fails.
        """
        with _database_errors(self._engine):
            try:
                self._add(round, entries, time)
            except sql.exc.IntegrityError:  # another writer was faster: compare its entries
                self._add(round, entries, time)

    def undo(self, round: int) -> None:
        """Remove this round and all later ones, in one transaction.

        Raises:
            InvalidInputError: the database fails.
        """
        with _database_errors(self._engine), self._engine.begin() as connection:
            for table in (_participation, _rounds):
                undone = self._in_federation(table) & (table.c.round >= round)
                connection.execute(table.delete().where(undone))

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def _add(self, round: int, entries: Sequence[Entry], time: float) -> None:
        keys = {"federation": self.federation, "round": round}
        rows = [keys | vars(entry) for entry in entries]
        with self._engine.begin() as connection:
            if self._is_committed(connection, round, entries):
                return
            connection.execute(_rounds.insert().values(time=time, **keys))
            if rows:
                connection.execute(_participation.insert(), rows)

    def _in_federation(self, table: sql.Table) -> sql.ColumnElement[bool]:
        return table.c.federation == self.federation

    def _is_committed(
        self, connection: sql.Connection, round: int, entries: Sequence[Entry]
    ) -> bool:
        """Return whether the round is committed; raise InvalidInputError if its entries differ."""
        of_round = self._in_federation(_rounds) & (_rounds.c.round == round)
        if connection.execute(sql.select(_rounds).where(of_round)).first() is None:
            return False
        columns = [_participation.c[name] for name in Entry.__dataclass_fields__]
        of_round = self._in_federation(_participation) & (_participation.c.round == round)
        committed = {tuple(row) for row in connection.execute(sql.select(*columns).where(of_round))}
        if committed != {astuple(entry) for entry in entries}:
            raise InvalidInputError(
                f"ledger: round {round} of {self.federation!r} was committed with other entries; "
                "restore the state that belongs to this ledger, or choose another federation"
            )
        return True


def read_ledger(url: str) -> pl.DataFrame:
    """Return the participation log in a ledger, in the form of `read_log`.

    Args:
        url: of the database; if it holds several federations, followed by # and the name of one:
            sqlite:///ledger.db#clinics.

    Returns:
        round, client (String), stage, weight, time (Float64, seconds since 1970), reason (String,
        null in a ledger of version 1), sorted by round and client.

    Raises:
        InvalidInputError: a database that cannot be read or holds no ledger of this version; an
            unknown federation, or several and none is named.
    """
    columns = ("round", "client", "stage", "weight", "time", "reason")
    log = normalise_log(_read(url, _participation, *columns))
    return log.with_columns(pl.col("time").cast(pl.Float64)).sort("round", "client")


def read_rounds(url: str) -> pl.DataFrame:
    """Return the rounds that have ended, including empty ones, with the columns round and time.

    Args:
        url: as in `read_ledger`.

    Raises:
        InvalidInputError: as in `read_ledger`.
    """
    return _read(url, _rounds, "round", "time").sort("round")


def _read(url: str, table: sql.Table, *names: str) -> pl.DataFrame:
    url, _, federation = url.partition("#")
    engine = _create_engine(url)
    _reject_missing_file(engine.url)
    try:
        with _database_errors(engine), engine.connect() as connection:
            version = _check_version(engine, _read_versions(connection), READABLE)
            own = table.c.federation == _find_federation(connection, federation)
            absent = {"reason": sql.null()} if version == 1 else {}
            query = sql.select(*(absent.get(name, table.c[name]) for name in names)).where(own)
            rows = [tuple(row) for row in connection.execute(query)]
    finally:
        engine.dispose()
    schema = {name: _types[name] for name in names}
    return pl.DataFrame(rows, schema=schema, orient="row")


_types: dict[str, type[pl.DataType]] = {
    "round": pl.Int64,
    "client": pl.String,
    "stage": pl.String,
    "weight": pl.Float64,
    "time": pl.Float64,
    "reason": pl.String,
}


def _find_federation(connection: sql.Connection, name: str) -> str:
    """Return `name` if that federation exists; the only federation if `name` is empty."""
    names = connection.scalars(sql.select(_rounds.c.federation).distinct()).all()
    if name in names:
        return name
    if name:
        raise InvalidInputError(f"ledger: no federation {name!r}; {did_you_mean(name, names)}")
    if len(names) > 1:
        raise InvalidInputError(
            f"ledger: the database holds {len(names)} federations; append #{min(names)} or another "
            "name to the URL"
        )
    return names[0] if names else ""


def _create_engine(url: str) -> sql.Engine:
    try:  # pool_pre_ping replaces connections that died between rounds, which are minutes apart
        engine = sql.create_engine(url, pool_pre_ping=True)
    except sql.exc.ArgumentError:
        raise InvalidInputError(
            f"ledger: {url!r} is not a database URL; write sqlite:///ledger.db"
        ) from None
    except ImportError as error:
        raise InvalidInputError(f"ledger: {error}; install the driver of this database") from None
    if engine.dialect.name == "sqlite":
        sql.event.listen(engine, "connect", _wait_for_locks)
    return engine


def _wait_for_locks(connection: Any, record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE}")


def _prepare_writing(engine: sql.Engine) -> None:
    """Let readers of an SQLite file not hold up its writer, and only its owner read a new one."""
    if engine.dialect.name != "sqlite":
        return
    file = engine.url.database
    if file:
        with suppress(OSError):  # which SQLite will report
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))

    @sql.event.listens_for(engine, "connect")
    def log_ahead(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")


def _reject_missing_file(url: sql.URL) -> None:
    """Raise InvalidInputError for a missing file, which SQLite would create."""
    file = url.database
    if url.get_backend_name() == "sqlite" and file and not Path(file).is_file():
        raise InvalidInputError(f"ledger: no database {file!r}; give the path of an existing file")


def _lock_table_creation(connection: sql.Connection) -> None:
    """Keep other writers from creating the tables until this transaction ends."""
    kind = connection.dialect.name
    if kind == "sqlite":  # its driver begins a transaction at the first row only
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if kind == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK_KEY)))


def _read_versions(connection: sql.Connection) -> Sequence[int]:
    return connection.scalars(sql.select(_schema.c.version)).all()


def _check_version(engine: sql.Engine, versions: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the version of the tables; raise InvalidInputError if it is not a wanted one."""
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
    return engine.url.render_as_string(hide_password=True)


@contextmanager
def _database_errors(engine: sql.Engine) -> Iterator[Any]:
    """Turn errors of the database into an InvalidInputError."""
    try:
        yield
    except sql.exc.SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"ledger: {_masked_url(engine)!r} fails ({reason}); check the database"
        ) from None
