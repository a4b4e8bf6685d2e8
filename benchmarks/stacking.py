"""What running the seeds of one experiment as one gains.

    python benchmarks/stacking.py

Of tiny models, whole runs are measured as `--stack-seeds` makes them. Of larger ones, which it
leaves alone, the most that could be gained: R rounds one after another against R rounds whose
cohorts are trained as one cohort of R times the size, by the same trainer; what else a round does
would be done R times all the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run import Run
from fedtide.simulation.simulate import execute
from fedtide.simulation.together import execute_together
from fedtide.training.choose import choose_trainer
from fedtide.training.feed import Feed
from fedtide.training.trainer import Round
from measuring import Section, in_turn, machine, medians
from workload import Workload

ROUNDS, REPEATS = 1500, 3
TINY_SEEDS = (3, 5, 10)
SEEDS = (3, 5)
MLP = {"type": "mlp", "hidden": [200, 200]}
WORKS = {
    "64-10, 10 clients, 5 steps of 16": Workload(10, 5, 16, shape=(64,)),
    "784-10, 10 clients, 30 steps of 16": Workload(10, 30, 16),
    "784-10, 10 clients, 6 steps of 10": Workload(10, 6, 10),
    "784-200-200-10, 10 clients, 6 steps of 10": Workload(10, 6, 10, MLP, samples=20),
    "784-10, 100 clients, 6 steps of 10": Workload(100, 6, 10),
}


def tiny() -> Section:
    """Measure whole runs of tiny models."""
    found = Section(
        "Seeds of tiny models",
        f"Seconds of a run of {ROUNDS} rounds, and time of the runs of R seeds one after another "
        "over their time as one, recording included; trainer `stacked`.",
        ("problem", "one seed", *(f"{seeds} seeds" for seeds in TINY_SEEDS)),
    )
    for name, fields in TINY.items():
        plain = COMMON | fields | {"rounds": ROUNDS, "trainer": "stacked", "dtype": "float64"}
        runs = [partial(_seeds, plain, seeds) for seeds in (1, *TINY_SEEDS)]
        times = [[_seconds(run) for run in runs] for _ in range(REPEATS)]
        gains = [
            statistics.median(seeds * row[0] / row[i] for row in times)
            for i, seeds in enumerate(TINY_SEEDS, start=1)
        ]
        cells = [f"{gain:.2f}x" for gain in gains]
        found.rows.append((name, f"{medians(times)[0]:.1f} s", *cells))
    return found


def _seeds(plain: dict[str, object], seeds: int) -> None:
    experiments = [Experiment.of(plain | {"seed": seed}) for seed in range(seeds)]
    if seeds == 1:
        execute(experiments[0])
    else:
        execute_together([lambda execute, one=one: execute(one) for one in experiments])


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _quadratics(clients: int, dimension: int) -> dict[str, object]:
    draw = np.random.default_rng(0)
    roots = draw.normal(size=(clients, dimension, dimension)) / np.sqrt(dimension)
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(dimension)
    centers = draw.normal(size=(clients, dimension))
    return {"type": "quadratic", "matrices": matrices, "centers": centers}


COMMON = {
    "participation": {"type": "bernoulli", "rates": 0.5},
    "algorithm": "fedavg",
    "local": {"steps": 10, "lr": 0.01},
    "evaluation": {"every": 50},
}
TINY: dict[str, dict[str, object]] = {
    "the two clients of paper 002 (d = 4)": {
        "problem": "lower-bound-4d",
        "participation": {"type": "group-cycle", "groups": 2, "rounds": 240, "offset": 0},
    },
    "20 quadratics (d = 10)": {"problem": _quadratics(20, 10)},
    "100 quadratics (d = 50)": {"problem": _quadratics(100, 50)},
    "paper 004's regression (d = 200, 10 of 100 clients)": {
        "problem": "regression",
        "participation": {"type": "uniform", "size": 10},
    },
}


def section() -> Section:
    """Measure every workload, stacked and compiled."""
    found = Section(
        "Seeds of larger models",
        "Time of the rounds of R seeds, one after another, over their time with cohorts that are "
        "trained as one cohort of R times the size: the most that stacking seeds could gain. In "
        "brackets the same of the training alone.",
        ("workload", "trainer", "ms a round", *(f"{seeds} seeds" for seeds in SEEDS)),
    )
    for name, work in WORKS.items():
        with TemporaryDirectory() as folder:
            work.write_data(Path(folder))
            for trainer in ("stacked", "compiled"):
                found.rows.append((name, trainer, *_row(work, Path(folder), trainer)))
    return found


def _row(work: Workload, folder: Path, trainer: str) -> tuple[str, ...]:
    run, _ = work.run(folder, trainer)
    trains = [_training(run, work.cohort, trainer, seeds) for seeds in (1, *SEEDS)]
    for train in trains:
        train()
    times = in_turn([run.round, *trains])
    cells = [f"{medians(times)[0]:.1f}"]
    for number, seeds in enumerate(SEEDS, start=2):
        rounds, trainings = [], []
        for measured in times:
            a_round, training, together = measured[0], measured[1], measured[number]
            trainings.append(seeds * training / together)
            rounds.append(seeds * a_round / (seeds * (a_round - training) + together))
        cells.append(f"{statistics.median(rounds):.2f}x ({statistics.median(trainings):.2f}x)")
    return tuple(cells)


def _training(run: Run, cohort: int, trainer: str, seeds: int) -> Callable[[], None]:
    """Return what trains as many clients as the cohorts of so many seeds have."""
    task, local = run.task, run.experiment.local
    chosen, _ = choose_trainer(trainer, task, local, clients=1e6)
    feed = Feed(task.population, local, seed=0)
    clients = np.arange(seeds * cohort)
    start = Round(task.start, local.lr)

    def train() -> None:
        chosen.train(start, feed.plan(clients))

    return train


if __name__ == "__main__":
    print(machine())
    torch.set_num_threads(1)
    print(tiny().markdown())
    print(section().markdown())
