"""The demo: a real federation on this machine, with sites that take part from time to time."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

import fedtide.examples
from fedtide.algorithms import MIFA, Algorithm, Clipped, FedAU, FedAvg
from fedtide.errors import InvalidInputError
from fedtide.flower.dev.local_federation import LocalFederation
from fedtide.flower.ledger.ledger import read_ledger, read_rounds
from fedtide.participation import Replay
from fedtide.problems import Supervised
from fedtide.simulation import simulate
from fedtide.simulation.checkpoint import load_newest

SITES = {"site-0": 1, "site-1": 1, "site-2": 2, "site-3": 3, "site-4": 4}
"""Each site and its period in rounds, of which it takes part in one; it holds two of ten digits."""

FEDAU = FedAU(cutoff=50, average=0.5)
METHOD = Clipped(bound=1.0, quantile=0.5, inner=FEDAU)  # that of the app
_COMPARED = (FedAvg(), METHOD, MIFA())

_ROUND_BEGINS = re.compile(r"\[ROUND (?P<number>\d+)/\d+\]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOG_LINE = re.compile(r"(INFO|WARNING|ERROR)\s*:\s+(?P<text>\S.*)")


def run_demo(folder: Path, rounds: int, tls: bool, show: Callable[[str], None]) -> str:
    """Run the federation and return the URL of its ledger.

    Args:
        folder: for its files.
        rounds: how many.
        tls: whether to use TLS and node keys.
        show: called with each line of output.

    Raises:
        InvalidInputError: the federation does not start, or ends before its last round.
    """
    ledger = f"sqlite:///{folder.resolve() / 'ledger.db'}"
    with LocalFederation(folder, tls) as federation:
        federation.start_superlink(database=False)
        show(f"rounds: {rounds}, of a few seconds each")
        show(f"a SuperLink on {federation.address}" + (", TLS and node keys" if tls else ""))
        for number, (name, period) in enumerate(SITES.items()):
            if tls:
                federation.register(name)
            shard = {"partition_id": number, "num_partitions": len(SITES)}
            federation.start_node(name, every=period, **shard)
            often = "every round" if period == 1 else f"every {period} rounds"
            show(f"a SuperNode: {name}, digits {2 * number} and {2 * number + 1}, {often}")
        federation.wait_for_nodes(SITES)  # so that all of them are in the first round
        run = federation.submit(
            example_app(),
            clients=" ".join(SITES),
            num_server_rounds=rounds,
            cutoff=FEDAU.cutoff,
            ledger=ledger,
            state=folder.resolve() / "state",
        )
        _follow(run, show, rounds)
    ended = len(read_rounds(ledger)) if (folder / "ledger.db").is_file() else 0
    if ended < rounds:
        raise InvalidInputError(f"flower: it ended after {ended} of {rounds} rounds; see the logs")
    return ledger


class ModelAccuracy(NamedTuple):
    """The accuracy of a model on the test images.

    Args:
        method: which trained it.
        accuracy: on all images.
        worst_client: the client on whose digits it is least accurate.
        worst_accuracy: on the digits of that client.
    """

    method: str
    accuracy: float
    worst_client: str
    worst_accuracy: float


def compare_methods(folder: Path) -> list[ModelAccuracy]:
    """Return the accuracy of a demo's model, and of models of several methods on its ledger.

    The simulator trains them from the same initial model, with the same data, participation and
    local training; only the order of each client's minibatches differs.

    Args:
        folder: that of the demo.
    """
    task = _load_task()
    log = read_ledger(f"sqlite:///{folder.resolve() / 'ledger.db'}")
    trained, checkpoint = task.model(), load_newest(folder / "state")
    assert checkpoint is not None
    x = checkpoint.tensors["state.inner.model"]  # what `Clipped` wraps
    nn.utils.vector_to_parameters(x.float(), trained.parameters())
    outcomes = [_test(task, f"{_title(METHOD)}, this federation", trained)]
    for algorithm in _COMPARED:
        result = simulate(
            problem=Supervised(train=_samples(task), clients="client", model=task.model),
            participation=Replay(log),
            algorithm=algorithm,
            local=task.TRAINING,
            rounds=int(log["round"].max()) + 1,  # type: ignore[arg-type]
            evaluation={"every": 0},
            trainer="reference",
        )
        outcomes.append(_test(task, f"{_title(algorithm)}, simulated", result.module()))
    return outcomes


def _title(algorithm: Algorithm[Any]) -> str:
    name = type(algorithm).__name__
    return f"{name} {_title(algorithm.inner)}" if isinstance(algorithm, Clipped) else name


def _load_task() -> ModuleType:
    """Import the module with the task from the app, which is not a package."""
    spec = importlib.util.spec_from_file_location("fedtide_demo_task", example_app() / "task.py")
    assert spec is not None
    assert spec.loader is not None
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    return task


def _samples(task: ModuleType) -> dict[str, object]:
    """Return the images, the digits and the client of all training samples."""
    shards = [task.shard(number, len(SITES)) for number in range(len(SITES))]
    images, labels = (torch.cat(parts) for parts in zip(*shards, strict=True))
    clients = [name for name, (_, own) in zip(SITES, shards, strict=True) for _ in own]
    return {"x": images, "y": labels, "client": clients}


def _test(task: ModuleType, method: str, network: nn.Module) -> ModelAccuracy:
    images, labels = task.test_set()
    with torch.no_grad():
        correct = (network(images).argmax(1) == labels).double()
    owners = task.owner(labels, len(SITES))
    accuracies = [float(correct[owners == number].mean()) for number in range(len(SITES))]
    worst = min(reversed(range(len(SITES))), key=accuracies.__getitem__)
    return ModelAccuracy(method, float(correct.mean()), list(SITES)[worst], accuracies[worst])


def example_app() -> Path:
    """Return the folder of the Flower app that the demo runs."""
    return Path(fedtide.examples.__file__).parent / "flower"


def describe_remaining(number: int, rounds: int, elapsed: float) -> str:
    """Return the remaining time when a round begins.

    Args:
        number: of the round, counted from 1; at least 2.
        rounds: how many there are in total.
        elapsed: the seconds since the first one began.

    >>> describe_remaining(3, 12, elapsed=40.0)
    '3:20 min to go'
    """
    seconds = round((rounds - number + 1) * elapsed / (number - 1))
    return f"{seconds // 60}:{seconds % 60:02d} min to go"


def _follow(run: subprocess.Popen[bytes], show: Callable[[str], None], rounds: int) -> None:
    """Show what the run logs until it ends."""
    began = time.monotonic()
    assert run.stdout is not None
    for line in run.stdout:
        entry = _LOG_LINE.match(_COLOURS.sub("", line.decode(errors="replace")))
        if not entry:
            continue
        text = entry["text"]
        if begins := _ROUND_BEGINS.match(text):
            number, now = int(begins["number"]), time.monotonic()
            if number == 1:
                began = now
            else:
                text += f" {describe_remaining(number, rounds, now - began)}"
        show(text)
    run.wait()
