"""The command `fedtide watch`."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedtide.auditing.log.client_table import ClientTable
from fedtide.errors import Interrupted
from fedtide.flower.ledger.ledger import read_ledger_part
from fedtide.monitoring.monitor import Monitor, MonitorSettings
from fedtide.monitoring.server import PORT, serve

_PAUSE = 5.0  # seconds between two lines on how much of a large ledger is read


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
    superlink: Annotated[
        str | None,
        typer.Option(
            help="A connection in Flower's config.toml, such as ours, to show the status of the "
            "newest run and when the certificate expires."
        ),
    ] = None,
) -> None:
    """Serve a page, and metrics for Prometheus, on a federation from its ledger.

    The page shows which clients are present, each client's influence against its fair share,
    rate, absences and updates, what was measured, updates that were not used and why, and the skew
    of the last rounds. It
    updates itself and loads nothing from other servers. Prometheus reads /metrics. The federation
    need not be running, and the ledger may be empty. Ctrl-C ends the command.

    Example: fedtide watch sqlite:///ledger.db
    """
    table = None if roster is None else ClientTable.from_file(roster)
    settings = MonitorSettings(clients, table, window, client_series)
    # What cannot be read is an error now, not a sentence on the page.
    read_ledger_part(ledger, -1, 2)
    if superlink is not None:
        from fedtide.flower._flwr import ask_superlink  # needs fedtide[flower]

        ask_superlink(superlink)
        settings = replace(settings, ask_superlink=partial(ask_superlink, superlink))
    monitor = Monitor(ledger, settings)
    try:
        with serve(monitor, host, port) as server:
            print(f"watch: {server.url}, metrics at {server.url}metrics", flush=True)
            while True:
                time.sleep(_PAUSE)
                read, ended = monitor.progress
                if monitor.status is None and ended:
                    print(f"watch: {read:,} of {ended:,} rounds are read", flush=True)
    except Interrupted:
        raise typer.Exit from None
