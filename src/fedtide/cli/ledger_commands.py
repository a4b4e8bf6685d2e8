"""The commands `fedtide ledger`."""

from __future__ import annotations

import importlib.util
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

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
    """Check, migrate, prune or export the ledger of a federation; quarantine sites, or roll back.

    A ledger is the database in which a federation records, round by round, which clients were
    available, selected, reported and used, and why others were not. It is given by its URL:
    sqlite:///ledger.db is a file in the working directory, sqlite:////var/lib/fedtide/ledger.db one
    with an absolute path, and postgresql+psycopg://user@host/name a database on a server.

    Examples:

    fedtide ledger check sqlite:///ledger.db

    fedtide ledger migrate sqlite:///ledger.db

    fedtide ledger prune sqlite:///ledger.db#clinics --keep 10000

    fedtide ledger export sqlite:///ledger.db log.parquet

    fedtide ledger sites sqlite:///ledger.db

    fedtide ledger quarantine sqlite:///ledger.db site-a

    fedtide ledger rollback sqlite:///ledger.db --state state --rounds 100
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
    if not _is_confirmed(yes):
        return
    prune_ledger(ledger, first)
    print(f"removed {removed}")
    print("a database file does not shrink by itself: VACUUM it when no federation runs")


def _is_confirmed(yes: bool) -> bool:
    """Return whether to remove rounds, after asking unless `yes`."""
    if not yes and not sys.stdin.isatty():
        raise InvalidInputError(
            "yes: there is no terminal to ask in; add --yes to remove the rounds"
        )
    if yes or typer.confirm("Remove them?"):
        return True
    print("nothing was removed")
    return False


@app.command("sites")
def sites_command(
    ledger: Ledger,
    superlink: Annotated[
        str | None,
        typer.Option(help="A connection in Flower's config.toml, to show each site's node."),
    ] = None,
) -> None:
    """List the sites: updates used, last round, mean weight, norm of updates, node, quarantine.

    The weight is the mean factor with which an update entered the model's step, such as
    η ω / N of FedAU, and the norm the median of its updates: both together say how far a site
    moves the model. Nodes are those of keys registered with the SuperLink.
    """
    from rich.table import Column, Table

    from fedtide.flower.ledger.ledger import read_sites
    from fedtide.plotting.console import new_console

    nodes: dict[str, list[int]] = {}
    if superlink is not None:
        from fedtide.flower._flwr import list_registered_names

        nodes = list_registered_names(superlink)
    table = Table(
        Column("site", overflow="fold"),
        "used",
        "last round",
        "weight",
        "norm",
        "node",
        "quarantined since",
    )
    for name, used, last, weight, norm, since in read_sites(ledger).iter_rows():
        table.add_row(
            Text(name),
            f"{used:,}",
            f"{last:,}",
            "–" if weight is None else f"{weight:.3g}",
            "–" if norm is None else f"{norm:.3g}",
            ", ".join(map(str, nodes.get(name, []))),
            "" if since is None else datetime.fromtimestamp(since, UTC).strftime("%F %T UTC"),
        )
    new_console().print(table)


Site = Annotated[str, typer.Argument(metavar="NAME", help="The site's name.", show_default=False)]


@app.command("quarantine")
def quarantine_command(ledger: Ledger, name: Site) -> None:
    """Ask a site no more, and use none of its updates, until `fedtide ledger release`.

    It holds from now on, for a federation that is running as well as for later submissions. What
    the model owes to earlier updates of the site remains: see `fedtide ledger rollback`.

    Example: fedtide ledger quarantine sqlite:///ledger.db site-a
    """
    from fedtide.flower.ledger.ledger_maintenance import quarantine

    quarantine(ledger, name, begins=True)
    print(f"{name!r} is quarantined: fedtide ledger release LEDGER NAME ends it")


@app.command("release")
def release_command(ledger: Ledger, name: Site) -> None:
    """End the quarantine of a site, which takes part again from the next round on.

    Example: fedtide ledger release sqlite:///ledger.db site-a
    """
    from fedtide.flower.ledger.ledger_maintenance import quarantine

    quarantine(ledger, name, begins=False)
    print(f"{name!r} is not quarantined")


@app.command("rollback")
def rollback_command(
    ledger: Ledger,
    state: Annotated[Path, typer.Option(help="The folder of the state.")],
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds remain.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take state and ledger back to the end of an earlier round, permanently.

    Stop the federation and back up both first. The next submission goes on from there. Only states
    that were kept can be returned to: FedTide(keep_every=10) keeps every tenth. A federation with
    privacy cannot be rolled back.

    Example: fedtide ledger rollback sqlite:///ledger.db --state state --rounds 100
    """
    from fedtide.flower.ledger.ledger import read_rounds
    from fedtide.flower.server.recovery import roll_back

    later = sum(t >= rounds for t in read_rounds(ledger)["round"])
    print(f"removes {quantify(later, 'round')} from round {rounds} on, and their states")
    if _is_confirmed(yes):
        roll_back(state, ledger, rounds)
        print(f"the next submission goes on with round {rounds}")


@app.command("export")
def export_command(
    ledger: Ledger,
    out: Annotated[
        Path,
        typer.Argument(help="The file to write: .parquet, .csv or .jsonl.", show_default=False),
    ],
) -> None:
    """Write a ledger as a participation log, which audits and replays read.

    The columns are round, client, stage, weight, time and reason, and step_weight and norm of
    updates, which audits do not read. An existing file is replaced. The federation may be running:
    the log ends with its last complete round.

    fedtide audit log.parquet

    fedtide run experiment.yaml 'participation={type: replay, log: log.parquet}'
    """
    from fedtide.flower.ledger.ledger import read_history
    from fedtide.participation.log.tables import write_table

    log, rounds = read_history(ledger)
    write_table("log", out, log)
    print(f"{out}: {quantify(len(log), 'row')} of {quantify(len(rounds), 'round')}")
    if empty := len(rounds) - log["round"].n_unique():
        print(
            f"{empty:,} of them are without clients and have no rows: in a log, those between "
            "other rounds count as empty, and those before or after all others are lost"
        )
