"""A complete Flower federation on this machine, whose processes end with its context (Linux)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedtide.errors import InvalidInputError
from fedtide.flower.demo import FAST_POLLING, free_port, listens

from .certificates import make_certificates, make_node_key

HOST = "127.0.0.1"
_START_TIMEOUT = 120.0  # seconds until a SuperLink must listen
_STOP_TIMEOUT = 15.0  # seconds until processes that ignore SIGTERM are killed
_MARK = "FEDTIDE_LOCAL_FEDERATION"


class LocalFederation:
    """A SuperLink and its SuperNodes on the loopback device; leaving the context ends them all.

    Every process gets its own session, so that Ctrl-C does not end it out of order, and a mark in
    its environment, by which the processes that Flower starts in turn are found (some in further
    sessions).

    Args:
        folder: for logs, keys and Flower's own files.
        tls: whether the SuperLink uses TLS and admits only nodes with registered keys.
    """

    def __init__(self, folder: Path, tls: bool = False) -> None:
        self.folder, self.tls = folder.resolve(), tls
        self.port = free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        self._mark = f"{_MARK}={self.folder}"
        (self.folder / "home").mkdir(parents=True)
        security = "insecure = true"
        if tls:
            make_certificates(self.folder)
            security = f'root-certificates = "{self.folder / "ca.crt"}"'
        config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
        (self.folder / "home" / "config.toml").write_text(
            config + security + "\n", encoding="utf-8"
        )

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        """Send a signal to every process, including new ones, until all have ended."""
        deadline, signalled = time.monotonic() + _STOP_TIMEOUT, set[int]()
        while (running := self._running()) and time.monotonic() < deadline:
            for process in running - signalled:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            signalled |= running
            time.sleep(0.1)

    def _running(self) -> set[int]:
        return {*self.processes(), *(p.pid for p in self._started if p.poll() is None)}

    def processes(self, program: str = "") -> list[int]:
        """Return the ids of this federation's processes whose command contains `program`."""
        for started in self._started:
            started.poll()  # removes ended processes from the system's list
        commands = find_processes(self._mark)
        return [process for process, command in commands.items() if program in command]

    def start_superlink(self, database: bool = True) -> subprocess.Popen[bytes]:
        """Start the SuperLink and wait until it listens.

        Args:
            database: whether it keeps its state in a file, from which it can be restarted; writing
                takes up to a second for each message on a busy disk.

        Raises:
            InvalidInputError: it does not listen in time.
        """
        security = ["--insecure"]
        if self.tls:
            files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
            security = [f"--ssl-{name}={self.folder / file}" for name, file in files.items()]
            security.append("--enable-supernode-auth")
        options = ["--host", HOST, "--port", str(self.port)]
        if database:
            options += ["--database", str(self.folder / "superlink.db")]
        options += ["--disable-runtime-dependency-installation"]
        superlink = self._start("superlink", "flower-superlink", *security, *options)
        deadline = time.monotonic() + _START_TIMEOUT
        while not listens(self.port):
            if superlink.poll() is not None or time.monotonic() > deadline:
                raise InvalidInputError(
                    f"flower: the SuperLink does not start; see {self.folder / 'superlink.log'}"
                )
            time.sleep(0.1)
        return superlink

    def register(self, name: str) -> None:
        """Make a key for a node and register it under the node's name."""
        make_node_key(self.folder / name)
        key = str(self.folder / f"{name}.pub")
        self.command("supernode", "register", key, "here", "--name", name)

    def start_node(self, name: str, **config: Any) -> subprocess.Popen[bytes]:
        """Start a SuperNode.

        Args:
            name: of the node, its key and its log.
            **config: its node config, with _ in place of -.
        """
        security = ["--insecure"]
        if self.tls:
            security = ["--root-certificates", str(self.folder / "ca.crt")]
            security += ["--auth-supernode-private-key", str(self.folder / name)]
        settings = {"name": f'"{name}"'} | {k.replace("_", "-"): v for k, v in config.items()}
        options = ["--superlink", self.address, "--host", HOST, "--port", str(free_port())]
        options += ["--node-config", " ".join(f"{key}={v}" for key, v in settings.items())]
        return self._start(name, "flower-supernode", *security, *options)

    def wait_for_nodes(self, names: Iterable[str]) -> None:
        """Wait until these nodes are online.

        Raises:
            InvalidInputError: one is not in time.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        for name in names:
            log = self.folder / f"{name}.log"
            while "SuperNode ID" not in log.read_text(encoding="utf-8"):
                if time.monotonic() > deadline:
                    raise InvalidInputError(f"flower: {name} does not come online; see {log}")
                time.sleep(0.1)

    def submit(self, app: Path, **config: Any) -> subprocess.Popen[bytes]:
        """Submit an app as a run; the process that this returns prints the run's log as it goes.

        Args:
            app: the folder of a Flower app.
            **config: overrides the app's config, with _ in place of -.
        """
        pairs = {key.replace("_", "-"): value for key, value in config.items()}
        overrides = " ".join(f"{key}={_toml(value)}" for key, value in pairs.items())
        arguments = ["run", str(app), "here", "--stream", "--run-config", overrides]
        process = subprocess.Popen(
            [_find_program("flwr"), *arguments],
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def command(self, *words: str) -> str:
        """Run a `flwr` command and return what it prints.

        Raises:
            InvalidInputError: it fails.
        """
        result = subprocess.run(
            [_find_program("flwr"), *words],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise InvalidInputError(
                f"flower: flwr {' '.join(words)} fails: {result.stdout}{result.stderr}"
            )
        return result.stdout

    def _start(
        self, name: str, program: str, *arguments: str, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [_find_program(program), *arguments],
                env=self._environment(),
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        """Return the environment in which Flower finds its programs and stays in this folder."""
        folders = [Path(sys.executable).parent, os.environ.get("PATH", os.defpath)]
        return (
            os.environ
            | FAST_POLLING
            | {
                "PATH": os.pathsep.join(map(str, folders)),
                "FLWR_HOME": str(self.folder / "home"),
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "OMP_NUM_THREADS": "1",
                _MARK: str(self.folder),
            }
        )


def find_processes(mark: str) -> dict[int, str]:
    """Return the commands of the processes with `mark`, NAME=VALUE, in their environment, by id.

    Their descendants are included, as Flower hides the environment of some.
    """
    commands, parents, found = {}, {}, set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            process = int(entry.name)
            status, parent = (
                (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            )
            if status != "Z":
                command = (entry / "cmdline").read_text(errors="replace")
                commands[process], parents[process] = command.replace("\0", " "), int(parent)
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(process)
    while more := {n for n, parent in parents.items() if parent in found} - found:
        found |= more
    return {process: commands[process] for process in found}


def _find_program(name: str) -> str:
    """Return the path of one of Flower's programs, which are installed next to Python."""
    return str(Path(sys.executable).parent / name)


def _toml(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str | Path) else str(value)
