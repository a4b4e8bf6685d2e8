"""What clipping, trimmed means and medians do to rare clients, and to an attack.

    python benchmarks/bounded_influence.py train
    python benchmarks/bounded_influence.py write

Digits with logistic regression and 50 clients, 95% of whose samples are of their class. The ten
clients of two classes take part in a tenth of the rounds, the others in half of them, so that
participation is correlated with the data. `train` runs every method on the same participation and
minibatches, as it is and with five hostile clients, over ten seeds, and writes
records/bounded_influence.json; `write` puts the table into the page and draws the figure.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtide.algorithms import (
    Algorithm,
    ClientUpdates,
    Clipped,
    Cohort,
    FedAU,
    FedAvg,
    Instructions,
    Median,
    RoundDriver,
    TrimmedMean,
)
from fedtide.plotting.saving import save_figure
from fedtide.plotting.style import COLOURS, GREY, new_figure, place_legend
from fedtide.population import Population
from fedtide.problems.datasets.catalogue import load
from fedtide.student_interval import t_margin

Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]

HERE = Path(__file__).parent
RECORD = HERE / "records" / "bounded_influence.json"
PAGE = HERE.parent / "docs" / "hostile-clients.md"
FIGURE = HERE.parent / "docs" / "images" / "bounded-influence.png"
BEGIN, END = "<!-- bounded influence: begin -->", "<!-- bounded influence: end -->"

CLIENTS, RARE, ROUNDS, SEEDS = 50, 10, 400, range(10)
RATES = np.where(np.arange(CLIENTS) < RARE, 0.1, 0.5)
HOSTILE = np.array([10, 18, 26, 34, 42])
"""Clients of five classes that take part often and send −5 Δ."""
STEPS, BATCH, LR, SIMILARITY = 5, 8, 0.5, 0.05

METHODS: dict[str, Algorithm[Any]] = {
    "FedAvg": FedAvg(),
    "FedAU": FedAU(),
    "clipped FedAU": Clipped(bound=1.0, quantile=0.5, inner=FedAU()),
    "trimmed mean of FedAvg": TrimmedMean(trim=0.2),
    "trimmed mean of FedAU": TrimmedMean(trim=0.2, inner=FedAU()),
    "median of FedAU": Median(FedAU()),
}
FIGURES = {
    "influence": "weight of the rare clients",
    "rare": "accuracy, their classes",
    "all": "accuracy, all classes",
}


class Digits:
    """Logistic regression on scikit-learn's digits, whose classes are those of clients in order."""

    def __init__(self, seed: int) -> None:
        data, self._random = load("digits"), np.random.default_rng([65, seed])
        labels = data.train.labels
        owners = labels * (CLIENTS // 10) + self._random.integers(CLIENTS // 10, size=len(labels))
        anyone = self._random.random(len(labels)) < SIMILARITY
        owners = np.where(anyone, self._random.integers(CLIENTS, size=len(labels)), owners)
        self._held = [np.flatnonzero(owners == n) for n in range(CLIENTS)]
        self._inputs, self._test = (_with_bias(part.features) for part in (data.train, data.test))
        self._targets = torch.nn.functional.one_hot(torch.from_numpy(labels)).float()
        self._test_labels = data.test.labels

    def draw(self, clients: Ids) -> Ids:
        """Return the samples of the minibatches of a round, (I, S, B)."""
        return np.stack(
            [self._random.choice(self._held[n], (STEPS, BATCH)) for n in clients], axis=1
        )

    def updates(self, model: torch.Tensor, samples: Ids) -> torch.Tensor:
        """Return the changes of S clients in their local steps, (S, d)."""
        first = model.view(1, 65, 10)
        moved = first.repeat(samples.shape[1], 1, 1)
        for step in torch.from_numpy(samples):
            inputs = self._inputs[step]
            slopes = (inputs @ moved).softmax(dim=2) - self._targets[step]
            moved.baddbmm_(inputs.transpose(1, 2), slopes, alpha=-LR / BATCH)
        return (moved - first).flatten(1)

    def accuracies(self, model: torch.Tensor) -> tuple[float, float]:
        """Return the test accuracy on the classes of the rare clients, and on all."""
        right = (self._test @ model.view(65, 10)).argmax(dim=1).numpy() == self._test_labels
        rare = self._test_labels < RARE * 10 // CLIENTS
        return float(right[rare].mean()), float(right.mean())


def _with_bias(features: NDArray[Any]) -> torch.Tensor:
    flat = torch.from_numpy(np.asarray(features, dtype=np.float32)).flatten(1)
    return torch.cat([flat / flat.max(), torch.ones(len(flat), 1)], dim=1)


def _train(
    problem: Digits,
    samples: Ids,
    factors: torch.Tensor,
    instructions: Instructions,
    cohort: Cohort,
) -> ClientUpdates:
    """Return the updates of a cohort, each times its factor, (S,)."""
    deltas = problem.updates(instructions.model, samples) * factors[:, None]
    steps = torch.full_like(cohort.clients, STEPS)
    return ClientUpdates(cohort.clients, cohort.weights.float(), deltas, LR, steps)


def train(seed: int, attacked: bool) -> dict[str, dict[str, float]]:
    """Return the figures of every method; accuracies are means over the last quarter."""
    problem = Digits(seed)
    present = np.random.default_rng([66, seed]).random((ROUNDS, CLIENTS)) < RATES
    drivers = {
        name: RoundDriver(method, torch.zeros(650), Population(CLIENTS))
        for name, method in METHODS.items()
    }
    influence = {name: np.zeros(CLIENTS) for name in METHODS}
    kept: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for t, row in enumerate(present):
        clients = np.flatnonzero(row)
        factors = torch.from_numpy(np.where(attacked & np.isin(clients, HOSTILE), -5.0, 1.0))
        answer = partial(_train, problem, problem.draw(clients), factors.float())
        for name, driver in drivers.items():
            info = driver.run(Cohort.uniform(torch.from_numpy(clients)), LR, answer)
            np.add.at(influence[name], info.clients.numpy(), info.weights.double().numpy())
            if 4 * t >= 3 * ROUNDS and t % 5 == 0:
                kept[name].append(problem.accuracies(driver.output))
    found = {}
    for name, weights in influence.items():
        rare, every = np.mean(kept[name], axis=0)
        share = weights[:RARE].sum() / weights.sum()
        found[name] = {"influence": float(share), "rare": float(rare), "all": float(every)}
    return found


def collect(record: list[dict[str, Any]], name: str, attacked: bool, figure: str) -> Numbers:
    """Return the values of a figure over the seeds."""
    runs = [one["figures"][name][figure] for one in record if one["attacked"] == attacked]
    return np.array(runs)


def table(record: list[dict[str, Any]]) -> str:
    """Return the table of the page, in per cent."""
    heads = ["weight of the rare clients", "accuracy, their classes", "accuracy, all classes"]
    heads += ["their classes, attacked", "all classes, attacked"]
    lines = ["| method | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    columns = [("influence", False), ("rare", False), ("all", False), ("rare", True), ("all", True)]
    for name in METHODS:
        values = [collect(record, name, attacked, figure) for figure, attacked in columns]
        cells = [f"{100 * v.mean():.1f} ± {100 * float(t_margin(v)):.1f}" for v in values]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(record: list[dict[str, Any]]) -> None:
    """Draw the means with their 95% intervals, without and with the attack."""
    figure, panels = new_figure(2.6, len(FIGURES), width=8.4)
    places = np.arange(len(METHODS))[::-1]
    for panel, (key, title) in zip(panels, FIGURES.items(), strict=True):
        looks = ((False, COLOURS[0], "o", 0.14), (True, COLOURS[4], "s", -0.14))
        for attacked, colour, marker, shift in looks:
            values = [collect(record, name, attacked, key) for name in METHODS]
            means = [100 * v.mean() for v in values]
            errors = [100 * float(t_margin(v)) for v in values]
            label = "five of 50 clients hostile" if attacked else "no attack"
            panel.errorbar(
                means, places + shift, xerr=errors, fmt=marker, color=colour, ms=5, label=label
            )
        panel.set_title(title)
        panel.set_xlabel("%")
        panel.set_xlim(left=0)
        panel.set_yticks(places, list(METHODS))
        panel.grid(alpha=0.25, axis="x")
    panels[0].axvline(100 * RARE / CLIENTS, color=GREY, linestyle="--", label="fair share")
    place_legend(*panels)
    save_figure(figure, FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["train", "write"])
    torch.set_num_threads(1)
    if parser.parse_args().command == "train":
        record = [
            {"seed": seed, "attacked": attacked, "figures": train(seed, attacked)}
            for seed in SEEDS
            for attacked in (False, True)
        ]
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{table(record)}\n{END}{tail}", encoding="utf-8")
    draw(record)


if __name__ == "__main__":
    main()
