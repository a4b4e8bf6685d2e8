"""The command line."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from types import FrameType
from typing import NamedTuple

import click
import typer
from typer.core import TyperGroup

from fedtide.errors import Interrupted, InvalidInputError, did_you_mean


class _Command(NamedTuple):
    """Where a command's function is, and the first sentence of its documentation."""

    function: str
    summary: str


COMMANDS = {
    "run": _Command(
        "fedtide.cli.run:run",
        "Run an experiment, or several methods and seeds of one, and compare what comes out.",
    ),
    "sweep": _Command(
        "fedtide.cli.sweep:sweep_command",
        "Run an experiment under grids and lists of values, methods and seeds.",
    ),
    "papers": _Command(
        "fedtide.cli.papers:papers_command",
        "List the papers' experiments, or run one: published against measured, claim by claim.",
    ),
    "compare": _Command(
        "fedtide.cli.run:compare",
        "Compare finished runs: one row per method, mean ± standard deviation over its seeds.",
    ),
    "report": _Command(
        "fedtide.cli.report:report_command",
        "Write a page on runs: how methods learn, who takes part, whose objective is minimised.",
    ),
    "audit": _Command(
        "fedtide.cli.audit:audit_command",
        "Report which objective a participation log trains on, and which method corrects it.",
    ),
    "flower": _Command(
        "fedtide.cli.flower:flower_command",
        "Run a real federation on this machine: a SuperLink and five SuperNodes with Flower.",
    ),
}
"""Only the command that is asked for is imported: a list of them should not wait for PyTorch."""

_typer = functools.partial(
    typer.Typer, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)


class _Commands(TyperGroup):
    """Lists commands by their summaries, and imports the one that is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return click.Command(cmd_name, help=COMMANDS[cmd_name].summary)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS:
            ctx.fail(f"there is no command {name!r}; {did_you_mean(name, COMMANDS)}")
        module, function = COMMANDS[name].function.split(":")
        one = _typer()
        one.command(name)(getattr(importlib.import_module(module), function))
        return name, typer.main.get_command(one), args[1:]


app = _typer(cls=_Commands, no_args_is_help=True)


@app.callback()
def _main() -> None:
    """Federated learning for clients that come and go: say who takes part, train, compare."""


def main() -> None:
    """Run the command line: 0 done, 2 bad input, 130 interrupted."""
    # Where the cores are busy, a thread that spins while it waits for one that the system has set
    # aside costs more than all the work: measured up to a hundredfold. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    try:
        app(standalone_mode=True)
    except InvalidInputError as error:
        print(f"fedtide: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as error:
        print(f"fedtide: {error}", file=sys.stderr)
        sys.exit(130)


def _end(number: int, frame: FrameType | None) -> None:
    """End where there is nothing to save yet, or no longer."""
    raise Interrupted("interrupted; the same command with --resume goes on")
