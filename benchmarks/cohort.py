"""Whole rounds of `ft.simulate` against a plain PyTorch loop over the same clients.

Logistic regression 784 → 10, batches of 20, 5 local steps. A round of fedtide is everything: who
takes part, minibatches, training, aggregation, the log; no evaluation. The plain loop is what one
would write by hand, with all tensors ready in memory: nn.Module, torch.optim.SGD, the mean.

    python benchmarks/cohort.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run import Run

CLIENTS, SAMPLES, FEATURES, CLASSES = 1000, 60, 784, 10
STEPS, BATCH, LR = 5, 20, 0.1
REPEATS = 15


@dataclass
class PlainLoop:
    """The loop by hand: one client after another.

    Args:
        cohort: clients per round.
    """

    cohort: int

    def __post_init__(self) -> None:
        self.model = nn.Linear(FEATURES, CLASSES)
        shape = (self.cohort, STEPS, BATCH)
        self.x = torch.randn(*shape, FEATURES)
        self.y = torch.randint(CLASSES, shape)

    def round(self) -> None:
        """Train all clients and average their models."""
        mean: dict[str, Tensor] = {}
        for client in range(self.cohort):
            local = nn.Linear(FEATURES, CLASSES)
            local.load_state_dict(self.model.state_dict())
            optimizer = torch.optim.SGD(local.parameters(), lr=LR)
            for step in range(STEPS):
                optimizer.zero_grad()
                nn.functional.cross_entropy(
                    local(self.x[client, step]), self.y[client, step]
                ).backward()
                optimizer.step()
            for name, tensor in local.state_dict().items():
                mean[name] = mean.get(name, 0) + tensor / self.cohort
        self.model.load_state_dict(mean)


def fedtide_run(folder: Path, cohort: int, trainer: str) -> Run:
    """Return a run of the same shape."""
    return Run(
        Experiment.of(
            {
                "rounds": 10_000,
                "problem": {
                    "type": "classification",
                    "dataset": str(folder),
                    "clients": CLIENTS,
                    "partition": "iid",
                },
                "participation": {"type": "uniform", "size": cohort},
                "algorithm": "fedavg",
                "local": {"steps": STEPS, "batch_size": BATCH, "lr": LR},
                "evaluation": {"every": 0},
                "trainer": trainer,
            }
        )
    )


def write_data(folder: Path) -> None:
    """Write random images, as many as the clients hold."""
    rng = np.random.default_rng(0)
    for name, size in (("train", CLIENTS * SAMPLES), ("test", 100)):
        images = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, CLASSES, size)
        labels[:CLASSES] = np.arange(CLASSES)
        frame = pl.DataFrame({"image": images.reshape(size, -1), "label": labels})
        frame.write_parquet(folder / f"{name}.parquet")


def side_by_side(rounds: list[Callable[[], None]]) -> list[list[float]]:
    """Return milliseconds per round of each, (repeats, rounds), measured in turn.

    The machine may be slower at one time than at another; what is measured in turn can be compared.
    """
    return [[milliseconds(round) for round in rounds] for _ in range(REPEATS)]


def milliseconds(round: Callable[[], None]) -> float:
    """Return the time of a round, over at least three rounds and a fifth of a second."""
    count, began = 0, time.perf_counter()
    while count < 3 or time.perf_counter() - began < 0.2:
        round()
        count += 1
    return 1000 * (time.perf_counter() - began) / count


def main() -> None:
    """Print one table."""
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'cohort':>6} {'plain ms':>9} {'stacked ms':>11} {'x':>6} {'compiled ms':>12} {'x':>6}")
    with TemporaryDirectory() as name:
        write_data(Path(name))
        for cohort in (10, 100):
            runs = [fedtide_run(Path(name), cohort, trainer) for trainer in ("stacked", "compiled")]
            loop = PlainLoop(cohort)
            for run in runs:
                for _ in range(3):
                    run.round()
            times = side_by_side([loop.round, *(run.round for run in runs)])
            plain, stacked, compiled = (
                statistics.median(column) for column in zip(*times, strict=True)
            )
            gains = [statistics.median(row[0] / row[k] for row in times) for k in (1, 2)]
            print(
                f"{cohort:6} {plain:9.2f} {stacked:11.2f} {gains[0]:6.1f} "
                f"{compiled:12.2f} {gains[1]:6.1f}"
            )


if __name__ == "__main__":
    main()
