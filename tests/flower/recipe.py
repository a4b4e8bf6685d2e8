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


*SERVER, SITES = commands_with("flower\nfedtide flower server fl.").splitlines()
SITE = commands_with("tar -xf site-a.tar\nsh").splitlines()
_ELSEWHERE = ("python3 -m venv", "export", "/opt/fedtide/bin/pip")
"""What commands of the page begin with that would change this machine."""


class Recipe:
    """The server and the sites of the page, in the folder of a federation, which ends them."""

    def __init__(self, federation: LocalFederation) -> None:
        self.federation, self.folder = federation, federation.folder
        self.home = federation.folder / "home"
        self.port, self.metrics = free_port(), free_port()
        self.work, self.etc = self.folder / "work", self.folder / "etc"
        for folder in (self.work, self.etc / "nginx/conf.d", self.etc / "systemd/system"):
            folder.mkdir(parents=True)

    def adapt(self, text: str, site: str = "site") -> str:
        """Return a text of the recipe with the names of this machine."""
        for written, here in {
            "listen 443": f"listen 127.0.0.1:{self.port}",
            "localhost:443": f"localhost:{self.port}",
            "fl.example.org": "localhost",
            "--port 9571": f"--port {self.metrics}",
            "127.0.0.1:8000": self.federation.address,
            "--port 8000": f"--port {self.federation.port}",
            "/var/lib/flower/site": str(self.home / site),
            "/var/lib/flower": str(self.home),
            "/var/lib/fedtide": str(self.folder),
            "/etc/": f"{self.etc}/",
            "/opt/fedtide/bin/pip": "true",
            "/opt/fedtide/bin": str(PROGRAMS),
            "-o flower ": "",
            "chown -R flower": "true",
            "id -u flower": "true",
            "runuser -u flower -- ": "",
            "systemctl": "true",
        }.items():
            text = text.replace(written, here)
        return text

    def run(self, commands: list[str], site: str = "site-a") -> str:
        """Run commands of the page but those that would change this machine; return the output."""
        said = ""
        for line in commands:
            if line.startswith(_ELSEWHERE):
                continue
            command = self.adapt(line.replace("site-a", site))
            if line.startswith("sh "):
                for file in (self.work / command.split()[1]).parent.iterdir():
                    if file.is_file():
                        file.write_text(self.adapt(file.read_text(), site))
            status, output = self.command(command)
            assert status == 0, output
            said += output
        return said

    def start_nginx(self) -> subprocess.Popen[bytes]:
        """Start nginx with the configuration of the recipe, and wait for it."""
        folder = self.etc / "nginx"
        configuration = folder / "nginx.conf"
        user = "root" if os.geteuid() == 0 else "nobody"
        configuration.write_text(_MAIN.format(folder=folder, user=user), encoding="utf-8")
        nginx = self.federation.start("nginx", shutil.which("nginx"), "-c", str(configuration))
        wait_until(lambda: listens(self.port), "nginx")
        return nginx

    def start_unit(self, name: str, site: str = "", *more: str) -> subprocess.Popen[bytes]:
        """Start the program of a systemd unit, whose log has its name or the site's."""
        unit = (self.etc / "systemd/system" / f"{name}.service").read_text(encoding="utf-8")
        [command] = re.findall(r"^ExecStart=(.*)$", unit.replace("\\\n", ""), re.MULTILINE)
        words = shlex.split(command)
        return self.federation.start(site or name, *words, *more)

    def command(self, command: str, home: Path | None = None) -> tuple[int, str]:
        """Run a command with the operator's configuration of Flower or one's own.

        Returns:
            Its exit status, and what it says.
        """
        done = subprocess.run(
            ["sh", "-c", f"exec {command}"],
            cwd=self.work,
            env=self.federation.environment() | {"FLWR_HOME": str(home or self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        return done.returncode, done.stdout

    def select(self, query: str) -> list[tuple]:
        """Return rows of the SuperLink's database."""
        uri = f"file:{self.home / 'superlink.db'}?mode=ro"
        with sqlite3.connect(uri, uri=True) as database:
            return sorted(database.execute(query).fetchall())
