"""The commands `fedtide ledger`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedtide.errors import InvalidInputError, MissingExtraError, quantify
from fedtide.validation import require_at_least

app = typer.Typer(
    name="ledger",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
"""The commands."""

Ledger = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER[#FEDERATION]",
        help="The URL of the database, and the federation if it holds several: "
        "sqlite:///ledger.db#clinics.",
        show_default=False,
    ),
]


@app.callback()
def _ledger() -> None:
    """Check, migrate, prune or export the ledger of a federation.

    A ledger is the database in which a federation records, round by round, which clients were
    available, selected, reported and used, and why others were not. It is given by its URL:
    sqlite:///ledger.db is a file in the working directory, sqlite:////var/lib/fedtide/ledger.db one
    with an absolute path, and postgresql+psycopg://user@host/name a database on a server.

    Examples:

    fedtide ledger check sqlite:///ledger.db

    fedtide ledger migrate sqlite:///ledger.db

    fedtide ledger prune sqlite:///ledger.db#clinics --keep 10000

    fedtide ledger export sqlite:///ledger.db log.parquet
    """
    if importlib.util.find_spec("sqlalchemy") is None:
        raise MissingExtraError("ledger", "flower")


@app.command("check")
def check_command(ledger: Ledger) -> None:
    """Check a ledger: exit status 0 if nothing is wrong, 2 otherwise.

    Looks for damaged files, rounds that are missing, and weights that do not sum to 1. The
    federation may be running.
    """
    from fedtide.flower.ledger.ledger_maintenance import check_ledger
    from fedtide.flower.ledger.ledger_tables import VERSION

    checks = check_ledger(ledger)
    for check in checks:
        span = f"rounds {check.rounds[0]} to {check.rounds[-1]}" if check.rounds else "no rounds"
        print(
            f"federation {check.federation!r}: {span}, {len(check.rounds):,} in all; tables of "
            f"version {check.version}"
        )
        for fault in check.faults:
            print(f"  {fault}")
    if any(check.version < VERSION for check in checks):
        print("before a federation goes on with it: fedtide ledger migrate LEDGER")
    if any(check.faults for check in checks):
        raise typer.Exit(2)
    print("nothing is wrong" if checks else "the ledger has no federation yet")


@app.command("migrate")
def migrate_command(ledger: Ledger) -> None:
    """Bring the tables of an older fedtide to the present version, for all their federations.

    First back up the database (sqlite3 ledger.db ".backup copy.db", or pg_dump) and stop the
    federation, because an older fedtide does not open the new tables. The tables change in one
    transaction: an interrupted migration changes nothing, and a repeated one does nothing more.

    `check`, `export` and audits read older tables without a migration.
    """
    from fedtide.flower.ledger.ledger_maintenance import migrate_ledger
    from fedtide.flower.ledger.ledger_tables import VERSION

    former = migrate_ledger(ledger)
    if former == VERSION:
        print(f"the tables are of version {VERSION} already; nothing was changed")
    else:
        print(f"the tables were of version {former} and are of version {VERSION} now")


@app.command("prune")
def prune_command(
    ledger: Ledger,
    keep: Annotated[int, typer.Option(metavar="R", help="How many rounds to keep: the last ones.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove all rounds but the last R of a federation, permanently.

    Rounds keep their numbers. A running federation is not disturbed. Later audits cover only the
    remaining rounds: they do not know clients that took part in removed rounds only (name all
    clients with --clients or --roster), and absences count from the first remaining round. With
    differential privacy, keep all rounds: `fedtide audit --privacy` counts what clients lost in
    the remaining ones only. Export the ledger first to keep what is removed.
    """
    from fedtide.flower.ledger.ledger import read_rounds
    from fedtide.flower.ledger.ledger_maintenance import prune_ledger

    require_at_least("keep", keep, 2)  # an audit needs them, and so may a resumed training
    rounds = read_rounds(ledger)["round"].to_list()
    if len(rounds) <= keep:
        print(f"nothing to remove: the ledger has {quantify(len(rounds), 'round')}")
        return
    removed, first = quantify(len(rounds) - keep, "round"), rounds[-keep]
    print(f"removes {removed}; keeps rounds {first} to {rounds[-1]}, {keep:,} in all")
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInputError(
                "yes: there is no terminal to ask in; add --yes to remove the rounds"
            )
        if not typer.confirm("Remove them?"):
            print("nothing was removed")
            return
    prune_ledger(ledger, first)
    print(f"removed {removed}")
    print("a database file does not shrink by itself: VACUUM it when no federation runs")


@app.command("export")
def export_command(
    ledger: Ledger,
    out: Annotated[
        Path,
        typer.Argument(help="The file to write: .parquet, .csv or .jsonl.", show_default=False),
    ],
) -> None:
    """Write a ledger as a participation log, which audits and replays read.

    The columns are round, client, stage, weight, time and reason. An existing file is replaced. The
    federation may be running: the log ends with its last complete round.

    fedtide audit log.parquet

    fedtide run experiment.yaml 'participation={type: replay, log: log.parquet}'
    """
    from fedtide.flower.ledger.ledger import read_history
    from fedtide.participation.log.read import write_log

    log, rounds = read_history(ledger)
    write_log(out, log)
    print(f"{out}: {quantify(len(log), 'row')} of {quantify(len(rounds), 'round')}")
    if empty := len(rounds) - log["round"].n_unique():
        print(
            f"{empty:,} of them are without clients and have no rows: in a log, those between "
            "other rounds count as empty, and those before or after all others are lost"
        )
