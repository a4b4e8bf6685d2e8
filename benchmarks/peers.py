"""Other simulators on the same workload: pfl-research and Flower's simulation engine.

Both run unmodified, each as its documentation shows: pfl with its SimulatedBackend in one process,
Flower with Ray and one actor per core. They need `benchmarks/requirements.txt`.

    python benchmarks/peers.py
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from measuring import Section, machine
from workload import Workload

COHORTS = {10: (30, 8), 100: (8, 5)}  # rounds of pfl and of Flower
STEPS, BATCH = 6, 10


def section() -> Section:
    """Measure the installed simulators."""
    found = Section(
        "Other simulators",
        "784-10, 6 steps of 10 samples, 1000 clients with 60 samples each, federated averaging, no "
        "evaluation, all on the same machine one after another; seconds per round are medians, "
        "without the first round. fedtide compiles.",
        ("clients a round", "simulator", "ms per round", "fedtide ms", "gain"),
    )
    for cohort, (pfl_rounds, flower_rounds) in COHORTS.items():
        work = Workload(cohort, STEPS, BATCH)
        ours = 1000 * _fedtide(work)
        peers = {
            "pfl 0.6.0": (run_pfl, "pfl", pfl_rounds),
            "Flower simulation": (_flower, "flwr", flower_rounds),
        }
        for name, (measure, module, rounds) in peers.items():
            if importlib.util.find_spec(module) is None:
                missing = f"{name} is not installed here."
                if missing not in found.notes:
                    found.notes.append(missing)
                continue
            theirs = 1000 * measure(work, rounds)
            found.rows.append(
                (f"{cohort}", name, f"{theirs:,.1f}", f"{ours:.2f}", f"**{theirs / ours:.0f}x**")
            )
            print(" ".join(found.rows[-1]), flush=True)
    return found


def _fedtide(work: Workload) -> float:
    """Return the median seconds of a round."""
    with TemporaryDirectory() as folder:
        work.write_data(Path(folder))
        run, _ = work.run(Path(folder), "compiled")
        times = []
        for _ in range(200):
            began = time.perf_counter()
            run.round()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _samples(client: int, work: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(client)
    x = torch.randn(work.samples, *work.shape, generator=draw)
    return x, torch.randint(work.classes, (work.samples,), generator=draw)


def run_pfl(work: Workload, rounds: int, network: nn.Module | None = None) -> float:
    """Return the median seconds of a round of pfl, on a GPU if pfl finds one.

    Args:
        work: the workload, with one pass over a client's samples per round.
        rounds: how many are run.
        network: what is trained; None: a linear layer.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network or nn.Linear(784, work.classes)

        def forward(self, x):
            return self.network(x)

        def loss(self, x, y, eval=False):
            return nn.functional.cross_entropy(self(x), y)

        def metrics(self, x, y, eval=False):
            return {}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            ticks.append(time.perf_counter())
            return False, Metrics()

    ticks: list[float] = []
    device = "cuda" if torch.cuda.is_available() else "cpu"  # as pfl chooses for the model
    users = {
        client: PyTorchTensorDataset(
            tuple(part.to(device) for part in _samples(client, work)), user_id=str(client)
        )
        for client in range(work.clients)
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", list(users)))
    module = Classifier()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**6,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        callbacks=[Clock()],
    )
    return statistics.median(np.diff(ticks))


def _flower(work: Workload, rounds: int) -> float:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    ticks: list[float] = []
    clients, server = ClientApp(), ServerApp()

    @clients.train()
    def train(message, context):
        torch.set_num_threads(1)
        x, y = _samples(int(context.node_config["partition-id"]), work)
        network = nn.Linear(784, work.classes)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(network.parameters(), lr=work.lr)
        for step in range(work.steps):
            batch = slice(step * work.batch, (step + 1) * work.batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(network.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
        return Message(RecordDict(content), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, server_round, replies):
            found = super().aggregate_train(server_round, replies)
            ticks.append(time.perf_counter())
            return found

    @server.main()
    def main(grid, context):
        strategy = Timed(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_available_nodes=work.clients,
        )
        arrays = ArrayRecord(nn.Linear(784, work.classes).state_dict())
        strategy.start(grid, arrays, num_rounds=rounds)

    run_simulation(
        server,
        clients,
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return statistics.median(np.diff(ticks))


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
