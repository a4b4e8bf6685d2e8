"""The recipe of docs/deploy.md, carried out on this machine.

Only what a reader would change as well differs from the page and from the files in `deploy`: the
server's name, folders, ports and accounts. Nothing listens on anything but 127.0.0.1.
"""

import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from .local_federation import LocalFederation, free_port
from .processes import DEADLINE, wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = str(Path(sys.executable).parent)

_MAIN = """
user {user};
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/conf.d/*.conf;
}}
"""
"""What a distribution's nginx.conf does, with every folder in one place."""


def needs(program: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test on machines without a program."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}")


def commands_with(words: str) -> str:
    """Return the block of commands on the page that contains these words."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    [block] = [text for text in blocks if words in text]
    return block


SERVER, SITE = (commands_with(f"--now {unit}") for unit in ("superlink", "supernode"))
_REGISTER, _ = commands_with("register site-a.pub").splitlines()


class Recipe:
    """The server and the sites of the page, in one folder.

    Args:
        federation: whose folder and environment the processes get, and which ends them.
    """

    def __init__(self, federation: LocalFederation) -> None:
        self.federation, self.folder = federation, federation.folder
        self.home, self.port = federation.folder / "home", free_port()
        self.deploy, self.etc = self.folder / "deploy", self.folder / "etc"
        for folder in ("nginx/conf.d", "systemd/system"):
            (self.etc / folder).mkdir(parents=True)
        for path in (p for p in (ROOT / "deploy").rglob("*") if p.is_file()):
            copy = self.deploy / path.relative_to(ROOT / "deploy")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self.adapt(path.read_text(encoding="utf-8")), encoding="utf-8")

    def adapt(self, text: str) -> str:
        """Return a text of the recipe with the names of this machine."""
        for written, here in {
            "listen 443": f"listen 127.0.0.1:{self.port}",
            "fl.example.org:443": f"localhost:{self.port}",
            "fl.example.org": "localhost",
            "127.0.0.1:8000": self.federation.address,
            "--port 8000": f"--port {self.federation.port}",
            "/var/lib/flower": str(self.home),
            "/var/lib/fedtide": str(self.folder),
            "/etc/": f"{self.etc}/",
            "/opt/fedtide/bin": PROGRAMS,
            "-o flower ": "",
        }.items():
            text = text.replace(written, here)
        return text

    def run(self, commands: str) -> None:
        """Run commands of the page, except those that need systemd."""
        lines = self.adapt(commands).splitlines()
        own = [line for line in lines if not line.startswith("systemctl")]
        done = subprocess.run(
            ["sh", "-ec", "\n".join(own)],
            cwd=self.deploy,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    def start_server(self) -> None:
        """Make the keys; start the SuperLink and nginx, and wait for both."""
        self.run(SERVER)
        self.start_unit("superlink")
        self.start_nginx()
        for port, what in ((self.federation.port, "SuperLink"), (self.port, "nginx")):
            wait_until(lambda port=port: listens("127.0.0.1", port), what)

    def start_nginx(self) -> None:
        """Start nginx with the configuration of the recipe."""
        folder = self.etc / "nginx"
        configuration = folder / "nginx.conf"
        user = "root" if os.geteuid() == 0 else "nobody"
        configuration.write_text(_MAIN.format(folder=folder, user=user), encoding="utf-8")
        self.federation._start("nginx", shutil.which("nginx"), "-c", str(configuration))

    def start_unit(self, name: str, site: str = "site-a", *more: str) -> subprocess.Popen[bytes]:
        """Start the program of a systemd unit, for a site under its own name."""
        unit = (self.etc / "systemd/system" / f"{name}.service").read_text(encoding="utf-8")
        [command] = re.findall(r"^ExecStart=(.*)$", unit.replace("\\\n", ""), re.MULTILINE)
        words = shlex.split(command.replace("site-a", site))
        return self.federation._start(site if name == "supernode" else name, *words, *more)


def listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def start(recipe: Recipe, command: str, home: Path | None = None) -> subprocess.Popen[str]:
    """Start a command, with the operator's configuration of Flower or one's own."""
    return subprocess.Popen(
        ["sh", "-c", f"exec {command}"],
        cwd=recipe.deploy,
        env=recipe.federation._environment() | {"FLWR_HOME": str(home or recipe.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def register(recipe: Recipe, key: str, name: str) -> tuple[int, str]:
    """Register a key with the command of the page; return its exit status and what it says."""
    process = start(recipe, _REGISTER.replace("site-a.pub", f"{key}.pub").replace("site-a", name))
    said, _ = process.communicate(timeout=DEADLINE)
    return process.returncode, said


def select(recipe: Recipe, query: str) -> list[tuple]:
    """Return rows of the SuperLink's database."""
    with sqlite3.connect(f"file:{recipe.home / 'superlink.db'}?mode=ro", uri=True) as database:
        return sorted(database.execute(query).fetchall())
