"""What `FedTide` costs the server with many clients and with large models.

Measured in one process, on the tests' stand-in for Flower's grid, which decodes replies with
Flower's own code:

- CPU seconds per round with 10,000 clients, all asked and all replying, without the grid's own time
  for listing nodes, pushing and pulling;
- seconds for binding the names of 30,000 nodes;
- the peak memory of a round with 100 clients and a model of 10 MB, in units of the model, in
  addition to the replies and the model that the clients train from. It counts everything else that
  the process takes from the start of the strategy, including what Flower needs temporarily to
  decode a reply, but not the stand-in's copy of the reply that all clients send.

    python benchmarks/flower_scale.py
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fedtide import algorithms
from fedtide.flower import FedTide
from fedtide.flower.server.node_registry import NodeRegistry
from flower.fake_grid import FakeGrid, Node, WireGrid

ROUNDS = 3


def make_app(update: ArrayRecord) -> Callable[[Message, Context], Message]:
    """Return an app that tells its name and sends the same update in every round."""

    def answer(message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train":
            content = {"config": ConfigRecord({"name": str(context.node_config["name"])})}
            return Message(RecordDict(content), reply_to=message)
        metrics = MetricRecord({"num-examples": 10, "lr": 0.1, "steps": 1})
        config = ConfigRecord({"followed": True})
        content = {"update": update, "metrics": metrics, "config": config}
        return Message(RecordDict(content), reply_to=message)

    return answer


class TimedGrid(FakeGrid):
    """Measures its own time, `seconds`."""

    seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began

    def _answer(self, node: Node, message: Message) -> Message:
        self.sent.clear()
        return node.app(message, Context(self.run_id, 1, node.config, node.state, {}))

    def get_nodes(self) -> Any:
        with self.timed():
            return super().get_nodes()

    def push_messages(self, messages: Any) -> Any:
        with self.timed():
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        with self.timed():
            return super().pull_messages(message_ids)


class DecodingGrid(WireGrid):
    """Keeps one copy of what all clients send; protobuf makes new bytes of it for each reply."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        super().__init__(nodes, lambda message, objects: None)

    def _answer(self, node: Node, message: Message) -> Message:
        self.sent.clear()
        return node.app(message, Context(self.run_id, 1, node.config, node.state, {}))


def make_nodes(clients: int, update: ArrayRecord) -> dict[int, Node]:
    """Return nodes that all send this update."""
    app = make_app(update)
    return {n + 100: Node(app, {"name": f"client-{n}"}) for n in range(clients)}


def run(
    grid: FakeGrid,
    method: Any,
    start: ArrayRecord,
    rounds: int,
    folder: Path,
    mark: Callable[[int, ArrayRecord], None] = lambda ended, model: None,
) -> None:
    """Run rounds with state and ledger, all clients in each."""
    folder.mkdir(exist_ok=True)
    strategy = FedTide(
        method,
        clients=len(grid.nodes),
        state=folder / "state",
        ledger=f"sqlite:///{folder / 'ledger.db'}",
        clock=grid.clock,
    )
    strategy.start(grid, start, num_rounds=rounds, evaluate_fn=mark)


def time_rounds(clients: int, method: Any) -> None:
    """Print the seconds per round of FedTide's own time, and of the grid's."""
    arrays = ArrayRecord({"x": Array(np.zeros(1000, dtype=np.float32))})
    grid = TimedGrid(make_nodes(clients, arrays))
    marks = []

    def mark(ended: int, model: ArrayRecord) -> None:
        marks.append((time.process_time(), grid.seconds))

    with TemporaryDirectory() as folder:
        run(grid, method, arrays, ROUNDS, Path(folder), mark)
    for t, ((began, before), (ended, after)) in enumerate(pairwise(marks)):
        grids = after - before
        print(
            f"{clients:,} clients, {method}, round {t}: {ended - began - grids:.2f} s own, "
            f"{grids:.2f} s of the grid"
        )


def time_binding(names: int) -> None:
    """Print the seconds for binding names to nodes and looking them up."""
    began = time.process_time()
    registry = NodeRegistry.from_clients(names)
    for number in range(names):
        registry.bind(number, f"client-{number}", registered=True)
        registry.client_at(number)
    print(f"{names:,} names bound: {time.process_time() - began:.2f} s")


class PeakMemory:
    """The largest additional memory of this process within the context, in bytes."""

    def __enter__(self) -> PeakMemory:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the former peak
        self._before = _read_status("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        self.taken = _read_status("VmHWM") - self._before


def _read_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def measure_memory(clients: int, megabytes: int, method: Any) -> None:
    """Print a round's peak memory in models, besides the replies and the present model."""
    size = megabytes * 250_000
    values = np.random.default_rng(0).normal(size=size).astype(np.float32)
    start = ArrayRecord({"x": Array(np.zeros(size, dtype=np.float32))})
    update = ArrayRecord({"x": Array(values)})
    model = 4 * size
    with TemporaryDirectory() as folder:
        warm, grid = (DecodingGrid(make_nodes(count, update)) for count in (2, clients))
        run(warm, method, start, 1, Path(folder) / "warm")
        grid.objects = warm.objects
        gc.collect()
        # New blocks would else lie in holes of the heap, whose memory is counted already.
        holes = [np.empty(size - 1024, dtype=np.float32) for _ in range(32)]
        with PeakMemory() as memory:
            run(grid, method, start, 1, Path(folder) / "measured")
        del holes
    beside = memory.taken - (clients + 1) * model
    print(
        f"{clients} clients × {megabytes} MB, {method}: {memory.taken / 1e9:.2f} GB, of which "
        f"{clients * model / 1e9:.2f} GB replies and {model / 1e9:.2f} GB the present model; "
        f"beside them {beside / model:.1f} models"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["rounds", "names", "memory"])
    what = parser.parse_args().what
    if "names" in what:
        time_binding(30_000)
    if "rounds" in what:
        for method in (algorithms.FedAU(cutoff=50), algorithms.MIFA()):
            time_rounds(10_000, method)
    if "memory" in what:
        for method in (algorithms.FedAvg(), algorithms.FedAU(cutoff=50)):
            # in a process of its own, without what other measurements have left behind
            process = get_context("spawn").Process(target=measure_memory, args=(100, 10, method))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
