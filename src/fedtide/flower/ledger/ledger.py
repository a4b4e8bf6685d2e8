"""The ledger: the participation log of a live federation in a database, written round by round.

It has five tables, readable with plain SQL: `rounds` (federation, round, time: every round that has
ended, including empty ones), `participation` (federation, round, client, stage, weight, time,
asked, reason, step_weight, norm: the log), `metrics` (federation, round, source, name, value),
`quarantine` (federation, client, time) and `fedtide_schema` (version). A database may hold the
ledgers of several federations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import polars as pl

from fedtide.errors import InvalidInputError, MissingExtraError, first_line
from fedtide.flower.ledger.ledger_tables import (
    ADDED,
    METRICS,
    PARTICIPATION,
    QUARANTINE,
    ROUNDS,
    SCHEMA,
    TABLES,
    VERSION,
    check_version,
    create_engine,
    database_errors,
    find_federation,
    lock_tables,
    open_ledger,
    prepare_writing,
)
from fedtide.participation.log.read import normalise_log

try:
    import sqlalchemy as sql
except ImportError:
    raise MissingExtraError("ledger", "flower") from None

LOG_COLUMNS = ("round", "client", "stage", "weight", "time", "reason")
"""The columns of a participation log that a ledger has."""
FACTS = ("step_weight", "norm")
"""Its further columns on an update that was used."""

_LONGEST_NAME = 200  # the width of the columns
_BATCH = 1 << 16
"""The number of rows read at a time."""


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
        step_weight: the factor with which its update entered the step, such as η ω_n / N of FedAU;
            None: it was not used, or the method does not say.
        norm: the norm of its update; None: it was not used, or is private.
    """

    client: str
    stage: str
    weight: float | None = None
    time: float | None = None
    asked: int | None = None
    reason: str | None = None
    step_weight: float | None = None
    norm: float | None = None


class Ledger:
    """The ledger of one federation, open for writing.

    Args:
        url: the SQLAlchemy URL of the database: sqlite:///ledger.db is a file in the working
            directory, postgresql+psycopg://user@host/name a database on a server. Missing tables
            are created.
        federation: the name of the federation; one database may hold several.

    Raises:
        InvalidInputError: a database that cannot be reached or written, tables of another version,
            a URL with #, or a federation without a printable name.

    >>> ledger = Ledger("sqlite://", "example")
    >>> ledger.commit(0, [Entry("ann", "used", 1.0)], time=1.8e9)
    >>> ledger.ended
    1
    """

    def __init__(self, url: str, federation: str = "default") -> None:
        is_text = isinstance(federation, str)
        if not (is_text and 0 < len(federation) <= _LONGEST_NAME and federation.isprintable()):
            raise InvalidInputError(
                f"federation: {federation!r:.60} is empty, too long, or not printable text; give "
                f"at most {_LONGEST_NAME} characters"
            )
        if "#" in url:  # SQLite would take it for a part of the file's name
            raise InvalidInputError(
                "ledger: the URL has a #; give the name of a federation as the federation, and "
                "write %23 in a password"
            )
        self.federation = federation
        self._engine = create_engine(url)
        prepare_writing(self._engine)
        with database_errors(self._engine), self._engine.begin() as connection:
            lock_tables(connection)
            TABLES.create_all(connection)
            if connection.scalar(sql.select(SCHEMA.c.version)) is None:
                connection.execute(SCHEMA.insert().values(version=VERSION))
            check_version(connection, [VERSION])

    @property
    def ended(self) -> int:
        """The number of rounds that have ended: the last committed round plus 1."""
        last = sql.select(sql.func.max(ROUNDS.c.round)).where(self._in_federation(ROUNDS))
        with database_errors(self._engine), self._engine.connect() as connection:
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
        with database_errors(self._engine):
            try:
                self._add(round, entries, time)
            except sql.exc.IntegrityError:  # another writer was faster: compare its entries
                self._add(round, entries, time)

    def undo(self, round: int) -> None:
        """Remove this round and all later ones, in one transaction.

        Raises:
            InvalidInputError: the database fails.
        """
        with database_errors(self._engine), self._engine.begin() as connection:
            for table in (METRICS, PARTICIPATION, ROUNDS):
                undone = self._in_federation(table) & (table.c.round >= round)
                connection.execute(table.delete().where(undone))

    def record(self, round: int, source: str, values: Mapping[str, float]) -> None:
        """Record what was measured after a round, in place of what the same source has recorded.

        Args:
            round: t.
            source: who has measured: "server", "evaluation" and "training" (the clients), or
                "privacy".
            values: by name.

        Raises:
            InvalidInputError: the database fails.
        """
        keys = {"federation": self.federation, "round": round, "source": source}
        former = sql.and_(*(METRICS.c[name] == key for name, key in keys.items()))
        finite = {n: v if math.isfinite(v) else None for n, v in values.items()}  # no NaN in SQLite
        with database_errors(self._engine), self._engine.begin() as connection:
            connection.execute(METRICS.delete().where(former))
            if finite:
                rows = [keys | {"name": name, "value": value} for name, value in finite.items()]
                connection.execute(METRICS.insert(), rows)

    def quarantined(self) -> set[str]:
        """Return the names of the clients that the operator has quarantined.

        Raises:
            InvalidInputError: the database fails.
        """
        names = sql.select(QUARANTINE.c.client).where(self._in_federation(QUARANTINE))
        with database_errors(self._engine), self._engine.connect() as connection:
            return set(connection.scalars(names))

    def close(self) -> None:
        """Close the connections to the database."""
        self._engine.dispose()

    def _add(self, round: int, entries: Sequence[Entry], time: float) -> None:
        keys = {"federation": self.federation, "round": round}
        rows = [keys | vars(entry) for entry in entries]
        with self._engine.begin() as connection:
            if self._is_committed(connection, round, entries):
                return
            connection.execute(ROUNDS.insert().values(time=time, **keys))
            if rows:
                connection.execute(PARTICIPATION.insert(), rows)

    def _in_federation(self, table: sql.Table) -> sql.ColumnElement[bool]:
        return table.c.federation == self.federation

    def _is_committed(
        self, connection: sql.Connection, round: int, entries: Sequence[Entry]
    ) -> bool:
        """Return whether the round is committed; raise InvalidInputError if its entries differ."""
        of_round = self._in_federation(ROUNDS) & (ROUNDS.c.round == round)
        if connection.execute(sql.select(ROUNDS).where(of_round)).first() is None:
            return False
        columns = [PARTICIPATION.c[name] for name in Entry.__dataclass_fields__]
        of_round = self._in_federation(PARTICIPATION) & (PARTICIPATION.c.round == round)
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
        null in a ledger of version 1), step_weight and norm (Float64, null in earlier ones), sorted
        by round and client.

    Raises:
        InvalidInputError: a database that cannot be read or holds no ledger of a known version; an
            unknown federation, or several and none is named.
    """
    return read_history(url)[0]


def read_rounds(url: str) -> pl.DataFrame:
    """Return the rounds that have ended, including empty ones, with the columns round and time.

    Args:
        url: as in `read_ledger`.

    Raises:
        InvalidInputError: as in `read_ledger`.
    """
    return read_history(url)[1]


def read_history(url: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what `read_ledger` and `read_rounds` return, both as of the same moment.

    Args:
        url: as in `read_ledger`.

    Raises:
        InvalidInputError: as in `read_ledger`.
    """
    with open_ledger(url) as (connection, version, federation):
        of = find_federation(connection, federation)
        rounds = _select(connection, version, ROUNDS, ROUNDS.c.federation == of, "round", "time")
        own = PARTICIPATION.c.federation == of
        log = _select(connection, version, PARTICIPATION, own, *LOG_COLUMNS, *FACTS)
    facts = log.select(FACTS)
    return normalise_log(log.select(LOG_COLUMNS)).hstack(facts).sort("round", "client"), rounds


def read_sites(url: str) -> pl.DataFrame:
    """Return what a ledger says of each client, by name.

    Args:
        url: as in `read_ledger`.

    Returns:
        client, used (how many updates were), last_round (in which it has a row), step_weight
        (mean), norm (median), quarantined (since when, in seconds since 1970; null: it is not).

    Raises:
        InvalidInputError: as in `read_ledger`.
    """
    quarantine = pl.DataFrame(
        read_quarantine(url), {"client": pl.String, "quarantined": pl.Float64}, orient="row"
    )
    return summarise_sites(read_ledger(url)).join(quarantine, "client", "left").sort("client")


def summarise_sites(log: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of `read_sites` that follow from the log, of `read_ledger`."""
    return log.group_by("client").agg(
        (pl.col("stage") == "used").sum().alias("used"),
        pl.col("round").max().alias("last_round"),
        pl.col("step_weight").mean(),
        pl.col("norm").median(),
    )


def read_metrics(url: str, since: int) -> pl.DataFrame:
    """Return what was measured after rounds from `since` on.

    Returns:
        round, source, name, value (null: it was not finite), sorted by source, name and round.

    Raises:
        InvalidInputError: as in `read_ledger`.
    """
    columns = [METRICS.c[name] for name in _METRICS]
    with open_ledger(url) as (connection, version, federation):
        of = METRICS.c.federation == find_federation(connection, federation)
        query = sql.select(*columns).where(of & (METRICS.c.round >= since))
        found = [] if version < VERSION else list(map(tuple, connection.execute(query)))
    return pl.DataFrame(found, _METRICS, orient="row").sort("source", "name", "round")


def read_quarantine(url: str) -> list[tuple[str, float]]:
    """Return the clients in quarantine, and since when, in seconds since 1970.

    Raises:
        InvalidInputError: as in `read_ledger`.
    """
    with open_ledger(url) as (connection, version, federation):
        of = QUARANTINE.c.federation == find_federation(connection, federation)
        rows = sql.select(QUARANTINE.c.client, QUARANTINE.c.time).where(of)
        return (
            [] if version < VERSION else [(name, since) for name, since in connection.execute(rows)]
        )


@dataclass(frozen=True, eq=False)
class LedgerPart:
    """Consecutive rounds of a ledger.

    Args:
        federation: its name; empty if none was named and no round has ended.
        rounds: the columns round and time, by round: the last round read before, if the ledger
            still has it, and those after it.
        rows: the rows of the rounds after it, with all columns of `Entry`, by round; stage is a
            String.
        ended: how many rounds have ended.
    """

    federation: str
    rounds: pl.DataFrame
    rows: pl.DataFrame
    ended: int


def read_ledger_part(url: str, after: int, most: int) -> LedgerPart:
    """Return the rounds after the last one read before, with their rows.

    Args:
        url: as in `read_ledger`; a named federation may have no rounds yet.
        after: the last round read before; −1: none.
        most: the largest number of rounds to return, at least 2.

    Raises:
        InvalidInputError: as in `read_ledger`.
    """
    with open_ledger(url) as (connection, version, federation):
        federation = federation or find_federation(connection, "")
        later = (ROUNDS.c.federation == federation) & (ROUNDS.c.round >= after)
        rounds = _select(connection, version, ROUNDS, later, "round", "time", most=most)
        last = after if rounds.is_empty() else rounds["round"][-1]
        own = PARTICIPATION.c.federation == federation
        new = own & PARTICIPATION.c.round.between(after + 1, last)
        rows = _select(connection, version, PARTICIPATION, new, *_TYPES)
        newest = sql.select(sql.func.max(ROUNDS.c.round)).where(ROUNDS.c.federation == federation)
        ended = connection.scalar(newest)
    return LedgerPart(federation, rounds, rows, 0 if ended is None else ended + 1)


def _select(
    connection: sql.Connection,
    version: int,
    table: sql.Table,
    wanted: sql.ColumnElement[bool],
    *names: str,
    most: int | None = None,
) -> pl.DataFrame:
    """Return these columns of the wanted rows, by round."""
    absent = {name: sql.null() for name, since in ADDED.items() if version < since}
    query = sql.select(*(absent.get(name, table.c[name]) for name in names)).where(wanted)
    query = query.order_by(table.c.round).limit(most)
    found = connection.execute(query, execution_options={"yield_per": _BATCH})
    parts = [pl.DataFrame(schema={name: _TYPES[name] for name in names})]
    try:
        for rows in found.partitions():
            columns = zip(names, zip(*rows, strict=True), strict=True)
            parts.append(pl.DataFrame([pl.Series(n, v, _TYPES[n]) for n, v in columns]))
    except TypeError as error:  # SQLite stores any value in any column
        raise InvalidInputError(
            f"ledger: a column holds values of a wrong type ({first_line(error)}); restore a backup"
        ) from None
    return pl.concat(parts)


_TYPES: dict[str, type[pl.DataType]] = {
    "round": pl.Int64,
    "client": pl.String,
    "stage": pl.String,
    "weight": pl.Float64,
    "time": pl.Float64,
    "asked": pl.Int64,
    "reason": pl.String,
    "step_weight": pl.Float64,
    "norm": pl.Float64,
}

_METRICS: dict[str, type[pl.DataType]] = {
    "round": pl.Int64,
    "source": pl.String,
    "name": pl.String,
    "value": pl.Float64,
}
