"""The commands `fedtide flower ...`: a demo, and the deployment of a federation."""

from __future__ import annotations

import importlib.util
import signal
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
    help="Deploy a federation with Flower, or run one on this machine.",
)


_SuperLink = Annotated[
    str, typer.Option(help="The connection to the SuperLink in Flower's config.toml.")
]


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
    The method is FedVARP. Afterwards FedAvg is simulated with the same rounds, for comparison, and
    an audit of the ledger shows which objective it minimises. All processes end with the command.

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


@app.command("server")
def server_command(
    address: Annotated[str, typer.Argument(help="The server's name or IP address for the sites.")],
    app: Annotated[Path, typer.Argument(help="The folder of the Flower app to run.")] = Path(
        "flower"
    ),
    out: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("server"),
) -> None:
    """Write all that a server installs: certificates, units, nginx's and the run's configuration.

    Where the folder has ca.key and ca.crt, the authority stays and the other certificates, which
    last a year, are renewed.

    Example: fedtide flower server fl.example.org
    """
    _require_flower()
    from fedtide.flower.deployment.bundles import write_server

    write_server(out, address, app)
    print(f"next, as root: sh {out}/install.sh")


@app.command("site")
def site_command(
    names: Annotated[list[str], typer.Argument(help="The sites' names, which no others have.")],
    server: Annotated[
        Path, typer.Option(help="The folder that fedtide flower server has written.")
    ] = Path("server"),
    node_config: Annotated[
        str | None,
        typer.Option(
            help="Settings of the site for the app, as in Flower's --node-config.",
            show_default="partition-id=0 num-partitions=N for the first of N sites, and so on",
        ),
    ] = None,
    superlink: _SuperLink = "ours",
) -> None:
    """Write what each site installs, NAME.tar, and register its key with the SuperLink.

    It holds the site's private key: send it on a private way, and delete it here afterwards.

    Example: fedtide flower site site-a site-b site-c
    """
    _require_flower()
    from fedtide.flower.deployment.bundles import write_site

    for number, name in enumerate(names):
        settings = node_config or f"partition-id={number} num-partitions={len(names)}"
        print(write_site(Path(f"{name}.tar"), server, name, settings, superlink))
        print(f"next: unpack {name}.tar at {name} and, as root there, sh {name}/install.sh")


@app.command("check")
def check_command(
    folder: Annotated[Path, typer.Argument(help="The site's, from its tar.")] = Path(
        "/var/lib/flower/site"
    ),
) -> None:
    """Check a site from the inside: versions, server, key, data, and a local step.

    A line for each check; exit status 2: one has failed. install.sh of a site ends with it.

    Example: fedtide flower check
    """
    _require_flower()
    from fedtide.flower.deployment.site_check import check_site

    if not check_site(folder, print):
        raise typer.Exit(2)


@app.command("run")
def run_command(
    app: Annotated[Path, typer.Argument(help="The folder of the Flower app.")],
    superlink: _SuperLink = "ours",
    run_config: Annotated[
        Path, typer.Option(help="A TOML file with settings of the app, the same for every run.")
    ] = Path("run.toml"),
    host: Annotated[str, typer.Option(help="The address for metrics.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(help="The port for metrics on the run, for Prometheus.", show_default="none"),
    ] = None,
) -> None:
    """Submit an app to the SuperLink again after every stop, until a run has completed.

    With the same state and ledger, each run continues the last one. The end of this command stops
    the run. With a port, it goes on to serve the status of a run that has completed.

    Example: fedtide flower run flower --run-config run.toml
    """
    _require_flower()
    from fedtide.flower.deployment.resubmission import export_status, run_until_completed

    if port is not None and importlib.util.find_spec("prometheus_client") is None:
        raise MissingExtraError("port", "watch")
    report = (lambda status: None) if port is None else export_status(host, port)
    print(f"run: {run_until_completed(app, superlink, run_config, report)}", flush=True)
    if port is not None:
        signal.pause()


@app.command("register")
def register_command(
    key: Annotated[Path, typer.Argument(help="The site's public key, such as site-a.pub.")],
    name: Annotated[str, typer.Argument(help="The site's name, which no other site has.")],
    superlink: _SuperLink = "ours",
) -> None:
    """Register a key that a site has made itself; a name already in use is refused.

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
    from fedtide.flower.demo import METHOD, SITES, run_demo, simulate_average

    console = new_console()
    ledger = run_demo(
        folder, rounds, lambda line: console.print(line, highlight=False, markup=False)
    )
    accuracy, worst = simulate_average(ledger)
    console.print(
        f"\nAbove are the accuracies of {METHOD}, for all digits and for those of the worst site. "
        f"FedAvg, simulated with the same rounds, ends with {accuracy:.2f} and {worst:.2f}.\n",
        highlight=False,
    )
    show(audit(ledger, clients=len(SITES)), console)
