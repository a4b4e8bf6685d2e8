"""The demo: a real federation on this machine, with sites that take part from time to time."""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch

import fedtide.examples
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import read_ledger, read_rounds
from fedtide.participation import Replay
from fedtide.problems import Supervised
from fedtide.simulation.api import simulate

SITES = {"site-0": 1, "site-1": 1, "site-2": 2, "site-3": 3, "site-4": 4}
"""Each site and its period in rounds, of which it takes part in one; it holds two of ten digits."""

METHOD = "fedvarp"
"""It remembers the last update of each site, which FedAvg forgets."""

_HOST = "127.0.0.1"
_START_TIMEOUT, _STOP_TIMEOUT = 120.0, 30.0  # seconds
FAST_POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
"""Environment that makes a SuperExec look for work every 0.5 s, not every 3 s."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOG_LINE = re.compile(r"(INFO|WARNING|ERROR)\s*:\s+(?P<text>\S.*)")


def run_demo(folder: Path, rounds: int, show: Callable[[str], None]) -> str:
    """Run the federation and return the URL of its ledger.

    Args:
        folder: for its files; created.
        rounds: how many.
        show: called with each line of output.

    Raises:
        InvalidInputError: the federation does not start, or ends before its last round.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True)
    port, ledger = free_port(), f"sqlite:///{folder / 'ledger.db'}"
    (folder / "config.toml").write_text(
        f'[superlink.demo]\naddress = "{_HOST}:{port}"\ninsecure = true\n', encoding="utf-8"
    )
    show(f"rounds: {rounds}, of a few seconds each")
    with ExitStack() as processes:
        processes.callback(_end_orphans, folder)

        def start(name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
            return processes.enter_context(run_program(folder, name, program, *options))

        here = ["--insecure", "--host", _HOST, "--port"]
        no_installation = "--disable-runtime-dependency-installation"
        superlink = start("superlink", "flower-superlink", *here, str(port), no_installation)
        show(f"a SuperLink on {_HOST}:{port}")
        _wait_until(lambda: listens(port), superlink, folder / "superlink.log")
        nodes = {}
        for number, (name, period) in enumerate(SITES.items()):
            shard = f"partition-id={number} num-partitions={len(SITES)}"
            config = ["--node-config", f'name="{name}" every={period} {shard}']
            config += ["--superlink", f"{_HOST}:{port}"]
            nodes[name] = start(name, "flower-supernode", *here, str(free_port()), *config)
            often = "every round" if period == 1 else f"every {period} rounds"
            show(f"a SuperNode: {name}, digits {2 * number} and {2 * number + 1}, {often}")
        for name, node in nodes.items():  # so that all of them are in the first round
            _wait_for_node(node, folder / f"{name}.log")
        text = {"clients": " ".join(SITES), "ledger": ledger, "state": folder / "state"}
        settings = " ".join(f"{name}='{value}'" for name, value in text.items())
        settings += f" num-server-rounds={rounds} method='{METHOD}'"
        submit = ["run", str(example_app()), "demo", "--stream", "--run-config", settings]
        _follow(folder / "run.log", start("run", "flwr", *submit), show)
    ended = len(read_rounds(ledger)) if (folder / "ledger.db").is_file() else 0
    if ended < rounds:
        raise InvalidInputError(f"flower: it ended after {ended} of {rounds} rounds; see {folder}")
    return ledger


def simulate_average(ledger: str) -> tuple[float, float]:
    """Return what FedAvg makes of the same rounds: the accuracy, and that at the worst site."""
    task = runpy.run_path(str(example_app() / "task.py"))
    names, shards = [*SITES], [task["shard"](n, len(SITES)) for n in range(len(SITES))]
    sites = [name for name, (_, labels) in zip(names, shards, strict=True) for _ in labels]
    images, labels = (torch.cat(parts) for parts in zip(*shards, strict=True))
    test = dict(zip(("image", "digit"), task["test_set"](), strict=True))
    result = simulate(
        problem=Supervised(
            train={"image": images, "digit": labels, "site": sites},
            inputs="image",
            target="digit",
            clients="site",
            test=test,
            model=task["model"](),
            loss="cross_entropy",
            metrics="accuracy",
        ),
        participation=Replay(read_ledger(ledger)),
        algorithm="fedavg",
        local=task["TRAINING"],
        rounds=len(read_rounds(ledger)),
        trainer="reference",
    )
    worst = result.clients["class_weighted_test_accuracy"].to_numpy().min()
    return float(result.metrics["test_accuracy"][-1]), float(worst)


def example_app() -> Path:
    """Return the folder of the Flower app that the demo runs."""
    return Path(fedtide.examples.__file__).parent / "flower"


@contextmanager
def run_program(
    folder: Path, name: str, program: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Flower's programs within the context, with a log in the folder.

    It stays in this process's group, so that Ctrl-C and the end of a terminal reach it, too.
    """
    beside = Path(sys.executable).parent
    environment = os.environ | FAST_POLLING
    environment |= {"PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    environment |= {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0"}
    environment |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(beside / program), *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()


def _end_orphans(folder: Path) -> None:
    """End what Flower's programs have started and left behind: on Linux, which names it.

    A ServerApp does not notice the end of its SuperLink while it waits to send messages.
    """
    mark = f"FLWR_HOME={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0


def _wait_for_node(node: subprocess.Popen[bytes], log: Path) -> None:
    _wait_until(lambda: "SuperNode ID" in log.read_text(encoding="utf-8"), node, log)


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise InvalidInputError(f"flower: {log.stem} does not start; see {log}")
        time.sleep(0.1)


def _follow(log: Path, run: subprocess.Popen[bytes], show: Callable[[str], None]) -> None:
    """Show what a run logs until it ends."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        ended = False
        while not ended:
            ended = run.poll() is not None  # before the rest is read
            for line in lines:
                if entry := _LOG_LINE.match(_COLOURS.sub("", line)):
                    show(entry["text"])
            time.sleep(0.2)
