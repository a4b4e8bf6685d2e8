"""The command line."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from types import FrameType

import click
import typer
from typer.core import TyperGroup

from fedtide.errors import BadInput, Interrupted, did_you_mean

COMMANDS = {
    "run": "fedtide.commands:run",
    "sweep": "fedtide.sweep.command:sweep_command",
    "papers": "fedtide.papers.command:papers_command",
    "compare": "fedtide.commands:compare",
    "report": "fedtide.report.command:report_command",
    "audit": "fedtide.audit.command:audit_command",
    "flower": "fedtide.flower.command:flower_command",
}
"""Where each command's function is. Only the one that is asked for is imported."""

_typer = functools.partial(
    typer.Typer, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)


class _Commands(TyperGroup):
    """Finds commands by name when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            ctx.fail(f"there is no command {cmd_name!r}; {did_you_mean(cmd_name, COMMANDS)}")
        module, function = COMMANDS[cmd_name].split(":")
        one = _typer()
        one.command(cmd_name)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(one)


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
    except BadInput as error:
        print(f"fedtide: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as error:
        print(f"fedtide: {error}", file=sys.stderr)
        sys.exit(130)


def _end(number: int, frame: FrameType | None) -> None:
    """End where there is nothing to save yet, or no longer."""
    raise Interrupted("interrupted; the same command with --resume goes on")
