"""The server: an ordinary Flower app with fedtide's strategy in place of FedAvg."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from task import model, test_set

from fedtide.algorithms import FedAU
from fedtide.flower import FedTide, initial_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, or resume an earlier submission."""
    config = context.run_config
    strategy = FedTide(
        FedAU(cutoff=int(config["cutoff"])),
        clients=config["clients"].split(),
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
    """Return the accuracy on the test images."""
    network = model()
    network.load_state_dict(arrays.to_torch_state_dict())
    images, labels = test_set()
    with torch.no_grad():
        accuracy = (network(images).argmax(1) == labels).float().mean()
    return MetricRecord({"accuracy": float(accuracy)})
