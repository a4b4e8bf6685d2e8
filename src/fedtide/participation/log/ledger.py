"""The ledger: a participation log in a database, to which rounds are added one by one.

Three tables, which plain SQL may read: `rounds` (federation, round, time: every round that has
ended, also those in which nobody took part), `participation` (federation, round, client, stage,
weight, time, asked: the log) and `fedtide_schema` (version). A database may hold the ledgers of
several federations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.errors import InvalidInputError, MissingExtraError, did_you_mean
from fedtide.participation.log.schema import STAGES, normalise_log

try:
    import sqlalchemy as sql
except ImportError:
    raise MissingExtraError("ledger", "flower") from None

VERSION = 1
"""The version of the tables that this code writes and reads."""

_LOCK = 0xFED71DE
"""By which PostgreSQL knows who makes the tables."""

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
    sql.ForeignKeyConstraint(["federation", "round"], ["rounds.federation", "rounds.round"]),
)


@dataclass(frozen=True)
class Entry:
    """What one client did in one round.

    Args:
        client: its name.
        stage: the furthest that it reached, one of STAGES.
        weight: its q_t^n; None where its update was not used.
        time: when that was, in seconds since 1970 (UTC); None: not known.
        asked: the round in which it was asked for what it reported in this one; None: this round,
            or nothing was reported.
    """

    client: str
    stage: str
    weight: float | None = None
    time: float | None = None
    asked: int | None = None

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise InvalidInputError(
                f"stage: {self.stage!r} is unknown; {did_you_mean(self.stage, STAGES)}"
            )


class Ledger:
    """The ledger of one federation, open for writing.

    Args:
        url: of the database, as SQLAlchemy has it: sqlite:///ledger.db is a file in the working
            directory, postgresql+psycopg://user@host/name a database on a server. The tables are
            made if they are not there.
        federation: whose rounds these are; one database may hold several.

    Raises:
        InvalidInputError: a database that cannot be reached or written, or tables of another version.

    >>> ledger = Ledger("sqlite://", "example")
    >>> ledger.commit(0, [Entry("ann", "used", 1.0)], time=1.8e9)
    >>> ledger.ended
    1
    """

    def __init__(self, url: str, federation: str = "default") -> None:
        self.federation = federation
        self._engine = _engine(url)
        with _complaints(self._engine), self._engine.begin() as connection:
            _let_nobody_else_make_tables(connection)
            _tables.create_all(connection)
            versions = connection.scalars(sql.select(_schema.c.version)).all()
            if not versions:
                connection.execute(_schema.insert().values(version=VERSION))
        _check_version(self._engine, versions or [VERSION])

    @property
    def ended(self) -> int:
        """How many rounds have ended: one more than the last round that was committed."""
        last = sql.select(sql.func.max(_rounds.c.round)).where(self._own(_rounds))
        with _complaints(self._engine), self._engine.connect() as connection:
            found = connection.scalar(last)
        return 0 if found is None else int(found) + 1

    def commit(self, round: int, entries: Sequence[Entry], time: float) -> None:
        """Add a round: all of it or, whatever happens meanwhile, nothing.

        A round that is there already, with the same entries, is left as it is, so whoever does not
        know whether a commit came through may repeat it.

        Args:
            round: t.
            entries: of this round, each client at most once.
            time: when the round ended, in seconds since 1970 (UTC).

        Raises:
            InvalidInputError: the round is there with other entries; the database fails.
        """
        with _complaints(self._engine):
            try:
                self._add(round, entries, time)
            except sql.exc.IntegrityError:  # another writer may have been faster: look again
                self._add(round, entries, time)

    def close(self) -> None:
        """Let the database go."""
        self._engine.dispose()

    def _add(self, round: int, entries: Sequence[Entry], time: float) -> None:
        keys = {"federation": self.federation, "round": round}
        rows = [keys | vars(entry) for entry in entries]
        with self._engine.begin() as connection:
            if self._there(connection, round, entries):
                return
            connection.execute(_rounds.insert().values(time=time, **keys))
            if rows:
                connection.execute(_participation.insert(), rows)

    def _own(self, table: sql.Table) -> sql.ColumnElement[bool]:
        return table.c.federation == self.federation

    def _there(self, connection: sql.Connection, round: int, entries: Sequence[Entry]) -> bool:
        """Say whether the round is there, and make sure that it is the same one."""
        of_round = self._own(_rounds) & (_rounds.c.round == round)
        if connection.execute(sql.select(_rounds).where(of_round)).first() is None:
            return False
        columns = [_participation.c[name] for name in Entry.__dataclass_fields__]
        of_round = self._own(_participation) & (_participation.c.round == round)
        there = {tuple(row) for row in connection.execute(sql.select(*columns).where(of_round))}
        if there != {astuple(entry) for entry in entries}:
            raise InvalidInputError(
                f"ledger: round {round} of {self.federation!r} is there with other entries; "
                "restore the state that belongs to this ledger, or choose another federation"
            )
        return True


def read_ledger(url: str) -> pl.DataFrame:
    """Return the participation log in a ledger, as `read_log` returns that in a file.

    Args:
        url: of the database; where it holds several federations, name one after #:
            sqlite:///ledger.db#clinics.

    Returns:
        round, client (String), stage, weight and time (Float64, seconds since 1970), sorted by
        round and client.

    Raises:
        InvalidInputError: a database that cannot be read or holds no ledger of this version; a federation
            that is not there, or several and none is named.
    """
    log = normalise_log(_read(url, _participation, "round", "client", "stage", "weight", "time"))
    return log.with_columns(pl.col("time").cast(pl.Float64)).sort("round", "client")


def read_rounds(url: str) -> pl.DataFrame:
    """Return which rounds have ended, those without participants too, and when: round, time.

    Args:
        url: as `read_ledger` has it.

    Raises:
        InvalidInputError: as `read_ledger`.
    """
    return _read(url, _rounds, "round", "time").sort("round")


def _read(url: str, table: sql.Table, *names: str) -> pl.DataFrame:
    url, _, federation = url.partition("#")
    engine = _engine(url)
    _refuse_missing_file(engine.url)
    try:
        with _complaints(engine), engine.connect() as connection:
            _check_version(engine, connection.scalars(sql.select(_schema.c.version)).all())
            own = table.c.federation == _federation(connection, federation)
            query = sql.select(*(table.c[name] for name in names)).where(own)
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
}


def _federation(connection: sql.Connection, name: str) -> str:
    """Return the federation of that name, or the only one there is where none is given."""
    there = connection.scalars(sql.select(_rounds.c.federation).distinct()).all()
    if name in there:
        return name
    if name:
        raise InvalidInputError(
            f"ledger: there is no federation {name!r}; {did_you_mean(name, there)}"
        )
    if len(there) > 1:
        raise InvalidInputError(
            f"ledger: it holds {len(there)} federations; put #{min(there)} or another of "
            "them after the URL"
        )
    return there[0] if there else ""


def _engine(url: str) -> sql.Engine:
    try:  # a connection may have died between rounds, which are minutes apart: it is tried first
        return sql.create_engine(url, pool_pre_ping=True)
    except sql.exc.ArgumentError:
        raise InvalidInputError(
            f"ledger: {url!r} is no database URL; write sqlite:///ledger.db"
        ) from None
    except ImportError as error:
        raise InvalidInputError(f"ledger: {error}; install the driver of this database") from None


def _refuse_missing_file(url: sql.URL) -> None:
    """Refuse a file that is not there, which SQLite would make."""
    file = url.database
    if url.get_backend_name() == "sqlite" and file and not Path(file).is_file():
        raise InvalidInputError(f"ledger: there is no database {file!r}; give the path of one")


def _let_nobody_else_make_tables(connection: sql.Connection) -> None:
    """Hold off, until this transaction ends, whoever else would make the tables now."""
    kind = connection.dialect.name
    if kind == "sqlite":  # whose driver begins at the first row only
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if kind == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))


def _check_version(engine: sql.Engine, versions: Sequence[int]) -> None:
    if list(versions) != [VERSION]:
        found = ", ".join(map(str, versions)) or "none"
        raise InvalidInputError(
            f"ledger: {_shown(engine)!r} has tables of version {found}, this fedtide reads "
            f"{VERSION}; use the fedtide that wrote it"
        )


def _shown(engine: sql.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


@contextmanager
def _complaints(engine: sql.Engine) -> Iterator[Any]:
    """Turn what the database says into one sentence."""
    try:
        yield
    except sql.exc.SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"ledger: {_shown(engine)!r} fails ({reason}); check the database"
        ) from None
