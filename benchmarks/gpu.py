"""One command for a GPU: is everything equal to the CPU, and how fast is it?

    python benchmarks/gpu.py                          # on the GPU; writes records/gpu.json
    python benchmarks/gpu.py --device cpu --quick     # the same script in a minute, anywhere

Equality: every method and every trainer runs a few rounds on the device and, client by client, on
the CPU. The largest difference of the models, relative to how far they moved, may be 1e-9 in
float64 and 1e-3 in float32 (kernels sum in another order, and matrix products may use TF32).

Speed: paper 001's CIFAR-10 run (10,000 rounds; the goal is two minutes on an H100), a logistic
model with 100, 1,000 and 10,000 clients a round, and the settings of pfl's CIFAR-10 benchmark
(1,500 rounds, 50 users a round of 1,000 with 50 samples each, batches of 10), beside pfl itself
where it is installed. Samples are random, of the data set's shape. Seconds are measured over some
rounds after those that capture or compile, and scaled to the whole run, without evaluations.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from fedtide.problems.models import resolve_model
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from fedtide.training import devices
from measuring import Section, machine
from peers import run_pfl
from workload import Workload

RECORD = Path(__file__).parent / "records" / "gpu.json"
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
INNER = {"period": 2, "factor": 1.5}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "known-rates": {},
    "fedau": {"cutoff": 3},
    "fedvarp": {},
    "mifa": {},
    "fedlaavg": {},
    "fedprox": {"mu": 0.1},
    "scaffold": {},
    "amplified-scaffold": INNER,
    "amplified": INNER,
    "fedadam": {},
    "fedyogi": {},
    "fedavgm": {},
    "fedbuff": {"buffer_size": 4},
    "wait-for-all": {"period": 2},
    "weighted-fedavg": {"rates": [0.5] * 20},
    "averaged": {},
    "switch": {"first": "fedavg", "second": "mifa", "at": 2},
    "clipped": {"bound": 0.1, "inner": "fedau"},
    "median": {},
    "trimmed-mean": {},
    "central-sgd": {},
}
TRAINERS = ("reference", "stacked", "compiled", "threaded")
CONVOLUTION = {"type": "cnn", "channels": [4], "kernel": 3, "padding": 1, "dropout": 0.2}
CIFAR = "cnn-001-cifar10"


def compare(device: str, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the deviation of every method, and of every trainer, from the readable trainer on CPU.

    Raises:
        AssertionError: a model deviates by more than the tolerance.
    """
    cases = [(method, "stacked", "logistic") for method in METHODS]
    cases += [("fedau", trainer, CONVOLUTION) for trainer in TRAINERS]
    for dtype, tolerance in TOLERANCE.items():  # the last two prepared tasks are kept
        for method, trainer, model in cases:
            if quick and (trainer == "compiled" or (model == "logistic" and dtype == "float32")):
                continue
            fields = {"method": method, "model": model, "dtype": dtype}
            there = moved(device, trainer, **fields)
            here = moved("cpu", "reference", **fields)
            deviation = float((there - here).abs().max() / here.abs().max())
            found = {"method": method, "trainer": trainer, "dtype": dtype, "deviation": deviation}
            assert deviation <= tolerance, found
            yield found


def moved(device: str, trainer: str, method: str, model: Any, dtype: str) -> Tensor:
    """Return by how much the model has moved after five rounds."""
    fields = {
        "problem": {
            "type": "classification",
            "dataset": "digits",
            "clients": 20,
            "model": model,
            "partition": {"type": "dirichlet", "alpha": 0.3},
        },
        "participation": {"type": "bernoulli", "rates": 0.5},
        "algorithm": {"type": method, **METHODS[method]},
        "local": {"steps": 3, "batch_size": 8, "lr": 0.05},
        "rounds": 5,
        "seed": 1,
        "dtype": dtype,
        "device": device,
        "trainer": trainer,
    }
    run = Run(Experiment.from_dict(fields))
    for _ in range(5):
        run.round()
    return (run.driver.output - run.task.start).cpu()


def measure(device: str, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield seconds per round and per run of each workload."""
    trainer = "stacked" if quick else "compiled"
    rounds = 1 if quick else 100
    paper = Workload(25, 5, 16, CIFAR, (3, 32, 32), clients=250, samples=200)
    for dtype in ("float32",) if quick else ("float32", "bfloat16"):
        yield timed(f"paper 001, {dtype}", paper, 10_000, device, trainer, rounds, quick, dtype)
    for cohort in (100,) if quick else (100, 1000, 10_000):
        work = Workload(cohort, 6, 10, clients=max(1000, cohort))
        yield timed("logistic 784-10", work, 1000, device, trainer, rounds, quick)
    users = Workload(50, 5, 10, CIFAR, (3, 32, 32), clients=1000, samples=50)
    yield timed("pfl's CIFAR-10 settings", users, 1500, device, trainer, rounds, quick)
    if importlib.util.find_spec("pfl") is not None:
        network = resolve_model(CIFAR).build(users.shape, users.classes)
        seconds = run_pfl(reduced(users, quick), rounds + 2, network)
        yield row("pfl itself", users, 1500, seconds)


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
        for _ in range(2):
            run.round()
        devices.wait_for(run.task.start)
        began = time.perf_counter()
        for _ in range(rounds):
            run.round()
        devices.wait_for(run.task.start)
        return row(name, work, whole, (time.perf_counter() - began) / rounds)


def reduced(work: Workload, quick: bool) -> Workload:
    """Return the workload, or one with a twentieth of its clients."""
    if not quick:
        return work
    shares = {"cohort": work.cohort // 20, "clients": work.clients // 20, "samples": 20}
    return Workload(**{**vars(work), **shares})


def row(name: str, work: Workload, whole: int, seconds: float) -> dict[str, Any]:
    found = {"workload": name, "clients": work.cohort, "seconds": seconds, "rounds": whole}
    print(found, flush=True)
    return found


def section(record: dict[str, Any]) -> Section:
    """Return the speeds as a table."""
    found = Section(
        "GPU",
        f"`python benchmarks/gpu.py --device {record['device']}`, {record['machine']}. Largest "
        f"deviation from the CPU over {len(record['equality'])} runs: "
        + ", ".join(f"{dtype} {worst:.1e}" for dtype, worst in worst_deviations(record).items())
        + ".",
        ("workload", "clients a round", "ms per round", "rounds", "minutes"),
    )
    for one in record["speed"]:
        found.rows.append(
            (
                one["workload"],
                f"{one['clients']:,}",
                f"{1000 * one['seconds']:.2f}",
                f"{one['rounds']:,}",
                f"{one['seconds'] * one['rounds'] / 60:.1f}",
            )
        )
    return found


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
    asked = parser.parse_args()
    devices.require_device(asked.device)
    record = {
        "machine": machine(),
        "device": asked.device,
        "equality": list(compare(asked.device, asked.quick)),
        "speed": list(measure(asked.device, asked.quick)),
    }
    if not asked.quick:
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(section(record).markdown())


if __name__ == "__main__":
    main()
