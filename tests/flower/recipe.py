"""The recipe of docs/deploy-tls.md, carried out on this machine.

Only what a reader would change as well differs from the page and from the files in `deploy`: the
server's name, folders, ports and accounts. Nothing listens on anything but 127.0.0.1.
"""

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from fedtide.flower.demo import free_port, listens

from .processes import PROGRAMS, LocalFederation, wait_until

ROOT = Path(__file__).parents[2]
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
    page = (ROOT / "docs" / "deploy-tls.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    [block] = [text for text in blocks if words in text]
    return block


SERVER, SITE = (commands_with(f"--now {unit}") for unit in ("superlink", "supernode"))
_REGISTER, _ = commands_with("register site-a.pub").splitlines()


class Recipe:
    """The server and the sites of the page, in the folder of a federation, which ends them."""

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
            "/opt/fedtide/bin": str(PROGRAMS),
            "-o flower ": "",
        }.items():
            text = text.replace(written, here)
        return text

    def run(self, commands: str) -> None:
        """Run commands of the page, except those that need systemd."""
        own = [x for x in self.adapt(commands).splitlines() if not x.startswith("systemctl")]
        command = ["sh", "-ec", "\n".join(own)]
        done = subprocess.run(
            command, cwd=self.deploy, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr

    def start_nginx(self) -> subprocess.Popen[bytes]:
        """Start nginx with the configuration of the recipe, and wait for it."""
        folder = self.etc / "nginx"
        configuration = folder / "nginx.conf"
        user = "root" if os.geteuid() == 0 else "nobody"
        configuration.write_text(_MAIN.format(folder=folder, user=user), encoding="utf-8")
        nginx = self.federation.start("nginx", shutil.which("nginx"), "-c", str(configuration))
        wait_until(lambda: listens(self.port), "nginx")
        return nginx

    def start_unit(self, name: str, site: str = "site-a", *more: str) -> subprocess.Popen[bytes]:
        """Start the program of a systemd unit, for a site under its own name."""
        unit = (self.etc / "systemd/system" / f"{name}.service").read_text(encoding="utf-8")
        [command] = re.findall(r"^ExecStart=(.*)$", unit.replace("\\\n", ""), re.MULTILINE)
        words = shlex.split(command.replace("site-a", site))
        return self.federation.start(site if name == "supernode" else name, *words, *more)

    def command(self, command: str, home: Path | None = None) -> tuple[int, str]:
        """Run a command with the operator's configuration of Flower or one's own.

        Returns:
            Its exit status, and what it says.
        """
        done = subprocess.run(
            ["sh", "-c", f"exec {command}"],
            cwd=self.deploy,
            env=self.federation.environment() | {"FLWR_HOME": str(home or self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        return done.returncode, done.stdout

    def register(self, key: str, name: str) -> tuple[int, str]:
        """Register a key with the command of the page."""
        return self.command(_REGISTER.replace("site-a.pub", f"{key}.pub").replace("site-a", name))

    def select(self, query: str) -> list[tuple]:
        """Return rows of the SuperLink's database."""
        uri = f"file:{self.home / 'superlink.db'}?mode=ro"
        with sqlite3.connect(uri, uri=True) as database:
            return sorted(database.execute(query).fetchall())
