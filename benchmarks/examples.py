"""The README's results: examples with more seeds than they have.

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

SEEDS = {"rare-clients": 20, "digits": 20, "fashion": 10}
WORST = "client_class_weighted_test_accuracy_worst_tenth"
COLUMNS = ("test_accuracy", WORST, "loss", "participation_loss")
TITLES = {"fedavg": "FedAvg", "fedau": "FedAU", "fedvarp": "FedVARP", "scaffold": "SCAFFOLD"}

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
        for method in runs["method"].unique()
    }


def mean_text(values: Numbers) -> str:
    """Return the mean in per cent and its 95 % interval (Student's t)."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{100 * values.mean():.1f} ± {100 * half:.1f}"


def rare_text() -> list[str]:
    """Return the table of the methods with rare clients."""
    figures = load("rare-clients")
    lines = ["| method | worst tenth of the clients % | test accuracy % |", "|---|---|---|"]
    for method, title in TITLES.items():
        cells = [mean_text(figures[method][column]) for column in (WORST, "test_accuracy")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def digits_text() -> list[str]:
    """Return a sentence on the digits."""
    figures = load("digits")
    worst = [100 * np.median(runs[WORST]) for runs in figures.values()]
    fedau, fedavg = figures["fedau"]["loss"], figures["fedavg"]["loss"]
    p = stats.wilcoxon(fedau, fedavg).pvalue
    return [
        "Bias does not always decide. In `fedtide run digits`, with a network that fits all data "
        f"(20 seeds), the medians of the worst tenth are between {min(worst):.1f} and "
        f"{max(worst):.1f} %, and FedAU's training loss is lower than FedAvg's "
        f"in {(fedau < fedavg).sum()} of {len(fedau)} (p = {p:.3f}, Wilcoxon's signed-rank test)."
    ]


def fashion_text() -> list[str]:
    """Return a sentence on Fashion-MNIST."""
    accuracy = {method: 100 * runs["test_accuracy"] for method, runs in load("fashion").items()}
    means = [values.mean() for values in accuracy.values()]
    gaps = accuracy["fedau"] - accuracy["fedavg"]
    half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
    return [
        "On Fashion-MNIST with 250 clients and 300 rounds of logistic "
        f"regression (`fedtide run fashion`, {len(gaps)} seeds), the mean test accuracies are "
        f"between {min(means):.1f} and {max(means):.1f} %, and FedAU differs from FedAvg by "
        f"{gaps.mean():.1f} ± {half:.1f} points (95 %, Student's t)."
    ]


def write() -> None:
    """Put the results into the README between their marks."""
    text = PAGE.read_text(encoding="utf-8")
    texts = {"rare": rare_text(), "others": [" ".join(digits_text() + fashion_text())]}
    for name, lines in texts.items():
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
