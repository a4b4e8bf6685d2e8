"""The commands `fedtide flower demo` and `fedtide flower register`."""

from __future__ import annotations

import importlib.util
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedtide.errors import Interrupted, InvalidInputError, MissingExtraError
from fedtide.plotting.console import new_console

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Run a real federation on this machine with Flower, or register a site with a server.",
)


@app.command("demo")
def demo_command(
    rounds: Annotated[int, typer.Option(min=2, help="How many rounds.")] = 12,
    tls: Annotated[
        bool, typer.Option("--tls", help="Use TLS and a registered key for each node.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for logs, state and ledger.", show_default="none is kept"),
    ] = None,
) -> None:
    """Run a real federation on this machine: a SuperLink and five SuperNodes with Flower.

    Each client holds two of the ten handwritten digits; three clients take part only now and then.
    The method is FedAU. Afterwards an audit of the ledger shows which objective plain averaging
    would have minimised, and a simulation shows what other methods would have learned. All
    processes end with the command.

    Example: fedtide flower demo --tls
    """
    _require_flower()
    if out is not None and out.exists():
        raise InvalidInputError(f"out: {out} exists; choose another")
    if not hasattr(signal, "SIGHUP"):
        raise InvalidInputError(
            "flower: the demo needs Linux or macOS; on Windows, use the Windows Subsystem for Linux"
        )
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else ignored, as under nohup
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="fedtide-") as temporary:
            _run(out or Path(temporary) / "demo", rounds, tls)
    except Interrupted:
        raise Interrupted("interrupted; all processes of the federation have ended") from None


@app.command("register")
def register_command(
    key: Annotated[Path, typer.Argument(help="The site's public key, such as site-a.pub.")],
    name: Annotated[str, typer.Argument(help="The site's name, which no other site has.")],
    superlink: Annotated[
        str, typer.Option(help="The connection to the SuperLink in Flower's config.toml.")
    ] = "ours",
) -> None:
    """Register the key of a site with a SuperLink; a name already in use is refused.

    Example: fedtide flower register site-a.pub site-a
    """
    _require_flower()
    from fedtide.flower.registration import register_site

    print(register_site(key, name, superlink))


def _require_flower() -> None:
    for library in ("flwr", "sqlalchemy"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError("flower", "flower")


def _run(folder: Path, rounds: int, tls: bool) -> None:
    from fedtide.auditing.api import audit
    from fedtide.auditing.output.terminal import show
    from fedtide.flower.dev.demo import SITES, compare_methods, run_demo

    console = new_console()
    ledger = run_demo(
        folder, rounds, tls, lambda line: console.print(line, highlight=False, markup=False)
    )
    show(audit(ledger, clients=len(SITES)), console)
    table = Table("on the same ledger", box=None, header_style="bold", pad_edge=False)
    for column in ("accuracy", "of the worst client"):
        table.add_column(column, justify="right")
    for outcome in compare_methods(folder):
        worst = f"{outcome.worst_accuracy:.0%} ({outcome.worst_client})"
        table.add_row(outcome.method, f"{outcome.accuracy:.0%}", worst)
    console.print("", table)
