"""What client-level differential privacy costs under participation correlated with the data.

    python benchmarks/privacy.py tune
    python benchmarks/privacy.py train
    python benchmarks/privacy.py write

Logistic regression on digits (500 clients) and Fashion-MNIST at 14 × 14 pixels (1,000 clients),
split by a Dirichlet law (0.1), 150 rounds. Clients take part with rates that depend on their
classes, a tenth of the rounds on average: independently in every round (Bernoulli), or in sessions
(Markov). FedAU runs with cutoffs K from 5 to 50. For every ε, the noise is just large enough for
the client with the largest privacy loss under the participation of that seed. The server's learning
rate stays 1 for an average cohort, as with clipped updates it acts like the clipping norm.

`tune` chooses the clipping norm of every K and ε among CLIPS, by test accuracy, on a separate seed,
under Bernoulli participation. `train` runs five other seeds: with these norms, and with one that
follows the median of the updates' norms (privately, from the same budget). Both continue where they
were stopped. `write` puts the tables into docs/privacy-evidence.md and draws the figures.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtide.algorithms import (
    Algorithm,
    ClientUpdates,
    Cohort,
    FedAU,
    FedAvg,
    Instructions,
    RoundDriver,
)
from fedtide.participation import Markov, correlated_rates
from fedtide.plotting.saving import save_figure
from fedtide.plotting.style import COLOURS, new_figure, place_legend
from fedtide.population import Population
from fedtide.privacy import Gaussian, PrivateSum, loss_of_epsilon, make_private
from fedtide.problems.datasets.catalogue import load
from fedtide.problems.partitions import Dirichlet
from fedtide.student_interval import t_margin

Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]

HERE = Path(__file__).parent
RECORDS = HERE / "records"
PAGE = HERE.parent / "docs" / "privacy-evidence.md"
IMAGES = HERE.parent / "docs" / "images"
BEGIN, END = "<!-- cost: begin -->", "<!-- cost: end -->"

CLIENTS = {"digits": 500, "fashion_mnist": 1000}
TITLES = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
PRESENCES = ("Bernoulli", "Markov")
ROUNDS, SEEDS, TUNED_ON, DELTA = 150, range(1, 6), 100, 1e-5
MEAN_RATE, FLOOR, ALPHA = 0.1, 0.02, 0.1
STEPS, BATCH, LR = 5, 8, 0.1
EPSILONS = (1.0, 2.0, 4.0, 8.0, math.inf)
METHODS = {"FedAvg": 1, "FedAU, K = 10": 10, "FedAU, K = 50": 50}
CUTOFFS = (1, 5, 10, 20, 50)
CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
QUANTILE = 0.5


Record = list[dict[str, Any]]
"""The rows of a record: the fields of a Setting and its figures."""


@dataclass(frozen=True)
class Setting:
    """One run.

    Args:
        dataset: a key of CLIENTS.
        presence: how clients take part, one of PRESENCES.
        seed: of the data's split, participation, minibatches and noise.
        cutoff: K; 1: FedAvg over all clients.
        epsilon: of the client with the largest privacy loss; ∞: neither noise nor clipping.
        clip: the clipping norm, with a quantile that of round 0; ∞: none.
        quantile: what the norm follows; None: it is fixed.
    """

    dataset: str
    presence: str
    seed: int
    cutoff: int
    epsilon: float
    clip: float
    quantile: float | None = None


def build(cutoff: int) -> Algorithm[Any]:
    """Return FedAU, or for K = 1 FedAvg, which divides by the expected cohort, a public number."""
    return FedAvg(server_lr=1 / MEAN_RATE, weights="all") if cutoff == 1 else FedAU(cutoff=cutoff)


class Federation:
    """The data, the participation and the minibatches of a seed."""

    def __init__(self, dataset: str, presence: str, seed: int) -> None:
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
        self.present = draw_presence(presence, rates, seed)
        self._inputs, self._test = (_with_bias(part.features) for part in (data.train, data.test))
        self._targets = torch.nn.functional.one_hot(torch.from_numpy(labels)).float()
        self._test_labels = np.asarray(data.test.labels)

    def draw(self, clients: Ids) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the minibatches of a round: inputs (S, B, F) and targets (S, B, 10) by step."""
        if not len(clients):
            return []
        drawn = [self._random.choice(self._held[n], (STEPS, BATCH)) for n in clients]
        samples = torch.from_numpy(np.stack(drawn, axis=1))
        return [(self._inputs[step], self._targets[step]) for step in samples]

    def updates(
        self, model: torch.Tensor, batches: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Return the changes of S clients in their local steps, (S, d)."""
        first = model.view(1, -1, 10)
        moved = first.repeat(len(batches[0][0]) if batches else 0, 1, 1)
        for inputs, targets in batches:
            slopes = (inputs @ moved).softmax(dim=2) - targets
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

    def largest_loss(self, cutoff: int) -> float:
        """Return the largest z² μ² of a client, for one number and no noise."""
        driver = RoundDriver(
            make_private(build(cutoff), Gaussian(1.0, 0.0, DELTA), seed=0),
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


def draw_presence(presence: str, rates: Numbers, seed: int) -> NDArray[np.bool_]:
    """Return who takes part in which round, (T, N)."""
    if presence == "Bernoulli":
        return np.random.default_rng([222, seed]).random((ROUNDS, len(rates))) < rates
    stream = Markov(list(rates)).begin(Population(len(rates)), seed)
    present = np.zeros((ROUNDS, len(rates)), dtype=bool)
    for t, row in enumerate(present):
        row[stream.round(t).clients] = True
    return present


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


def drive(settings: list[Setting]) -> Iterator[dict[str, Any]]:
    """Run settings of one data set, presence and seed side by side and yield their figures."""
    first = settings[0]
    federation = Federation(first.dataset, first.presence, first.seed)
    losses = {cutoff: federation.largest_loss(cutoff) for cutoff in {s.cutoff for s in settings}}
    drivers, noise = [], []
    for one in settings:
        algorithm, multiplier = build(one.cutoff), 0.0
        if one.epsilon < math.inf:
            multiplier = math.sqrt(losses[one.cutoff] / loss_of_epsilon(one.epsilon, DELTA))
            mechanism = Gaussian(one.clip, multiplier, DELTA, quantile=one.quantile)
            algorithm = PrivateSum(mechanism, algorithm, one.seed)
        noise.append(multiplier)
        drivers.append(
            RoundDriver(algorithm, torch.zeros(federation.size), Population(federation.clients))
        )
    kept: list[list[dict[str, float]]] = [[] for _ in settings]
    for t, row in enumerate(federation.present):
        clients = np.flatnonzero(row)
        cohort = Cohort.uniform(torch.from_numpy(clients))
        batches = federation.draw(clients)

        def train(instructions: Instructions, part: Cohort, batches: Any = batches) -> Any:
            return _answer(part, federation.updates(instructions.model, batches))

        for i, driver in enumerate(drivers):
            driver.run(cohort, LR, train)
            if t >= 0.9 * ROUNDS and t % 4 == 3:
                kept[i].append(federation.figures(driver.output))
    for one, multiplier, figures in zip(settings, noise, kept, strict=True):
        means = {name: float(np.mean([row[name] for row in figures])) for name in figures[0]}
        yield asdict(one) | {"noise_multiplier": multiplier} | means


def complete(path: Path, wanted: list[Setting]) -> Record:
    """Run what the record lacks, one data set, presence and seed at a time; return the record."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    record = [json.loads(line) for line in lines]
    known = {setting_of(one) for one in record}
    groups: dict[tuple[str, str, int], list[Setting]] = {}
    for one in wanted:
        if one not in known:
            groups.setdefault((one.dataset, one.presence, one.seed), []).append(one)
    for settings in groups.values():
        found = list(drive(settings))
        record += found
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)
    return record


def setting_of(row: dict[str, Any]) -> Setting:
    """Return the setting of a row of a record."""
    return Setting(**{name: row[name] for name in Setting.__dataclass_fields__})


def tuning_settings() -> list[Setting]:
    """Return the settings among which `tune` chooses."""
    found = []
    for dataset, cutoff, epsilon in product(CLIENTS, CUTOFFS, EPSILONS):
        clips = CLIPS if epsilon < math.inf else (math.inf,)
        found += [Setting(dataset, "Bernoulli", TUNED_ON, cutoff, epsilon, clip) for clip in clips]
    return found


def best_norms(tuned: Record) -> dict[tuple[str, int, float], float]:
    """Return the norm of CLIPS with the best accuracy for each data set, cutoff and ε."""
    best: dict[tuple[str, int, float], float] = {}
    for row in sorted(tuned, key=lambda row: float(row["accuracy"]), reverse=True):
        best.setdefault((row["dataset"], row["cutoff"], row["epsilon"]), row["clip"])
    return best


def training_settings(tuned: Record) -> list[Setting]:
    """Return the settings of the tables: those with the best clipping norm, and those without."""
    best, found = best_norms(tuned), []
    for dataset, seed, cutoff, epsilon in product(CLIENTS, SEEDS, CUTOFFS, EPSILONS):
        clip = best[dataset, cutoff, epsilon]
        setting = Setting(dataset, "Bernoulli", seed, cutoff, epsilon, clip)
        found.append(setting)
        if cutoff in METHODS.values():
            found.append(replace(setting, presence="Markov"))
            if epsilon < math.inf:
                found.append(replace(setting, clip=1.0, quantile=QUANTILE))
    return found


def select(
    record: Record,
    dataset: str,
    presence: str,
    cutoff: int,
    epsilon: float,
    quantile: float | None = None,
) -> Numbers:
    """Return accuracy and worst tenth in per cent, and the noise, by seed, (seeds, 3)."""
    wanted = (dataset, presence, cutoff, epsilon, quantile)
    keys = ("dataset", "presence", "cutoff", "epsilon", "quantile")
    rows = [row for row in record if tuple(row[key] for key in keys) == wanted]
    rows.sort(key=lambda row: int(row["seed"]))
    return np.array(
        [[100 * row["accuracy"], 100 * row["worst"], row["noise_multiplier"]] for row in rows]
    )


def name_of(epsilon: float) -> str:
    return "∞" if epsilon == math.inf else f"{epsilon:g}"


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(values: Numbers, sign: str = "") -> str:
    """Return the mean over seeds and its interval."""
    return f"{values.mean():{sign}.1f} ± {float(t_margin(values)):.1f}"


def difference_table(record: Record) -> str:
    """Return the differences of accuracy between the methods under the same seeds."""
    pairs = [(10, 1), (50, 1), (50, 10)]
    names = {1: "FedAvg", 10: "K = 10", 50: "K = 50"}
    heads = ["data", "ε", *(f"{names[a]} minus {names[b]}" for a, b in pairs)]
    rows = []
    for dataset, epsilon in product(CLIENTS, EPSILONS):
        values = {k: select(record, dataset, "Bernoulli", k, epsilon)[:, 0] for k in names}
        cells = [shown(values[a] - values[b], "+") for a, b in pairs]
        rows.append([TITLES[dataset], name_of(epsilon), *cells])
    return markdown(heads, rows)


def cutoff_table(record: Record) -> str:
    """Return the accuracy of every cutoff, and those that cannot be told apart from the best.

    A cutoff is listed if the 95% interval of its difference to the best reaches 0.
    """
    heads = ["data", "ε", *(f"K = {k}" for k in CUTOFFS), "best", "not told from the best"]
    heads += [f"worst tenth: {name}" for name in METHODS]
    rows = []
    for dataset, epsilon in product(CLIENTS, EPSILONS):
        found = {k: select(record, dataset, "Bernoulli", k, epsilon) for k in CUTOFFS}
        values = {k: one[:, 0] for k, one in found.items()}
        best = max(CUTOFFS, key=lambda k, values=values: float(values[k].mean()))
        others = [k for k in CUTOFFS if k != best]
        lags = {k: values[best] - values[k] for k in others}
        alike = [str(k) for k in others if lags[k].mean() <= float(t_margin(lags[k]))]
        cells = [shown(values[k]) for k in CUTOFFS]
        cells += [str(best), ", ".join(alike) or "none"]
        cells += [shown(found[k][:, 1]) for k in METHODS.values()]
        rows.append([TITLES[dataset], name_of(epsilon), *cells])
    return markdown(heads, rows)


def noise_table(record: Record) -> str:
    """Return the mean noise in the model of a round, N / C times its deviation, at ε = 1."""
    heads = ["data", "participation", *(f"K = {k}" for k in CUTOFFS)]
    rows = []
    for dataset, presence in product(CLIENTS, PRESENCES):
        cells = []
        for cutoff in CUTOFFS:
            values = select(record, dataset, presence, cutoff, EPSILONS[0])
            z = values[:, 2].mean() if len(values) else math.nan
            noise = z * (1 / MEAN_RATE if cutoff == 1 else cutoff)
            cells.append(f"{noise:.0f} (z = {z:.1f})" if len(values) else "")
        rows.append([TITLES[dataset], presence, *cells])
    return markdown(heads, rows)


def quantile_table(record: Record) -> str:
    """Return what a norm that follows the median gains over the tuned one, under equal seeds."""
    heads = ["data", "ε", *(f"{m}: accuracy | minus the tuned norm" for m in METHODS)]
    heads = " | ".join(heads).split(" | ")
    rows = []
    for dataset, epsilon in product(CLIENTS, EPSILONS[:-1]):
        cells = []
        for cutoff in METHODS.values():
            where = dataset, "Bernoulli", cutoff, epsilon
            follows, tuned = (select(record, *where, q)[:, 0] for q in (QUANTILE, None))
            cells += [shown(follows), shown(follows - tuned, "+")]
        rows.append([TITLES[dataset], name_of(epsilon), *cells])
    return markdown(heads, rows)


def draw_methods(record: Record) -> None:
    """Draw accuracy and worst tenth against ε with their 95% intervals."""
    figure, panels = new_figure(5.4, 2 * len(CLIENTS), width=11.0, rows=len(PRESENCES))
    places = np.arange(len(EPSILONS))
    cases = product(PRESENCES, CLIENTS, enumerate(("accuracy", "worst tenth")))
    for panel, (presence, dataset, (which, what)) in zip(panels, cases, strict=True):
        for m, (name, cutoff) in enumerate(METHODS.items()):
            values = [select(record, dataset, presence, cutoff, e)[:, which] for e in EPSILONS]
            _draw_line(panel, places + 0.08 * (m - 1), values, name, COLOURS[m])
        panel.set_title(f"{TITLES[dataset]}, {presence}: {what}", fontsize=8)
        panel.set_xticks(places, [name_of(epsilon) for epsilon in EPSILONS])
        panel.set_xlabel("ε of the client that loses most")
        panel.set_ylabel("%")
        panel.grid(alpha=0.25)
    place_legend(*panels)
    save_figure(figure, IMAGES / "privacy.png")


def draw_cutoffs(record: Record) -> None:
    """Draw accuracy and worst tenth against K for every ε."""
    figure, panels = new_figure(2.8, 2 * len(CLIENTS), width=11.0)
    places = np.arange(len(CUTOFFS))
    cases = product(CLIENTS, enumerate(("accuracy", "worst tenth")))
    for panel, (dataset, (which, what)) in zip(panels, cases, strict=True):
        for e, epsilon in enumerate(EPSILONS):
            values = [select(record, dataset, "Bernoulli", k, epsilon)[:, which] for k in CUTOFFS]
            shift = 0.06 * (e - 2)
            _draw_line(panel, places + shift, values, f"ε = {name_of(epsilon)}", COLOURS[e])
        panel.set_title(f"{TITLES[dataset]}: {what}", fontsize=8)
        panel.set_xticks(places, [str(cutoff) for cutoff in CUTOFFS])
        panel.set_xlabel("K (1: FedAvg)")
        panel.set_ylabel("%")
        panel.grid(alpha=0.25)
    place_legend(*panels)
    save_figure(figure, IMAGES / "privacy-cutoff.png")


def _draw_line(panel: Any, places: Numbers, values: list[Numbers], label: str, colour: str) -> None:
    panel.errorbar(
        places,
        [v.mean() for v in values],
        yerr=[float(t_margin(v)) for v in values],
        fmt="o-",
        ms=4,
        lw=1,
        color=colour,
        label=label,
    )


def render(record: Record) -> str:
    """Return the part of the page that is generated."""
    return "\n\n".join(
        [
            "Under Bernoulli participation; the figure has Markov as well. K = 1 is FedAvg:",
            cutoff_table(record),
            "Differences of accuracy under the same seeds, in points:",
            difference_table(record),
            "Deviation of the noise in the model of a round, times N / C, at ε = 1:",
            noise_table(record),
            "A norm that begins at 1 and follows the median of the norms:",
            quantile_table(record),
        ]
    )


def load_shown() -> Record:
    """Return the runs that the page shows: those with the norms that are the best."""
    shown = set(training_settings(complete(RECORDS / "privacy-tuning.jsonl", [])))
    return [r for r in complete(RECORDS / "privacy.jsonl", []) if setting_of(r) in shown]


def write() -> None:
    """Put the tables into the page, and draw the figures."""
    record = load_shown()
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{render(record)}\n{END}{tail}", encoding="utf-8")
    draw_methods(record)
    draw_cutoffs(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["tune", "train", "write"])
    torch.set_num_threads(1)
    command = parser.parse_args().command
    if command == "tune":
        complete(RECORDS / "privacy-tuning.jsonl", tuning_settings())
    elif command == "train":
        tuned = complete(RECORDS / "privacy-tuning.jsonl", [])
        complete(RECORDS / "privacy.jsonl", training_settings(tuned))
    else:
        write()


if __name__ == "__main__":
    main()
