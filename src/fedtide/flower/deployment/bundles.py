"""The files that a server and its sites install: one folder for the server, a tar for each site."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path

from fedtide.errors import InvalidInputError
from fedtide.flower.deployment.certificates import (
    write_certificates,
    write_private,
    write_site_key,
)
from fedtide.flower.registration import register_site

_FILES = Path(__file__).parent / "files"
_SERVER = ("fleet.conf", "config.toml", "run.toml", "superlink.service", "federation.service")
_EXAMPLE, _SETTINGS = "fl.example.org", "'partition-id=0 num-partitions=3'"  # in these files


def write_server(folder: Path, address: str, app: Path) -> None:
    """Write what a server installs with `sh install.sh`; again to renew its certificates.

    Args:
        folder: for the files; the authority in it stays.
        address: the name or the IP address to which sites connect.
        app: the folder of the Flower app that the federation runs.

    Raises:
        InvalidInputError: see `write_certificates`; `app`: no app.
    """
    if not (app / "pyproject.toml").is_file():
        raise InvalidInputError(
            f"app: {app} is no folder with a pyproject.toml; copy the example's with `fedtide "
            "examples flower`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_certificates(folder, address)
    host = f"[{address}]" if ":" in address else address
    for name in _SERVER:
        _fill(name, folder / name, {_EXAMPLE: host})
    _fill("install-server.sh", folder / "install.sh", {})
    (folder / "address").write_text(host, encoding="utf-8")
    _copy_app(app, folder / "app")


def write_site(file: Path, server: Path, name: str, node_config: str, superlink: str) -> str:
    """Write what a site installs as a tar, register its key, and return Flower's output.

    Args:
        file: the tar, which only its owner can read: whoever has it is the site.
        server: the folder of `write_server`.
        name: of the site.
        node_config: settings of this site for the app, as for Flower's `--node-config`.
        superlink: the name of a connection in Flower's config.toml.

    Raises:
        InvalidInputError: see `register_site`; `server`: it is no such folder.
    """
    if not (server / "address").is_file():
        raise InvalidInputError(f"server: {server} is not what `fedtide flower server` has written")
    host = (server / "address").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        write_site_key(folder)
        shutil.copy(server / "ca.crt", folder)
        _copy_app(server / "app", folder / "app")
        _fill("install-site.sh", folder / "install.sh", {})
        quoted = json.dumps(node_config, ensure_ascii=False)  # systemd and TOML read it as JSON
        _fill("site.toml", folder / "site.toml", {_EXAMPLE: host, _SETTINGS: quoted})
        quoted = quoted.replace("%", "%%").replace("$", "$$")
        unit = {_EXAMPLE: host, _SETTINGS: quoted}
        _fill("supernode.service", folder / "supernode.service", unit)
        (folder / "requirements.txt").write_text(_requirements(server / "app"), encoding="utf-8")
        said = register_site(folder / "key.pub", name, superlink)
        write_private(file, b"")
        with tarfile.open(file, "w") as tar:
            tar.add(folder, name)
    return said


def _fill(name: str, file: Path, values: dict[str, str]) -> None:
    text = (_FILES / name).read_text(encoding="utf-8")
    for written, value in values.items():
        text = text.replace(written, value)
    file.write_text(text, encoding="utf-8")


def _copy_app(app: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__"))


def _requirements(app: Path) -> str:
    """Return this version of fedtide and of Flower, and what the app needs."""
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [f"fedtide[flower]=={version('fedtide')}", f"flwr=={version('flwr')}"]
    return "\n".join([*own, *project.get("dependencies", [])]) + "\n"
