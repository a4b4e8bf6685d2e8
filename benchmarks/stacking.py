"""What stacking the seeds of one experiment into one batch could gain at most.

A stack of R seeds would train R cohorts in one go. The bound is the time of R rounds one after
another over that of R rounds whose cohorts are trained as one cohort of R times the size, by the
same trainer; what else a round does would be done R times all the same.

    python benchmarks/stacking.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedtide.simulation.run import Run
from fedtide.training.choose import choose_trainer
from fedtide.training.feed import Feed
from fedtide.training.trainer import Round
from measuring import Section, in_turn, machine, medians
from workload import Workload

SEEDS = (3, 5)
MLP = {"type": "mlp", "hidden": [200, 200]}
WORKS = {
    "64-10, 10 clients, 5 steps of 16": Workload(10, 5, 16, shape=(64,)),
    "784-10, 10 clients, 30 steps of 16": Workload(10, 30, 16),
    "784-10, 10 clients, 6 steps of 10": Workload(10, 6, 10),
    "784-200-200-10, 10 clients, 6 steps of 10": Workload(10, 6, 10, MLP, samples=20),
    "784-10, 100 clients, 6 steps of 10": Workload(100, 6, 10),
}


def section() -> Section:
    """Measure every workload, stacked and compiled."""
    found = Section(
        "Stacking seeds",
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
    print(section().markdown())
