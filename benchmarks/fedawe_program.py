"""The methods and patterns of FedAWE's experiments, compared with its authors' program.

    python benchmarks/fedawe_program.py run FOLDER
    python benchmarks/fedawe_program.py write

FOLDER holds github.com/mingxiang12/FedAWE at e0b8538. `run` runs the unmodified program on the CPU
and some images of CIFAR-10 (in a folder in FEDTIDE_DATA), and records who took part with which
probability, the models that the clients returned, and the server's models. fedtide's methods then
get the same cohorts and updates; the distances of their models from the program's are written to
records/fedawe_program.json. `write` puts what they show into docs/methods-evidence.md. The program
needs torchvision only for images, which are read here without it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms import (
    MIFA,
    Algorithm,
    ClientUpdates,
    Cohort,
    FedAU,
    FedAvg,
    FedAWE,
    FedVARP,
    Instructions,
    KnownRates,
    RoundDriver,
)
from fedtide.leaderboard.cells import load_results
from fedtide.leaderboard.spec import load_leaderboard
from fedtide.participation import Availability, Bernoulli, Fluctuating
from fedtide.population import Population
from fedtide.problems.datasets.catalogue import load
from fedtide.provenance import machine, versions

HERE = Path(__file__).parent
RECORD = HERE / "records" / "fedawe_program.json"
PAGE = HERE.parent / "docs" / "methods-evidence.md"
LEADERBOARD = HERE.parent / "results" / "leaderboard.parquet"
BEGIN, END = "<!-- FedAWE's program: begin -->", "<!-- FedAWE's program: end -->"

CLIENTS, IMAGES, BATCH, ROUNDS, SEED = 20, 4000, 8, 40, 3  # two periods of each pattern
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # as in the program
CLIP = 0.5
"""The norm to which the program clips the mean innovation of FedAWE."""

PATTERNS = {"stationary": 6, "staircase": 5, "sine": 1, "interleaved sine": 4}
"""The program's numbers of them."""

METHODS: dict[str, Algorithm[Any]] = {
    "fedawe": FedAWE(clip=CLIP),
    "fedavg": FedAvg(),
    "fedall": FedAvg(weights="all"),
    "fedau": FedAU(cutoff=50),
    "fedknown": KnownRates(),
    "mifa": MIFA(),
    "fedvarp": FedVARP(),
}
"""fedtide's methods by the program's names."""

CASES = [
    (method, pattern, 0.01)
    for method in METHODS
    for pattern in PATTERNS
    if method != "fedknown" or pattern == "stationary"  # else the program knows each round's
]
"""Method, pattern and the learning rate of the first round."""


def process(pattern: str, rates: list[float]) -> Availability:
    """Return fedtide's process of a pattern."""
    if pattern == "stationary":
        return Bernoulli(rates)
    shape: Any = pattern.replace(" ", "-")
    return Fluctuating(rates, shape=shape)


class Images:
    """Some images of CIFAR-10, as the program's own data set gives them."""

    def __init__(self) -> None:
        data = load("cifar10").train
        pixels = torch.as_tensor(np.asarray(data.features[:IMAGES])).float() / 255
        shape = (1, 3, 1, 1)
        mean, deviation = torch.tensor(MEAN).view(shape), torch.tensor(DEVIATION).view(shape)
        self.images = (pixels.view(-1, 3, 32, 32) - mean) / deviation
        self.targets = torch.as_tensor(np.asarray(data.labels[:IMAGES]))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.targets[index]


class Notes:
    """A record of what the program did, round by round.

    Args:
        module: the one with the program's loop.
    """

    def __init__(self, module: Any) -> None:
        self.probabilities: list[float] = []
        self.took_part: list[bool] = []
        self.weights: list[Tensor] = []
        self.rounds: list[dict[str, Any]] = []
        self.clipped = 0
        notes, sampler, model = self, module.ClientSampler, module.Model

        class NotedSampler(sampler):
            def sample(self) -> bool:
                drawn = bool(super().sample())
                notes.probabilities.append(float(self.participation_prob))
                notes.took_part.append(drawn)
                return drawn

        class NotedModel(model):
            def get_weight(self) -> Tensor:
                weight: Tensor = super().get_weight()
                notes.weights.append(weight.clone())
                return weight

        module.ClientSampler, module.Model = NotedSampler, NotedModel
        module.stats_collector = lambda prefix: self
        module.load_data = lambda *_: (Images(), Images())
        module.data_participation_each_node = self._noting_rates(
            module.data_participation_each_node
        )
        if hasattr(module, "accumulation"):
            module.accumulation = self._noting_clips(module.accumulation)

    def _noting_rates(self, draw: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            users, rates = draw(*arguments)
            self.rates = rates.tolist()
            return users, rates

        return noted

    def _noting_clips(self, accumulation: Any) -> Any:
        def noted(base: Tensor, delta: Tensor, number: float, *rest: Any) -> Any:
            self.clipped += bool(delta.norm() / number > CLIP)
            return accumulation(base, delta, number, *rest)

        return noted

    def collect_stat_eval(self, seed: int, rounds: int, model: Any, *rest: Any) -> None:
        """Note the end of a round; the program evaluates after each."""
        _, _, evaluated, *last = rest
        self.rounds.append(
            {
                "probabilities": self.probabilities,
                "clients": np.flatnonzero(self.took_part),
                "returned": self.weights[-sum(self.took_part) :] if any(self.took_part) else [],
                "model": (last[0] if last else evaluated).clone(),
                "output": (evaluated.double().mean(dim=0) if last else evaluated.clone()),
            }
        )
        if len(self.rounds) == 1:
            self.start = self.weights[0]
        self.probabilities, self.took_part, self.weights = [], [], []


def run_program(folder: Path, method: str, pattern: str, lr: float) -> Notes:
    """Run the authors' program and return what it did."""
    transforms, datasets = ModuleType("torchvision.transforms"), ModuleType("torchvision.datasets")
    for name in ("Compose", "RandomCrop", "RandomHorizontalFlip"):  # images stay as they are
        setattr(transforms, name, lambda *_, **__: lambda images: images)
    for name in ("CIFAR10", "SVHN", "ImageFolder", "FashionMNIST"):
        setattr(datasets, name, type(name, (), {}))
    vision: Any = ModuleType("torchvision")
    vision.transforms, vision.datasets = transforms, datasets
    sys.modules |= {
        "torchvision": vision,
        "torchvision.transforms": transforms,
        "torchvision.datasets": datasets,
    }
    options = {
        "method": method,
        "fluctuate": PATTERNS[pattern],
        "lr": lr,
        "num_clients": CLIENTS,
        "batch_size": BATCH,
        "total_rounds": ROUNDS,
        "eval_freq": 1,
        "dirich_alpha": 1.0,
        "seeds": SEED,
        "gpu": 0,
    }
    sys.argv = ["main", *(f"--{name}={value}" for name, value in options.items())]
    sys.path.insert(0, str(folder))
    to = torch.Tensor.to

    def to_cpu(tensor: Tensor, *where: Any, **kinds: Any) -> Tensor:
        found: Tensor = to(tensor, *("cpu" if x == "cuda" else x for x in where), **kinds)
        return found

    torch.Tensor.to = to_cpu  # type: ignore[assignment,method-assign]
    module: Any = importlib.import_module("varying_awe" if method == "fedawe" else "varying_main")
    notes = Notes(module)
    (module.varying_dynamics_awe if method == "fedawe" else module.varying_dynamics)()
    return notes


def compare(folder: Path, method: str, pattern: str, lr: float) -> dict[str, Any]:
    """Return how far fedtide's models are from the program's, given what its clients returned."""
    notes = run_program(folder, method, pattern, lr)
    table = np.array([found["probabilities"] for found in notes.rounds])
    known = process(pattern, notes.rates).known_rates(Population(CLIENTS), seed=0)
    assert known is not None
    start = notes.start.double()
    driver = RoundDriver(METHODS[method], start, Population(CLIENTS, rates=known))
    furthest, sent = 0.0, dict.fromkeys(range(CLIENTS), start)
    for found in notes.rounds:
        clients = found["clients"].tolist()
        updates = {
            n: model.double() - sent[n] for n, model in zip(clients, found["returned"], strict=True)
        }

        def train(
            instructions: Instructions, cohort: Cohort, updates: dict[int, Tensor] = updates
        ) -> ClientUpdates:
            deltas = torch.stack([updates[n] for n in cohort.clients.tolist()])
            steps = torch.full((len(deltas),), 10)
            return ClientUpdates(cohort.clients, cohort.weights, deltas, lr, steps)

        driver.run(Cohort.uniform(torch.as_tensor(found["clients"])), lr, train)
        receivers = clients if method == "fedawe" else range(CLIENTS)
        sent |= dict.fromkeys(receivers, found["model"].double())
        for own, other in ((driver.state.model, found["model"]), (driver.output, found["output"])):
            moved = float((other.double() - start).norm())
            furthest = max(furthest, float((own - other.double()).norm()) / max(moved, 1e-12))
    return {
        "method": method,
        "pattern": pattern,
        "lr": lr,
        "participations": sum(len(found["clients"]) for found in notes.rounds),
        "empty rounds": sum(not len(found["clients"]) for found in notes.rounds),
        "difference of models": furthest,
        "difference of rates": float(np.abs(known - table.mean(axis=0)).max()),
        "clipped rounds": notes.clipped,
    }


def run(folder: Path) -> None:
    """Compare every case in a process of its own, as the program reads its options on import."""
    rows = []
    for method, pattern, lr in CASES:
        case = [method, pattern, str(lr)]
        command = [sys.executable, __file__, "case", str(folder), *case]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    found = {
        "program": "github.com/mingxiang12/FedAWE at e0b8538",
        "seed": SEED,
        "rounds": ROUNDS,
        "versions": versions(["fedtide", "torch", "numpy"]),
        "machine": machine(),
        "cases": rows,
    }
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def write() -> None:
    """Write what the record shows into the page."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = found["cases"]
    worst = [max(row[f"difference of {of}"] for row in rows) for of in ("models", "rates")]
    clipping = [row["clipped rounds"] for row in rows if row["clipped rounds"]]
    took_part = sum(row["participations"] for row in rows if row["method"] == "fedawe")
    lines = [
        f"In all {len(rows)} pairs of a method and a pattern, models differ by at most "
        f"{worst[0]:.1e} and rates by at most {worst[1]:.1e}, over {took_part} participations in "
        f"all four patterns; FedAWE clips in {sum(clipping)} of {len(clipping) * found['rounds']} "
        "rounds.",
        "",
        _beside_fedau(),
    ]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    shown = "\n".join(lines)
    PAGE.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}", encoding="utf-8")


def _beside_fedau() -> str:
    """Return how FedAWE and FedAU compare on the leaderboard, from its records."""
    board, words = load_leaderboard(), []
    results = load_results(board.cells(), LEADERBOARD)
    for problem, name in (
        ("quadratic", "quadratics"),
        ("digits", "digits"),
        ("fashion", "Fashion-MNIST"),
    ):
        figures, steps = [], []
        for pattern in board.patterns:
            own, other = (results[problem, pattern, method] for method in ("fedawe", "fedau"))
            figures.append(np.mean(own.figures) / np.mean(other.figures))
            steps.append(np.prod(own.best) / other.best[0])  # γ η; FedAU has η = 1
        better = sum(ratio < 1 for ratio in figures)
        words.append(
            f"on {name} it is better in {better} of {len(figures)} patterns, its value is "
            f"{np.median(figures):.2g} times and its γη {np.median(steps):.2g} times FedAU's"
        )
    return (
        "FedAWE compared with FedAU on the [leaderboard](leaderboard.md), both tuned (medians over "
        f"the patterns; values are excess losses or errors): {'; '.join(words)}."
    )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["run", "case", "write"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("case", nargs="*")
    given = parser.parse_args()
    if given.action == "write":
        write()
    elif given.folder is None:
        parser.error("give the folder with the program")
    elif given.action == "run":
        run(given.folder)
    else:
        method, pattern, lr = given.case
        print(json.dumps(compare(given.folder, method, pattern, float(lr))))


if __name__ == "__main__":
    main()
