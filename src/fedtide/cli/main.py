"""The entry point of the command line: finds, imports and runs one command."""

from __future__ import annotations

import functools
import gc
import importlib
import io
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedtide.cli.entry import end_at_once_on_signals
from fedtide.errors import Interrupted, InvalidInputError, RunFailedError, did_you_mean
from fedtide.provenance import versions

COMMANDS = {
    "run": "Run an experiment, or several methods and seeds of one, and compare the results.",
    "sweep": "Run an experiment under grids and lists of values, methods and seeds.",
    "papers": "List the papers' experiments, or run one and compare it with the published numbers.",
    "leaderboard": "Compare all methods under many patterns of participation, each tuned with the "
    "same budget.",
    "examples": "List the examples that come with fedtide, or copy one to start from.",
    "keys": "Explain the keys of an experiment file: what each takes, its default and its meaning.",
    "compare": "Compare finished runs: one row per method, mean ± standard deviation over its "
    "seeds.",
    "report": "Write an HTML report on runs: learning curves, participation, and influence of "
    "clients.",
    "audit": "Report which objective a participation log trains on, and which method corrects it.",
    "ledger": "Check, migrate, prune or export the ledger of a federation.",
    "watch": "Serve a page, and metrics for Prometheus, on a federation from its ledger.",
    "flower": "Deploy a federation with Flower, or run one on this machine.",
}
"""The commands with the first paragraph of their help, each in a module of this package.

Only the one that runs is imported, so `fedtide --help` does not load PyTorch.
"""

_MODULES = {"ledger": "ledger_commands"}
"""Names of modules that are not those of their commands."""

_typer = functools.partial(
    typer.Typer, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


class _LazyCommands(TyperGroup):
    """Lists the commands by their summaries and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return click.Command(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS:
            ctx.fail(f"unknown command {name!r}; {did_you_mean(name, COMMANDS)}")
        gc.disable()  # imports leave no garbage, and looking for it takes a sixth of their time
        try:
            module = importlib.import_module(f"fedtide.cli.{_MODULES.get(name, name)}")
        finally:
            gc.enable()
        if (command := getattr(module, "app", None)) is None:  # without sub-commands
            command = _typer()
            command.command(name)(getattr(module, f"{name}_command"))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        return name, typer.main.get_command(command), args[1:]


_REPEAT = "repeat the command"
_HINTS = {
    "run": "repeat the command with --resume to continue",
    "sweep": "repeat the command to continue",
    "papers": "repeat the command to continue",
    "leaderboard": "repeat the command to continue",
}
"""How to continue after an interruption; the other commands start over."""

app = _typer(cls=_LazyCommands, no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(versions(["fedtide"]))
        raise typer.Exit


@app.callback()
def _main(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Federated learning for clients that come and go: simulate, compare, audit and deploy.

    Start with `fedtide run digits`. `fedtide COMMAND --help` explains a command,
    and `fedtide keys` the keys of an experiment file.
    """


def main() -> None:
    """Run the command line.

    Exit status 0: done, 1: a run failed, 2: invalid input, 130: interrupted.
    """
    # On busy cores, OpenMP threads that spin while they wait can cost a hundred times the actual
    # work. PyTorch reads this setting when it is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    end_at_once_on_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # its encoding may lack symbols such as Σ
    try:
        app(standalone_mode=True)
    except InvalidInputError as error:
        print(f"fedtide: {error}", file=sys.stderr)
        sys.exit(2)
    except RunFailedError as error:
        print(f"fedtide: {error}", file=sys.stderr)
        sys.exit(1)
    except Interrupted as error:
        hint = f"; {_HINTS.get(''.join(sys.argv[1:2]), _REPEAT)}" if error.hint else ""
        print(f"fedtide: {error.what}{hint}", file=sys.stderr)
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal outside the training loop, where there is nothing to save."""
    raise Interrupted("interrupted", _REPEAT)
