"""The command `fedtide watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedtide.auditing.log.client_table import ClientTable
from fedtide.errors import Interrupted
from fedtide.flower.ledger.ledger import read_rounds
from fedtide.monitoring.monitor import Monitor, MonitorSettings
from fedtide.monitoring.server import PORT, serve


def watch_command(
    ledger: Annotated[
        str,
        typer.Argument(
            help="The URL of a ledger: sqlite:///ledger.db, with #NAME for one of several "
            "federations.",
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(help="The port; 0: a free one.")] = PORT,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; 0.0.0.0: all, open to the network."),
    ] = "127.0.0.1",
    clients: Annotated[
        int | None,
        typer.Option(
            help="Number of clients, including those that never took part.",
            show_default="those of the ledger",
        ),
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(help="A table of all clients: column 'client', and 'weight' for fair shares."),
    ] = None,
    window: Annotated[
        int, typer.Option(help="Number of last rounds for influence, skew and rates.")
    ] = 100,
    client_series: Annotated[
        int,
        typer.Option(help="Export metrics of single clients if there are at most this many."),
    ] = 100,
) -> None:
    """Serve a page, and metrics for Prometheus, on a federation from its ledger.

    The page shows which clients are present, each client's influence against its fair share,
    rate and absences, updates that were not used and why, and the skew of the last rounds. It
    updates itself and loads nothing from other servers. Prometheus reads /metrics. The federation
    need not be running, and the ledger may be empty. Ctrl-C ends the command.

    Example: fedtide watch sqlite:///ledger.db
    """
    table = None if roster is None else ClientTable.from_file(roster)
    settings = MonitorSettings(clients, table, window, client_series)
    read_rounds(ledger)  # a ledger that cannot be read is an error now, not a sentence on the page
    try:
        with serve(Monitor(ledger, settings), host, port) as server:
            print(f"watch: {server.url}, metrics at {server.url}metrics", flush=True)
            while True:
                time.sleep(3600.0)
    except Interrupted:
        raise typer.Exit from None
