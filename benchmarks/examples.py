"""The README's results: the examples `digits` and `fashion` with more seeds than they have.

    python benchmarks/examples.py record RUNS     # run what is missing below the folder RUNS
    python benchmarks/examples.py write

`record` writes the runs' final results to records/examples.json, `write` puts them into the README.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy import stats

HERE = Path(__file__).parent
RECORD = HERE / "records" / "examples.json"
PAGE = HERE.parent / "README.md"

SEEDS = {"digits": 20, "fashion": 10}
METHODS = {
    "fedavg": "FedAvg, mean over the participants",
    "fedavg-all": "FedAvg, mean over all clients",
    "fedau": "FedAU, cutoff 50",
    "known-rates": "known rates",
}
WORST = "client_class_weighted_test_accuracy_worst_tenth"
COLUMNS = {
    "test_accuracy": ("test accuracy %", 100, 1),
    WORST: ("worst tenth of clients %", 100, 1),
    "loss": ("training loss, equal weights", 1, 3),
    "participation_loss": ("weighted by participation", 1, 3),
}

Numbers = NDArray[np.float64]


def record(runs: Path) -> None:
    """Run the examples below the folder, except those already run, and write the record."""
    found = {}
    for name, seeds in SEEDS.items():
        listed = f"seeds={list(range(1, seeds + 1))}"
        fedtide, out = Path(sys.executable).with_name("fedtide"), runs / name
        subprocess.run([fedtide, "run", name, "--out", out, "--resume", listed], check=True)
        table = pl.read_parquet(runs / name / "results.parquet").sort("method", "seed")
        found[name] = {
            "version": f"PyTorch {torch.__version__}",
            "runs": table.select("method", "seed", *COLUMNS).to_dicts(),
        }
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def load(name: str) -> dict[str, dict[str, Numbers]]:
    """Return the numbers of all seeds, in their order, by method and column."""
    runs = pl.DataFrame(json.loads(RECORD.read_text(encoding="utf-8"))[name]["runs"])
    return {
        method: {
            column: runs.filter(pl.col("method") == method).sort("seed")[column].to_numpy()
            for column in COLUMNS
        }
        for method in METHODS
    }


def quartiles(values: Numbers, scale: int, digits: int) -> str:
    """Return the median and, in brackets, the quartiles."""
    low, middle, high = scale * np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def lower(first: Numbers, second: Numbers) -> str:
    """Return in how many seeds the first is lower, and the p-value of the signed-rank test."""
    p = stats.wilcoxon(first, second).pvalue
    return f"in {(first < second).sum()} of {len(first)} seeds (p = {p:.3f})"


def digits_text() -> list[str]:
    """Return the table of the digits, and what it shows."""
    figures = load("digits")
    lines = ["| method | " + " | ".join(title for title, _, _ in COLUMNS.values()) + " |"]
    lines.append("|---" * (1 + len(COLUMNS)) + "|")
    for method, title in METHODS.items():
        cells = [quartiles(figures[method][c], *form) for c, (_, *form) in COLUMNS.items()]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    loss = {method: figures[method]["loss"] for method in METHODS}
    present = {method: figures[method]["participation_loss"] for method in METHODS}
    worst = loss["fedavg"].argmax()
    fedau, known = lower(loss["fedau"], loss["fedavg"]), lower(loss["known-rates"], loss["fedavg"])
    return [
        *lines,
        "",
        "The first loss weights all clients equally and is the objective. The second weights each "
        "client by its mean share of a round's participants, as FedAvg's mean over the "
        f"participants does. Compared with that mean, the first is lower {fedau} with FedAU and "
        f"{known} with known rates; the second is higher with FedAU "
        f"{lower(present['fedavg'], present['fedau'])}; p-values are those of Wilcoxon's "
        "signed-rank test. The accuracies differ little, except that FedAvg's mean over the "
        f"participants fails in one seed (loss {loss['fedavg'][worst]:.2f}, accuracy "
        f"{100 * figures['fedavg']['test_accuracy'][worst]:.0f} %).",
    ]


def fashion_text() -> list[str]:
    """Return a sentence on Fashion-MNIST."""
    accuracy = {method: 100 * runs["test_accuracy"] for method, runs in load("fashion").items()}
    means = [values.mean() for values in accuracy.values()]
    gaps = accuracy["fedau"] - accuracy["fedavg"]
    half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
    return [
        "Bias does not always decide: on Fashion-MNIST with 250 clients and 300 rounds of logistic "
        f"regression (`fedtide run fashion`, {len(gaps)} seeds), the mean test accuracies are "
        f"between {min(means):.1f} and {max(means):.1f} %, and FedAU differs from FedAvg by "
        f"{gaps.mean():.1f} ± {half:.1f} points (95 %, Student's t)."
    ]


def write() -> None:
    """Put the results into the README between their marks."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("digits", digits_text()), ("fashion", fashion_text())):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, _, rest = text.partition(begin)
        text = "\n".join([head + begin, *lines, end + rest.partition(end)[2]])
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Record the runs, or write the README from the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("runs", type=Path)
    commands.add_parser("write")
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.runs)
    else:
        write()


if __name__ == "__main__":
    main()
