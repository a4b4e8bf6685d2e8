"""What client-level differential privacy costs under participation correlated with the data.

    python benchmarks/privacy.py tune
    python benchmarks/privacy.py train
    python benchmarks/privacy.py write

Logistic regression on digits (500 clients) and Fashion-MNIST at 14 × 14 pixels (1,000 clients),
split by a Dirichlet law (0.1), 150 rounds. Clients take part independently with rates that depend
on their classes, a tenth of the rounds on average. For every ε, the noise is as large as the client
that loses most needs under the participation of that seed. `tune` chooses the clipping norm of
every method and ε, by test accuracy, on a seed of its own; the server's learning rate stays 1 for
an average cohort, as with clipped updates it acts like the norm. `train` runs five other seeds.
Both continue where they were stopped. `write` puts the table into docs/privacy.md and draws the
figure.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

from fedtide.algorithms import (
    Algorithm,
    ClientUpdates,
    Cohort,
    FedAU,
    FedAvg,
    Instructions,
    RoundDriver,
)
from fedtide.participation import correlated_rates
from fedtide.plotting.saving import save_figure
from fedtide.plotting.style import COLOURS, new_figure, place_legend
from fedtide.population import Population
from fedtide.privacy import Gaussian, PrivateSum, loss_of_epsilon, make_private
from fedtide.problems.datasets.catalogue import load
from fedtide.problems.partitions import Dirichlet

Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]

HERE = Path(__file__).parent
RECORDS = HERE / "records"
PAGE = HERE.parent / "docs" / "privacy.md"
FIGURE = HERE.parent / "docs" / "images" / "privacy.png"
BEGIN, END = "<!-- cost: begin -->", "<!-- cost: end -->"

CLIENTS = {"digits": 500, "fashion_mnist": 1000}
TITLES = {"digits": "digits, 500 clients", "fashion_mnist": "Fashion-MNIST, 1,000 clients"}
ROUNDS, SEEDS, TUNED_ON, DELTA = 150, range(1, 6), 100, 1e-5
MEAN_RATE, FLOOR, ALPHA = 0.1, 0.02, 0.1
STEPS, BATCH, LR = 5, 8, 0.1
EPSILONS = (1.0, 2.0, 4.0, 8.0, math.inf)
METHODS = {"FedAvg": None, "FedAU, K = 10": 10, "FedAU, K = 50": 50}
CLIPS = (0.1, 0.3, 1.0, 3.0)

Key = tuple[str, int, str, float, float]
"""Data set, seed, method, ε and clipping norm of a run."""


def build(method: str) -> Algorithm[Any]:
    """Return the method; FedAvg divides by the expected cohort, which is public."""
    cutoff = METHODS[method]
    if cutoff is None:
        return FedAvg(server_lr=1 / MEAN_RATE, weights="all")
    return FedAU(cutoff=cutoff)


class Federation:
    """The data, the participation and the minibatches of a seed."""

    def __init__(self, dataset: str, seed: int) -> None:
        data, self.clients = load(dataset), CLIENTS[dataset]
        self._random = np.random.default_rng([221, seed])
        labels = np.asarray(data.train.labels)
        shards = Dirichlet(ALPHA).split(labels, self.clients, seed)
        owners, samples = shards.list_pairs()
        self._held = [samples[owners == n] for n in range(self.clients)]
        has_data = shards.sizes > 0
        shares = np.full((self.clients, 10), 0.1)
        counts = np.stack([np.bincount(labels[held], minlength=10) for held in self._held])
        shares[has_data] = counts[has_data] / shards.sizes[has_data, None]
        self.shares = shares[has_data]
        rates = correlated_rates(shares, ALPHA, MEAN_RATE, FLOOR, seed) * has_data
        self.present = np.random.default_rng([222, seed]).random((ROUNDS, self.clients)) < rates
        self._inputs, self._test = (_with_bias(part.features) for part in (data.train, data.test))
        self._targets = torch.nn.functional.one_hot(torch.from_numpy(labels)).float()
        self._test_labels = np.asarray(data.test.labels)

    def draw(self, clients: Ids) -> torch.Tensor:
        """Return the samples of the minibatches of a round, (I, S, B)."""
        drawn = [self._random.choice(self._held[n], (STEPS, BATCH)) for n in clients]
        return torch.from_numpy(np.stack(drawn, axis=1))

    def updates(self, model: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """Return the changes of S clients in their local steps, (S, d)."""
        first = model.view(1, -1, 10)
        moved = first.repeat(samples.shape[1], 1, 1)
        for step in samples:
            inputs = self._inputs[step]
            slopes = (inputs @ moved).softmax(dim=2) - self._targets[step]
            moved.baddbmm_(inputs.transpose(1, 2), slopes, alpha=-LR / BATCH)
        return (moved - first).flatten(1)

    def figures(self, model: torch.Tensor) -> dict[str, float]:
        """Return the test accuracy, and its mean over the worst tenth of the clients.

        A client's accuracy is that on test samples with the class shares of its own data.
        """
        right = (self._test @ model.view(-1, 10)).argmax(dim=1).numpy() == self._test_labels
        by_class = np.array([right[self._test_labels == label].mean() for label in range(10)])
        worst = np.sort(self.shares @ by_class)[: max(1, len(self.shares) // 10)]
        return {"accuracy": float(right.mean()), "worst": float(worst.mean())}

    def largest_loss(self, method: str) -> float:
        """Return z² μ² of the client that loses most, for one number and no noise."""
        driver = RoundDriver(
            make_private(build(method), Gaussian(1.0, 0.0, DELTA), seed=0),
            torch.zeros(1),
            Population(self.clients),
        )
        for row in self.present:
            cohort = Cohort.uniform(torch.from_numpy(np.flatnonzero(row)))
            driver.run(cohort, LR, lambda _, part: _answer(part, torch.zeros(len(part), 1)))
        return float(driver.state.lost.max())

    @property
    def size(self) -> int:
        """The number of parameters d."""
        return 10 * self._inputs.shape[1]


def _with_bias(features: NDArray[Any]) -> torch.Tensor:
    """Return pixels, those of large images averaged over squares of four, and a constant."""
    images = torch.from_numpy(np.asarray(features, dtype=np.float32))
    if images.shape[-1] == 28:
        images = torch.nn.functional.avg_pool2d(images, 2)
    flat = images.flatten(1)
    return torch.cat([flat, torch.ones(len(flat), 1)], dim=1)


def _answer(cohort: Cohort, deltas: torch.Tensor) -> ClientUpdates:
    steps = torch.full_like(cohort.clients, STEPS)
    return ClientUpdates(cohort.clients, cohort.weights.float(), deltas, LR, steps)


def drive(keys: list[Key]) -> Iterator[dict[str, Any]]:
    """Run configurations of one data set and seed side by side and yield their figures."""
    dataset, seed = keys[0][:2]
    federation = Federation(dataset, seed)
    losses = {method: federation.largest_loss(method) for method in METHODS}
    drivers, noise = [], []
    for _, _, method, epsilon, clip in keys:
        algorithm, multiplier = build(method), 0.0
        if epsilon < math.inf:
            multiplier = math.sqrt(losses[method] / loss_of_epsilon(epsilon, DELTA))
            algorithm = PrivateSum(Gaussian(clip, multiplier, DELTA), algorithm, seed)
        noise.append(multiplier)
        drivers.append(
            RoundDriver(algorithm, torch.zeros(federation.size), Population(federation.clients))
        )
    kept: list[list[dict[str, float]]] = [[] for _ in keys]
    for t, row in enumerate(federation.present):
        clients = np.flatnonzero(row)
        cohort = Cohort.uniform(torch.from_numpy(clients))
        samples = federation.draw(clients) if len(clients) else None

        def train(instructions: Instructions, part: Cohort, samples: Any = samples) -> Any:
            if samples is None:
                return _answer(part, torch.zeros(0, federation.size))
            return _answer(part, federation.updates(instructions.model, samples))

        for i, driver in enumerate(drivers):
            driver.run(cohort, LR, train)
            if t >= 0.9 * ROUNDS and t % 4 == 3:
                kept[i].append(federation.figures(driver.output))
    for key, multiplier, figures in zip(keys, noise, kept, strict=True):
        means = {name: float(np.mean([one[name] for one in figures])) for name in figures[0]}
        yield {"key": key, "noise_multiplier": multiplier, **means}


def complete(path: Path, wanted: list[Key]) -> list[dict[str, Any]]:
    """Run what the record lacks, one data set, seed and method at a time; return the record."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    record = [json.loads(line) for line in lines]
    known = {tuple(one["key"]) for one in record}
    groups: dict[tuple[str, int], list[Key]] = {}
    for key in wanted:
        if key not in known:
            groups.setdefault(key[:2], []).append(key)
    for keys in groups.values():
        found = list(drive(keys))
        record += found
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)
    return record


def tuning_keys() -> list[Key]:
    """Return the configurations among which `tune` chooses."""
    keys: list[Key] = []
    for dataset, method, epsilon in product(CLIENTS, METHODS, EPSILONS):
        clips = CLIPS if epsilon < math.inf else (math.inf,)
        keys += [(dataset, TUNED_ON, method, epsilon, clip) for clip in clips]
    return keys


def training_keys(tuned: list[dict[str, Any]]) -> list[Key]:
    """Return the best configuration of every data set, method and ε, under the five seeds."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in tuned:
        dataset, _, method, epsilon, _ = one["key"]
        where = (dataset, method, epsilon)
        if where not in best or one["accuracy"] > best[where]["accuracy"]:
            best[where] = one
    return [
        (dataset, seed, method, epsilon, best[dataset, method, epsilon]["key"][4])
        for dataset, seed, method, epsilon in product(CLIENTS, SEEDS, METHODS, EPSILONS)
    ]


def collect(record: list[dict[str, Any]], dataset: str, method: str, epsilon: float) -> Numbers:
    """Return accuracy and worst tenth of the seeds, in per cent, (seeds, 2)."""
    runs = [
        one for one in record if (one["key"][0], *one["key"][2:4]) == (dataset, method, epsilon)
    ]
    return 100 * np.array([[one["accuracy"], one["worst"]] for one in runs])


def interval(values: Numbers) -> Numbers:
    """Return half the length of the 95% interval of the mean over seeds."""
    spread = values.std(axis=0, ddof=1) / len(values) ** 0.5
    return np.asarray(student.ppf(0.975, len(values) - 1) * spread)


def name_of(epsilon: float) -> str:
    return "∞" if epsilon == math.inf else f"{epsilon:g}"


def table(record: list[dict[str, Any]]) -> str:
    """Return the table of the page, in per cent."""
    lines = [
        "| data | ε | " + " | ".join(f"{m}: accuracy | worst tenth" for m in METHODS) + " |",
        "|---|---|" + "---|" * 2 * len(METHODS),
    ]
    for dataset, epsilon in product(CLIENTS, EPSILONS):
        cells = []
        for method in METHODS:
            values = collect(record, dataset, method, epsilon)
            pairs = zip(values.mean(axis=0), interval(values), strict=True)
            cells += [f"{mean:.1f} ± {half:.1f}" for mean, half in pairs]
        lines.append(f"| {TITLES[dataset]} | {name_of(epsilon)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def differences(record: list[dict[str, Any]]) -> str:
    """Return the table of differences between methods under the same seeds, and of the noise."""
    average, small, large = METHODS
    pairs = [(small, average), (large, average), (large, small)]
    heads = " | ".join(f"{a} minus {b.removeprefix('FedAU, ')}" for a, b in pairs)
    lines = [f"| data | ε | {heads} |", "|---|---|---|---|---|"]
    for dataset, epsilon in product(CLIENTS, EPSILONS):
        values = {method: collect(record, dataset, method, epsilon)[:, 0] for method in METHODS}
        cells = [(values[a] - values[b]).reshape(-1, 1) for a, b in pairs]
        shown = [f"{c.mean():+.1f} ± {interval(c)[0]:.1f}" for c in cells]
        lines.append(f"| {TITLES[dataset]} | {name_of(epsilon)} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def noises(record: list[dict[str, Any]]) -> str:
    """Return the mean noise in the model of a round, N / C times its deviation, at ε = 1."""
    sizes = {name: k or 1 / MEAN_RATE for name, k in METHODS.items()}
    lines = ["| data | " + " | ".join(METHODS) + " |", "|---|---|---|---|"]
    for dataset in CLIENTS:
        cells = []
        for method, size in sizes.items():
            chosen = [one for one in record if one["key"][0] == dataset and one["key"][2] == method]
            found = [one["noise_multiplier"] for one in chosen if one["key"][3] == EPSILONS[0]]
            cells.append(f"{size * np.mean(found):.0f} (z = {np.mean(found):.1f})")
        lines.append(f"| {TITLES[dataset]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(record: list[dict[str, Any]]) -> None:
    """Draw accuracy and worst tenth against ε with their 95% intervals."""
    figure, panels = new_figure(2.8, 2 * len(CLIENTS), width=11.0)
    places = np.arange(len(EPSILONS))
    for i, dataset in enumerate(CLIENTS):
        for which, what in enumerate(("accuracy", "worst tenth")):
            panel = panels[2 * i + which]
            for m, method in enumerate(METHODS):
                values = [collect(record, dataset, method, epsilon) for epsilon in EPSILONS]
                panel.errorbar(
                    places + 0.08 * (m - 1),
                    [v[:, which].mean() for v in values],
                    yerr=[interval(v)[which] for v in values],
                    fmt="o-",
                    ms=4,
                    lw=1,
                    color=COLOURS[m],
                    label=method,
                )
            panel.set_title(f"{TITLES[dataset].split(',')[0]}: {what}")
            panel.set_xticks(places, [name_of(epsilon) for epsilon in EPSILONS])
            panel.set_xlabel("ε of the client that loses most")
            panel.set_ylabel("%")
            panel.grid(alpha=0.25)
    place_legend(*panels)
    save_figure(figure, FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["tune", "train", "write"])
    torch.set_num_threads(1)
    command = parser.parse_args().command
    tuned = complete(RECORDS / "privacy-tuning.jsonl", tuning_keys() if command == "tune" else [])
    if command == "tune":
        return
    keys = training_keys(tuned)
    record = complete(RECORDS / "privacy.jsonl", keys if command == "train" else [])
    if command == "write":
        head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        tail = rest.split(END)[1]
        found = "\n\n".join(
            [
                table(record),
                "Differences of accuracy between methods under the same seeds:",
                differences(record),
                "Deviation of the noise in the model of a round, times N / C, at ε = 1:",
                noises(record),
            ]
        )
        PAGE.write_text(f"{head}{BEGIN}\n{found}\n{END}{tail}", encoding="utf-8")
        draw(record)


if __name__ == "__main__":
    main()
