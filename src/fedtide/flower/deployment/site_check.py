"""Checks a site from the inside: what it has installed, whom it reaches, and whether it trains."""

from __future__ import annotations

import socket
import ssl
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedtide.errors import InvalidInputError, first_line
from fedtide.flower._flwr import ask_client
from fedtide.flower.protocol import CHECK_ACTION, CHECK_QUERY

_TIMEOUT = 10.0  # seconds


def check_site(folder: Path, show: Callable[[str], None]) -> bool:
    """Check a site, show a line for each check, and return whether all succeeded.

    Args:
        folder: the site's, unpacked from what `fedtide flower site` has written.
        show: called with each line.
    """
    config = tomllib.loads((folder / "site.toml").read_text(encoding="utf-8"))
    checks: dict[str, Callable[[], str]] = {
        "versions": lambda: _check_versions(folder / "requirements.txt"),
        "server": lambda: _check_server(config["server"], folder / "ca.crt"),
        "key": lambda: _check_key(folder / "key"),
        "training": lambda: _check_training(folder / "app", config["node-config"]),
    }
    succeeded = True
    for name, check in checks.items():
        try:
            show(f"ok      {name}: {check()}")
        except Exception as failure:  # of the site's own code, too
            named = not isinstance(failure, InvalidInputError)
            show(f"FAILED  {name}: {first_line(failure, with_type=named)}")
            succeeded = False
    return succeeded


def _check_versions(requirements: Path) -> str:
    lines = requirements.read_text(encoding="utf-8").splitlines()
    pinned = [line.split("==") for line in lines[:2]]  # the app's own may have any form
    for name, wanted in pinned:
        if (here := version(name.partition("[")[0])) != wanted:
            raise InvalidInputError(f"{name} is {here} here, {wanted} on the server")
    return ", ".join(f"{name} {here}" for name, here in pinned)


def _check_server(server: str, authority: Path) -> str:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection((host, int(port)), _TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        return f"{server} has a certificate of {authority.name}"


def _check_key(file: Path) -> str:
    load_ssh_private_key(file.read_bytes(), None)
    return f"{file} can be read"


def _check_training(app: Path, node_config: str) -> str:
    """Have the app's client load its data and take a local step."""
    try:
        metrics = ask_client(app, node_config, CHECK_QUERY).content.metric_records["metrics"]
    except ValueError as error:
        if CHECK_ACTION not in str(error):
            raise
        return "not checked, as the app has no client made by fedtide.flower.client"
    return f"a local step on {metrics['num-examples']} samples, loss {metrics['train_loss']:.3g}"
