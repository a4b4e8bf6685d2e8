"""One command for a GPU: is everything equal to the CPU, and how fast is it?

    python benchmarks/gpu.py                          # on an H100; writes records/gpu_h100.json
    python benchmarks/gpu.py --device cpu --quick     # the same script in a minute, anywhere

Equality: every method, every trainer and every kind of local training runs a few rounds on the
device and, client by client, on the CPU. The largest difference of the models, relative to how far
they moved, may be 1e-9 in float64 and 1e-3 in float32 (kernels sum in another order, and
convolutions and matrix products may use TF32). A second run on the device, resumed from a
checkpoint, must give the same bits.

Waits: in a later round of every method, PyTorch counts how often the host waits for the GPU. It
should be once, to read which updates are finite, and once more for methods whose weights follow
from the updates (clipping, trimmed means).

Speed: paper 001's CIFAR-10 run (10,000 rounds; the goal is two minutes on an H100), a logistic
model with 100, 1,000 and 10,000 clients a round, and the settings of pfl's CIFAR-10 benchmark
(1,500 rounds, 50 users a round with 50 samples each, batches of 10), compared with pfl itself if it
is installed. Samples are random, of the data set's shape. Seconds are measured over some rounds
after those that capture or compile, and scaled to the whole run, without evaluations. The limit of
a round is that of `limits.py`, with the rates of the device: its highest rate of matrix products in
the dtype, TF32 included.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import limits
from fedtide.algorithms import ALGORITHMS
from fedtide.problems.models import resolve_model
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from fedtide.training import devices
from measuring import Section, machine
from peers import run_pfl
from workload import Workload

RECORDS = Path(__file__).parent / "records"
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
INNER = {"period": 2, "factor": 1.5}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedau": {"cutoff": 3},
    "fedprox": {"mu": 0.1},
    "amplified-scaffold": INNER,
    "amplified": INNER,
    "fedbuff": {"buffer_size": 4},
    "wait-for-all": {"period": 2},
    "weighted-fedavg": {"rates": [0.5] * 20},
    "switch": {"first": "fedavg", "second": "mifa", "at": 2},
    "clipped": {"bound": 0.1, "inner": "fedau"},
}
TRAINERS = ("reference", "stacked", "compiled", "threaded")
CONVOLUTION = {"type": "cnn", "channels": [4], "kernel": 3, "padding": 1, "dropout": 0.2}
BATCH_NORM = {"type": "imported", "path": "gpu:batch_normalised"}
LOCAL: dict[str, dict[str, Any]] = {
    "blocks of steps": {"steps": 19},
    "epochs": {"steps": None, "epochs": 1},
    "momentum": {"steps": 10, "momentum": 0.9},
    "adam": {"steps": 10, "optimizer": "adam", "lr": 0.005},
}
CIFAR = "cnn-001-cifar10"
ROUNDS = 5


def compare(device: str, trainers: Sequence[str], quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the deviation of every case from the readable trainer on CPU."""
    cases = [Case(method) for method in ALGORITHMS]
    cases += [Case("fedprox", local=local) for local in LOCAL]
    cases += [Case("fedau", model=BATCH_NORM)]
    cases += [Case("fedau", trainer, model=CONVOLUTION) for trainer in trainers]
    for dtype, tolerance in TOLERANCE.items():  # the last two prepared tasks are kept
        for case in cases:
            if quick and case.model == "logistic" and dtype == "float32":
                continue
            start = time.perf_counter()
            there, again = case.moved(device, dtype), case.moved(device, dtype, resumed=True)
            here = replace(case, trainer="reference").moved("cpu", dtype)
            deviation = float((there - here).abs().max() / here.abs().max())
            repeats = torch.equal(there, again)
            yield {
                "method": case.method,
                "trainer": case.trainer,
                "model": case.model,
                "local": case.local,
                "dtype": dtype,
                "deviation": deviation,
                "repeats": repeats,
                "passed": repeats and deviation <= tolerance,
                "seconds": round(time.perf_counter() - start, 2),
            }


@dataclass(frozen=True)
class Case:
    """Some rounds on digits."""

    method: str
    trainer: str = "stacked"
    model: Any = "logistic"
    local: str | None = None

    def moved(self, device: str, dtype: str, resumed: bool = False) -> Tensor:
        """Return by how much the model has moved after a few rounds, on the CPU."""
        run = self.run(device, dtype)
        for ended in range(ROUNDS):
            if resumed and ended == ROUNDS // 2:
                checkpoint = run.checkpoint()
                run = self.run(device, dtype)
                run.restore(checkpoint)
            run.round()
        return (run.driver.output - run.task.start).cpu()

    def run(self, device: str, dtype: str) -> Run:
        """Return the run before its first round."""
        changes = {} if self.local is None else LOCAL[self.local]
        fields = {
            "problem": {
                "type": "classification",
                "dataset": "digits",
                "clients": 20,
                "model": self.model,
                "partition": {"type": "dirichlet", "alpha": 0.3},
            },
            "participation": {"type": "bernoulli", "rates": 0.5},
            "algorithm": {"type": self.method, **SETTINGS.get(self.method, {})},
            "local": {"steps": 3, "batch_size": 8, "lr": 0.05, **changes},
            "rounds": ROUNDS,
            "seed": 1,
            "dtype": dtype,
            "device": device,
            "trainer": self.trainer,
        }
        return Run(Experiment.from_dict(fields))


def batch_normalised() -> nn.Module:
    """Return a network whose running statistics are averaged, too."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


def waits(device: str) -> Iterator[dict[str, Any]]:
    """Yield how often the host waits in a round of every method; nothing on a CPU."""
    if torch.device(device).type != "cuda":
        return
    for method in ALGORITHMS:
        run = Case(method).run(device, "float32")
        for _ in range(ROUNDS - 1):
            run.round()
        yield {"method": method, "waits": count_waits(run.round)}


def count_waits(call: Callable[[], object]) -> int:
    """Return how often a call waits for the GPU; PyTorch does not see waits in CUDA's driver."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(one.message) for one in found)


def measure(device: str, trainers: Sequence[str], quick: bool) -> Iterator[dict[str, Any]]:
    """Yield seconds per round and per run of each workload, uncompiled and compiled."""
    rounds = 1 if quick else 100
    paper = Workload(25, 5, 16, CIFAR, (3, 32, 32), clients=250, samples=40)
    users = Workload(50, 5, 10, CIFAR, (3, 32, 32), clients=200, samples=50)
    for trainer in trainers:
        for dtype in ("float32",) if quick else ("float32", "bfloat16"):
            yield timed(f"paper 001, {dtype}", paper, 10_000, device, trainer, rounds, quick, dtype)
        yield timed("pfl's CIFAR-10 settings", users, 1500, device, trainer, rounds, quick)
        for cohort in (100,) if quick else (100, 1000, 10_000):
            work = Workload(cohort, 6, 10, clients=max(1000, cohort), samples=10)
            yield timed("logistic 784-10", work, 1000, device, trainer, rounds, quick)
    if importlib.util.find_spec("pfl") is not None:
        network = resolve_model(CIFAR).build(users.shape, users.classes)
        seconds = run_pfl(reduced(users, quick), rounds + 2, network)
        yield row("pfl itself", users, "pfl", 1500, seconds)


def timed(
    name: str,
    work: Workload,
    whole: int,
    device: str,
    trainer: str,
    rounds: int,
    quick: bool,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Return the row of a workload whose run has `whole` rounds."""
    work = reduced(work, quick)
    with TemporaryDirectory() as folder:
        work.write_data(Path(folder))
        fields = {"device": device, "dtype": dtype, "log": "used"}
        run = Run(work.experiment(Path(folder), trainer, **fields))
        began = time.perf_counter()
        for _ in range(2):
            run.round()
        devices.wait_for(run.task.start)
        first = time.perf_counter() - began
        mean = seconds(run.round, run.task.start, rounds)
        return row(name, work, trainer, whole, mean, first, dtype)


def rates(device: str, size: int) -> Iterator[dict[str, Any]]:
    """Yield bytes/s of a copy, read and written, and FLOP/s of products of square matrices."""
    a, b = (torch.randn(8 * size, size, device=device) for _ in range(2))
    yield {"of": "copy", "rate": 2 * a.numel() * a.element_size() / seconds(lambda: b.copy_(a), a)}
    for name in ("float32", "tf32", "bfloat16"):
        dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
        one = torch.randn(size, size, device=device, dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        yield {"of": name, "rate": 2 * size**3 / seconds(lambda one=one: one @ one, one)}
    torch.backends.cuda.matmul.allow_tf32 = False


def seconds(run: Callable[[], object], like: Tensor, repeats: int = 20) -> float:
    """Return how long a call takes: the mean of several, after two to warm up."""
    for repeat in range(-2, repeats):
        if repeat == 0:
            devices.wait_for(like)
            began = time.perf_counter()
        run()
    devices.wait_for(like)
    return (time.perf_counter() - began) / repeats


def reduced(work: Workload, quick: bool) -> Workload:
    """Return the workload, or one with a twentieth of its clients."""
    if not quick:
        return work
    shares = {"cohort": work.cohort // 20, "clients": work.clients // 20, "samples": 20}
    return Workload(**{**vars(work), **shares})


def row(
    name: str,
    work: Workload,
    trainer: str,
    whole: int,
    seconds: float,
    first: float = 0.0,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Return the measurements, and the least time that a round needs."""
    network = resolve_model(work.model).build(work.shape, work.classes)
    needed = limits.need(work, network)
    found = {
        "workload": name,
        "clients": work.cohort,
        "trainer": trainer,
        "dtype": dtype,
        "first": first,
        "seconds": seconds,
        "rounds": whole,
        "flops": needed.flops,
        "bytes": needed.bytes,
    }
    print(found, flush=True)
    return found


def read_records() -> list[dict[str, Any]]:
    """Return what was measured on each GPU."""
    return [json.loads(file.read_text("utf-8")) for file in sorted(RECORDS.glob("gpu_*.json"))]


def section(records: Sequence[dict[str, Any]]) -> Section:
    """Return the speeds on all GPUs as a table."""
    found = Section(
        "GPU",
        "`python benchmarks/gpu.py`. The first two rounds capture the steps, and compile them. The "
        "limit is that of TF32, which PyTorch uses for convolutions of float32, or of bfloat16. "
        + " ".join(about(record) for record in records),
        (
            "GPU",
            "workload",
            "clients a round",
            "first two rounds, s",
            "ms per round",
            "share of the limit",
            "compiled: first two rounds, s",
            "ms per round",
            "share of the limit",
        ),
    )
    for of in records:
        found_at = {(one["workload"], one["clients"], one["trainer"]): one for one in of["speed"]}
        for (workload, clients, trainer), one in found_at.items():
            if trainer == "stacked":
                compiled = found_at.get((workload, clients, "compiled"))
                place = short_name(of["device"]), workload, f"{clients:,}"
                found.rows.append((*place, *_speed(of, one), *_speed(of, compiled)))
    return found


def _speed(record: dict[str, Any], one: dict[str, Any] | None) -> tuple[str, str, str]:
    """Return the first two rounds, a round, and the share of the limit that it reaches."""
    if one is None:
        return "", "", ""
    rates = rates_of(record)
    rate = rates["bfloat16" if one["dtype"] == "bfloat16" else "tf32"]
    limit = max(one["flops"] / rate, one["bytes"] / rates["copy"])
    share = f"{100 * limit / one['seconds']:.1f} %"
    return f"{one['first']:.1f}", f"{1000 * one['seconds']:.2f}", share


def about(record: dict[str, Any]) -> str:
    """Return how fast a GPU is, and how its results compare with those of the CPU."""
    equality, rates = record["equality"], rates_of(record)
    methods = len({one["method"] for one in equality})
    trainers = ", ".join(dict.fromkeys(one["trainer"] for one in equality))
    worst = ", ".join(f"{dtype} {most:.1e}" for dtype, most in worst_deviations(record).items())
    return (
        f"**{short_name(record['device'])}**: {record['machine']}. It copies "
        f"{rates['copy'] / 1e12:.1f} TB/s and reaches {rates['float32'] / 1e12:.0f} TFLOP/s in "
        f"float32, {rates['tf32'] / 1e12:.0f} in TF32 and {rates['bfloat16'] / 1e12:.0f} in "
        f"bfloat16. Largest deviation from the CPU over {len(equality)} comparisons ({methods} "
        f"methods, trainers {trainers}): {worst}; a second run, resumed from a checkpoint, gave "
        f"the same bits in {sum(one['repeats'] for one in equality)} of them."
        + about_waits(record.get("waits", []))
    )


def about_waits(found: Sequence[dict[str, Any]]) -> str:
    """Return how often the host waits in a round, if that was counted."""
    if not found:
        return ""
    more = ", ".join(f"{one['method']} {one['waits']}" for one in found if one["waits"] > 1)
    once = sum(one["waits"] <= 1 for one in found)
    return f" In a round of {once} methods the host waits at most once" + (
        f"; more often: {more}." if more else "."
    )


def rates_of(record: dict[str, Any]) -> dict[str, float]:
    """Return bytes/s and FLOP/s by name."""
    return {one["of"]: one["rate"] for one in record["rates"]}


def short_name(device: str) -> str:
    """Return H100 for "NVIDIA H100 80GB HBM3"."""
    return device.removeprefix("NVIDIA ").partition(" ")[0]


def worst_deviations(record: dict[str, Any]) -> dict[str, float]:
    """Return the largest deviation in each dtype."""
    found = dict.fromkeys(TOLERANCE, 0.0)
    for one in record["equality"]:
        found[one["dtype"]] = max(found[one["dtype"]], one["deviation"])
    return found


def main() -> None:
    """Compare, measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--quick", action="store_true", help="a part of it with few clients; no record"
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="leave out compiled steps, which take minutes"
    )
    parser.add_argument("--out", type=Path, help="the file of the record")
    asked = parser.parse_args()
    devices.require_device(asked.device)
    device = devices.describe(asked.device)
    out = asked.out or RECORDS / f"gpu_{short_name(device).lower()}.json"
    trainers = [one for one in TRAINERS if one != "compiled" or not asked.no_compile]
    timed_trainers = [one for one in ("stacked", "compiled") if one in trainers]
    parts: dict[str, Iterable[Any]] = {
        "rates": rates(asked.device, 256 if asked.quick else 8192),
        "equality": compare(asked.device, trainers, asked.quick),
        "waits": waits(asked.device),
        "speed": measure(asked.device, timed_trainers, asked.quick),
    }
    record: dict[str, Any] = {"machine": machine(), "device": device}
    for name, part in parts.items():
        record[name] = []
        for found in part:
            record[name].append(found)
            if not asked.quick:  # what was measured is kept if the rest fails
                out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(section([record]).markdown())
    if failed := [found for found in record["equality"] if not found["passed"]]:
        sys.exit("differs: " + ", ".join(map(str, failed)))


if __name__ == "__main__":
    main()
