"""The server: an ordinary Flower app with fedtide's strategy in place of FedAvg."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from task import model, owner, test_set

from fedtide.algorithms import ALGORITHMS, Clipped, FedAU
from fedtide.flower import FedTide, initial_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or resume an earlier submission."""
    config = context.run_config
    clients = config["clients"].split()
    method = bounded(FedAU(cutoff=int(config["cutoff"]), average=0.5))
    strategy = FedTide(
        ALGORITHMS[config["method"]]() if config["method"] else method,
        clients=clients,
        state=config["state"] or None,
        keep_every=20,  # what `fedtide ledger rollback` can return to
        ledger=config["ledger"] or None,
        federation=config["federation"],
    )
    strategy.start(
        grid,
        initial_arrays(model()),
        num_rounds=int(rounds_from(config["rounds-file"]) or config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=lambda _, arrays: evaluate(arrays, len(clients)),
    )


def bounded(method: FedAU) -> Clipped:
    """Return the method with updates clipped at their median norm.

    FedAU gives a site weight for its absences. An average that forgets them, of clipped updates,
    bounds what a hostile site gains by staying away.
    """
    return Clipped(bound=1.0, quantile=0.5, inner=method)


def rounds_from(file: str) -> str:
    """Return what a file of the server says; unlike the run config, sites do not see it."""
    return Path(file).read_text(encoding="utf-8") if file else ""


def evaluate(arrays: ArrayRecord, clients: int) -> MetricRecord:
    """Return the accuracy on the test images, and on those with the digits of the worst client."""
    network = model()
    network.load_state_dict(arrays.to_torch_state_dict())
    images, labels = test_set()
    with torch.no_grad():
        right = (network(images).argmax(1) == labels).float()
    worst = min(float(right[owner(labels, clients) == n].mean()) for n in range(clients))
    return MetricRecord({"accuracy": float(right.mean()), "worst_client": worst})
