"""The commands `fedtide flower demo` and `fedtide flower register`."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedtide.errors import Interrupted, InvalidInputError, MissingExtraError
from fedtide.plotting.console import new_console

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Run a real federation on this machine with Flower, or register a site with a server.",
)


@app.command("demo")
def demo_command(
    rounds: Annotated[int, typer.Option(min=2, help="How many rounds.")] = 12,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for logs, state and ledger.", show_default="none is kept"),
    ] = None,
) -> None:
    """Run a real federation on this machine: a SuperLink and five SuperNodes with Flower.

    Each client holds two of the ten handwritten digits; three clients take part only now and then.
    The method is FedAU. Afterwards an audit of the ledger shows which objective plain averaging
    would have minimised. All processes end with the command.

    Example: fedtide flower demo --rounds 20
    """
    _require_flower()
    if out is not None and out.exists():
        raise InvalidInputError(f"out: {out} exists; choose another")
    try:
        with tempfile.TemporaryDirectory(prefix="fedtide-") as temporary:
            _run(out or Path(temporary) / "demo", rounds)
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


def _run(folder: Path, rounds: int) -> None:
    from fedtide.auditing.api import audit
    from fedtide.auditing.output.terminal import show
    from fedtide.flower.demo import SITES, run_demo

    console = new_console()
    ledger = run_demo(
        folder, rounds, lambda line: console.print(line, highlight=False, markup=False)
    )
    show(audit(ledger, clients=len(SITES)), console)
