"""A whole Flower federation on this machine: real processes, which end with whoever began them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedtide.errors import InvalidInputError, MissingExtraError
from fedtide.flower.dev.certificates import make_certificates, make_node_key

HOST = "127.0.0.1"
_STARTS_WITHIN = 120.0  # seconds until a SuperLink must listen
_ENDS_WITHIN = 15.0  # seconds until what was asked to end is killed
_MARK = "FEDTIDE_LOOPBACK"


class Loopback:
    """A SuperLink and its SuperNodes on the loopback device. Leaving the context ends them all.

    Every process is given a session of its own, so that Ctrl-C does not reach it before this has
    been able to end them all in order, and a mark in its environment, by which those that Flower
    starts in turn are found (it puts some of them into sessions of their own).

    Args:
        folder: where logs, keys and Flower's own files go.
        tls: whether the SuperLink speaks TLS and lets in only nodes whose keys are registered.
    """

    def __init__(self, folder: Path, tls: bool = False) -> None:
        self.folder, self.tls = folder.resolve(), tls
        self.port = free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        (self.folder / "home").mkdir(parents=True)
        how = "insecure = true"
        if tls:
            make_certificates(self.folder)
            how = f'root-certificates = "{self.folder / "ca.crt"}"'
        config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
        (self.folder / "home" / "config.toml").write_text(config + how + "\n", encoding="utf-8")

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
        self._end(signal.SIGTERM)
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        """Send a signal to every process, those that start meanwhile too, and wait for the end."""
        deadline, told = time.monotonic() + _ENDS_WITHIN, set[int]()
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in set(left) - told:
                _signal(process, number)
            told |= set(left)
            time.sleep(0.1)

    def processes(self, program: str = "") -> list[int]:
        """Return the ids of all processes of this federation that run a program of that name."""
        for started in self._started:
            started.poll()  # what has ended is to leave the list of processes
        return [
            process
            for process in _marked(f"{_MARK}={self.folder}")
            if program.encode() in _read(process, "cmdline")
        ]

    def start_superlink(self) -> subprocess.Popen[bytes]:
        """Start the SuperLink, with its state in a file, and wait until it listens.

        Raises:
            InvalidInputError: it does not.
        """
        how = ["--insecure"]
        if self.tls:
            files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
            how = [f"--ssl-{name}={self.folder / file}" for name, file in files.items()]
            how.append("--enable-supernode-auth")
        where = ["--host", HOST, "--port", str(self.port)]
        database = ["--database", str(self.folder / "superlink.db")]
        alone = "--disable-runtime-dependency-installation"
        superlink = self._start("superlink", "flower-superlink", *how, *where, *database, alone)
        deadline = time.monotonic() + _STARTS_WITHIN
        while not _listens(self.port):
            if superlink.poll() is not None or time.monotonic() > deadline:
                raise InvalidInputError(
                    f"flower: the SuperLink does not start; see {self.folder / 'superlink.log'}"
                )
            time.sleep(0.1)
        return superlink

    def register(self, name: str) -> None:
        """Make a key for a node and register it under its name."""
        make_node_key(self.folder / name)
        key = str(self.folder / f"{name}.pub")
        self.command("supernode", "register", key, "here", "--name", name)

    def start_node(self, name: str, **config: Any) -> subprocess.Popen[bytes]:
        """Start a SuperNode.

        Args:
            name: of its key, its log, and itself.
            **config: its node config, with - for _.
        """
        how = ["--insecure"]
        if self.tls:
            key = str(self.folder / name)
            how = ["--root-certificates", str(self.folder / "ca.crt")]
            how += ["--auth-supernode-private-key", key]
        where = ["--superlink", self.address, "--host", HOST, "--port", str(free_port())]
        told = {"name": f'"{name}"'} | {k.replace("_", "-"): v for k, v in config.items()}
        settings = " ".join(f"{key}={value}" for key, value in told.items())
        return self._start(name, "flower-supernode", *how, *where, "--node-config", settings)

    def submit(self, app: Path, **config: Any) -> subprocess.Popen[bytes]:
        """Submit an app as a run; the process that this returns prints the run's log as it goes.

        Args:
            app: the folder of a Flower app.
            **config: what to put over its config, with - for _.
        """
        pairs = {key.replace("_", "-"): value for key, value in config.items()}
        told = " ".join(f"{key}={_toml(value)}" for key, value in pairs.items())
        command = ["flwr", "run", str(app), "here", "--stream", "--run-config", told]
        process = subprocess.Popen(
            [_program(command[0]), *command[1:]],
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
        done = subprocess.run(
            [_program("flwr"), *words],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise InvalidInputError(
                f"flower: flwr {' '.join(words)} fails: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def _start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [_program(program), *arguments],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        """Return the environment in which Flower finds its programs and keeps to this folder."""
        programs = str(Path(sys.executable).parent)
        return os.environ | {
            "PATH": programs + os.pathsep + os.environ.get("PATH", ""),
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds between two looks for work
            "OMP_NUM_THREADS": "1",
            _MARK: str(self.folder),
        }


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def _marked(mark: str) -> list[int]:
    """Return the ids of the processes with this setting in their environment (on Linux)."""
    everyone = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [
        process for process in everyone if mark.encode() in _read(process, "environ").split(b"\0")
    ]


def _read(process: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{what}").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _program(name: str) -> str:
    """Return the path of one of Flower's programs, which lie beside Python."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise MissingExtraError("flower", "flower")
    return str(path)


def _toml(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str | Path) else str(value)
