"""The server: Flower's own app with fedtide's strategy in the place of FedAvg."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from task import model, test_set

from fedtide.algorithms import FedAU
from fedtide.flower import FedTide, initial_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or go on with what an earlier submission has begun."""
    config = context.run_config
    strategy = FedTide(
        FedAU(cutoff=int(config["cutoff"])),
        clients=int(config["num-clients"]),
        min_available_nodes=int(config["num-clients"]),
        state=config["state"] or None,
        ledger=config["ledger"] or None,
        federation=config["federation"],
    )
    strategy.start(
        grid,
        initial_arrays(model()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return how many of the test images the model gets right."""
    network = model()
    network.load_state_dict(arrays.to_torch_state_dict())
    images, labels = test_set()
    with torch.no_grad():
        right = (network(images).argmax(1) == labels).float().mean()
    return MetricRecord({"accuracy": float(right)})
