"""What a client gains by staying away until the end of a federation, and what holds it.

    python benchmarks/absence.py train
    python benchmarks/absence.py write

Digits with logistic regression and 50 clients, as in bounded_influence.py. 49 clients take part in
half of the rounds; the attacker stays away for 950 rounds, then takes part in each of the last 50
and sends −10 Δ. FedAU's ω is a mean over intervals, so that it remembers the absence. `train` runs
every method on the same participation and minibatches, with and without the attack, over three
seeds (two minutes), and writes records/absence.json; `write` puts the table into the page.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bounded_influence import CLIENTS, LR, PAGE, STEPS, Digits, Ids
from fedtide.algorithms import (
    Algorithm,
    ClientUpdates,
    Clipped,
    Cohort,
    FedAU,
    Instructions,
    RoundDriver,
    TrimmedMean,
)
from fedtide.population import Population
from fedtide.student_interval import t_margin

RECORD = Path(__file__).parent / "records" / "absence.json"
BEGIN, END = "<!-- absence: begin -->", "<!-- absence: end -->"

ROUNDS, AWAY, RATE, SEEDS = 1000, 950, 0.5, range(3)
ATTACKER, FACTOR = 10, -10.0
CUTOFFS = {"K = 50": 50, "no cutoff": None}


def _clipped(inner: Algorithm[Any]) -> Algorithm[Any]:
    return Clipped(bound=1.0, quantile=0.5, inner=inner)


def methods() -> dict[str, Algorithm[Any]]:
    """Return the methods by the names of their rows."""
    found: dict[str, Algorithm[Any]] = {}
    for name, cutoff in CUTOFFS.items():
        mean, slow, fast = (FedAU(cutoff=cutoff, average=a) for a in ("mean", 0.9, 0.5))
        found |= {
            f"FedAU, {name}": mean,
            f"clipped, {name}": _clipped(mean),
            f"β = 0.5, {name}": fast,
            f"clipped, β = 0.5, {name}": _clipped(fast),
            f"clipped, β = 0.9, {name}": _clipped(slow),
            f"trimmed mean, {name}": TrimmedMean(trim=0.2, inner=mean),
        }
    return found


def _answer(
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
    """Return, for each method, the final accuracy and the attacker's weight in the last rounds.

    The weight is relative to an honest client's, as a mean over the rounds after its return.
    """
    problem = Digits(seed)
    present = np.random.default_rng([67, seed]).random((ROUNDS, CLIENTS)) < RATE
    if attacked:
        present[:, ATTACKER] = np.arange(ROUNDS) >= AWAY
    drivers = {
        name: RoundDriver(method, torch.zeros(650), Population(CLIENTS))
        for name, method in methods().items()
    }
    weights = {name: np.zeros(CLIENTS) for name in drivers}
    for t, row in enumerate(present):
        clients = np.flatnonzero(row)
        factors = torch.from_numpy(np.where(attacked & (clients == ATTACKER), FACTOR, 1.0))
        answer = partial(_answer, problem, problem.draw(clients), factors.float())
        for name, driver in drivers.items():
            info = driver.run(Cohort.uniform(torch.from_numpy(clients)), LR, answer)
            if t >= AWAY:
                np.add.at(weights[name], info.clients.numpy(), info.weights.double().numpy())
    found = {}
    for name, driver in drivers.items():
        honest = np.delete(weights[name], ATTACKER).mean()
        accuracy = problem.accuracies(driver.output)[1]
        found[name] = {"weight": float(weights[name][ATTACKER] / honest), "accuracy": accuracy}
    return found


def table(record: list[dict[str, Any]]) -> str:
    """Return the table of the page: means and 95 % intervals over the seeds."""

    def cell(name: str, figure: str, attacked: bool, scale: float) -> str:
        runs = [one["figures"][name][figure] for one in record if one["attacked"] == attacked]
        values = scale * np.array(runs)
        return f"{values.mean():.1f} ± {float(t_margin(values)):.1f}"

    lines = [
        "| method | K = 50: weight, an honest client's = 1 | accuracy, attacked | not attacked | "
        "no cutoff: weight | accuracy, attacked | not attacked |",
        "|---|---|---|---|---|---|---|",
    ]
    kinds = dict.fromkeys(name.rpartition(", ")[0] for name in methods())
    for kind in kinds:
        cells = []
        for cutoff in CUTOFFS:
            name = f"{kind}, {cutoff}"
            cells.append(cell(name, "weight", True, 1.0))
            cells += [cell(name, "accuracy", attacked, 100.0) for attacked in (True, False)]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


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


if __name__ == "__main__":
    main()
