"""How the learning rates in digits.yaml were chosen: the two-stage search of FedAU's paper.

For each method, first lr with server_lr = 1, then server_lr with that lr, each the best of a grid
of quarter powers of ten by the training loss (the mean over clients) after 500 rounds, on the mean
of two seeds that the example does not report.

    python examples/digits_search.py
"""

from pathlib import Path

import numpy as np
import yaml

from fedtide import BadInput, Experiment
from fedtide.simulation import execute

RATES = [10 ** (k / 4) for k in range(-8, -1)]  # 0.01 to 0.32, as in the paper
SERVER_RATES = [10 ** (k / 4) for k in range(7)]  # 1 to 32, as in the paper
SEEDS = (101, 102)


def training_loss(base: dict, changes: dict, lr: float, server_lr: float) -> float:
    """Return the mean training loss over clients and seeds after 500 rounds; inf if it diverges."""
    algorithm = changes["algorithm"] | {"server_lr": server_lr}
    plain = base | {
        "rounds": 500,
        "evaluation": {"every": 0},
        "local": base["local"] | {"lr": lr},
        "algorithm": algorithm,
    }
    try:
        runs = [execute(Experiment.of(plain | {"seed": seed})) for seed in SEEDS]
    except BadInput:
        return float("inf")
    return float(np.mean([run.metrics["loss"][-1] for run in runs]))


def main() -> None:
    """Search for every method of the example and print what is found."""
    base = yaml.safe_load(Path(__file__).with_name("digits.yaml").read_text(encoding="utf-8"))
    del base["seeds"]
    methods = base.pop("methods")
    for method, changes in methods.items():
        losses = {lr: training_loss(base, changes, lr, 1.0) for lr in RATES}
        lr = min(losses, key=losses.__getitem__)
        server = {s: training_loss(base, changes, lr, s) for s in SERVER_RATES}
        server_lr = min(server, key=server.__getitem__)
        print(f"{method}: lr {lr:.3g}, server_lr {server_lr:.3g}, loss {server[server_lr]:.4f}")
        print("   lr:", {f"{k:.3g}": round(v, 4) for k, v in losses.items()})
        print("   server_lr:", {f"{k:.3g}": round(v, 4) for k, v in server.items()}, flush=True)


if __name__ == "__main__":
    main()
