"""`fedtide audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedtide.atomic_io import write_text
from fedtide.auditing.api import audit
from fedtide.auditing.output.terminal import show
from fedtide.auditing.recommend.step_sizes import Training
from fedtide.errors import InvalidInputError


def audit_command(
    log: Annotated[
        str,
        typer.Argument(
            help="A participation log (.parquet, .csv, .jsonl), a run's folder, or the URL of a "
            "deployment's ledger (sqlite:///ledger.db).",
            show_default=False,
        ),
    ],
    clients: Annotated[
        int | None, typer.Option(help="How many clients there are, those that never came included.")
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(help="A table of the clients: column 'client', columns of groups, 'weight'."),
    ] = None,
    groups: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The roster's column to report by.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="What the log calls round, client or stage."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything there, for machines.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page there.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Check the advice: replay it on quadratics.")
    ] = False,
    dimension: Annotated[
        int, typer.Option(help="The number of the model's parameters, for the methods' cost.")
    ] = 1_000_000,
    tolerance: Annotated[
        float, typer.Option(help="How near to even a window must be (paper 000, equation 15).")
    ] = 0.1,
    smoothness: Annotated[
        float | None, typer.Option("-L", "--smoothness", help="L: learning rates by the theorems.")
    ] = None,
    noise: Annotated[float, typer.Option("--sigma", help="σ of the stochastic gradients.")] = 1.0,
    divergence: Annotated[float, typer.Option("--delta", help="δ between clients.")] = 1.0,
    steps: Annotated[int, typer.Option(help="I, local steps in a round.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the replay.")] = 0,
) -> None:
    """Say whose model a participation log trains, and which method would fix it.

    Needs neither data nor a model: one row for each round and client that took part is enough.
    Rounds count from the first to the last of the log; a round without rows is one with nobody.

    Examples:

    fedtide audit log.parquet --clients 250 --html audit.html

    fedtide audit log.csv --columns round=server_round --roster clients.csv --groups region

    fedtide audit runs/digits/fedau/seed-1 --simulate --json audit.json
    """
    training = None
    if smoothness is not None:
        training = Training(smoothness, noise, divergence, steps=steps)
    with _progress() as progress:
        task = progress.add_task("reading", total=1.0)
        found = audit(
            log,
            clients=clients,
            roster=roster,
            groups=groups,
            columns=_mapping(columns or []),
            training=training,
            dimension=dimension,
            tolerance=tolerance,
            simulate=simulate,
            seed=seed,
            watch=lambda name, share: progress.update(task, description=name, completed=share),
        )
    if json_file is not None:
        text = json.dumps(_finite(found.plain()), indent=1, ensure_ascii=False) + "\n"
        write_text(json_file, text, field="json", hint="choose another place")
    if html is not None:
        from fedtide.auditing.output.html_page import write_page  # brings matplotlib

        write_page(found, html)
    show(found, Console())


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _mapping(pairs: list[str]) -> dict[str, str]:
    """Return what was given as NAME=COLUMN."""
    mapping = {}
    for pair in pairs:
        name, sign, column = pair.partition("=")
        if not (name and sign and column):
            raise InvalidInputError(
                f"columns: {pair!r} is not NAME=COLUMN; write round=server_round"
            )
        mapping[name] = column
    return mapping


def _finite(value: Any) -> Any:
    """Return plain data with NumPy's numbers as Python's, and None for what JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if abs(value) < float("inf") else None
    return value
