"""How the learning rates of the examples were chosen: the two-stage search of FedAU's paper.

For each method, first lr with server_lr = 1, then server_lr with that lr: the best of the paper's
grid (quarter powers of ten) by the training loss (the mean over clients) after 500 rounds, as the
mean of two seeds that the example does not report.

    python examples/search.py examples/digits.yaml
"""

import sys
from typing import Any

import numpy as np

from fedtide import BadInput, Experiment
from fedtide.simulation import execute
from fedtide.simulation.experiment import read_yaml

RATES = [10 ** (k / 4) for k in range(-8, -1)]  # 0.01 to 0.32
SERVER_RATES = [10 ** (k / 4) for k in range(7)]  # 1 to 32
SEEDS = (101, 102)


def training_loss(
    base: dict[str, Any], method: dict[str, Any], lr: float, server_lr: float
) -> float:
    """Return the mean training loss over clients and seeds after 500 rounds; inf if it diverges."""
    plain = base | {
        "rounds": 500,
        "evaluation": {"every": 0},
        "local": base["local"] | {"lr": lr},
        "algorithm": method["algorithm"] | {"server_lr": server_lr},
    }
    try:
        runs = [execute(Experiment.of(plain | {"seed": seed})) for seed in SEEDS]
    except BadInput:
        return float("inf")
    return float(np.mean([run.metrics["loss"][-1] for run in runs]))


def best(losses: dict[float, float]) -> float:
    """Print the losses and return the rate with the least."""
    print("  ", {f"{rate:.3g}": round(loss, 4) for rate, loss in losses.items()}, flush=True)
    return min(losses, key=losses.__getitem__)


def main(path: str) -> None:
    """Search for every method of an example and print what is found."""
    base = read_yaml(path)
    del base["seeds"]
    for name, method in base.pop("methods").items():
        lr = best({rate: training_loss(base, method, rate, 1.0) for rate in RATES})
        server_lr = best({rate: training_loss(base, method, lr, rate) for rate in SERVER_RATES})
        print(f"{name}: lr {lr:.3g}, server_lr {server_lr:.3g}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
