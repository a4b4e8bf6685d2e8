"""Other simulators on the same workload: pfl-research, Flower's simulation engine, FLGo, BlazeFL.

All run unmodified, each as its documentation shows: pfl with its SimulatedBackend in one process
and one of PyTorch's threads or all, whichever is faster, Flower with Ray and one actor per core,
FLGo with its defaults in one process and one thread, BlazeFL with threads.
`make bench` installs them (`benchmarks/requirements.txt`).

    PYTHONPATH=.venv/peers python benchmarks/peers.py
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import limits
from measuring import Section, machine, with_threads
from workload import Workload

COHORTS = (10, 100)
STEPS, BATCH = 6, 10
FLGO_TASK = """
import torch
from torch.utils.data import TensorDataset

train_data = [TensorDataset(*client) for client in torch.load("samples.pt")]


def get_model():
    return torch.nn.Linear(784, 10)


def data_to_device(batch, device):
    return [part.to(device) for part in batch]


def compute_loss(model, batch, device):
    x, y = data_to_device(batch, device)
    return {"loss": torch.nn.functional.cross_entropy(model(x), y)}


def eval(model, loader, device):
    return {}
"""


def section() -> Section:
    """Measure the installed simulators."""
    found = Section(
        "Other simulators",
        "784-10, 6 steps of 10 samples, 1000 clients with 60 samples each, federated averaging, no "
        "evaluation, all on the same machine one after another; seconds per round are medians, "
        "without the first round. fedtide compiles; limit: see above. pfl draws clients with "
        "replacement; pfl, Flower and FLGo train on the samples of a client in a fixed order. "
        "Flower's rounds include its waits between two looks for replies.",
        (
            "clients a round",
            "simulator",
            "ms per round",
            "fedtide ms",
            "share of limit",
            "gain",
        ),
    )
    for cohort in COHORTS:
        work = Workload(cohort, STEPS, BATCH)
        ours = 1000 * _fedtide(work)
        share = limits.need(work, nn.Linear(784, work.classes)).share(ours)
        for name, (package, measure, rounds) in PEERS.items():
            if importlib.util.find_spec(package) is None:
                missing = f"{name} is not installed here{MISSING.get(name, '')}."
                if missing not in found.notes:
                    found.notes.append(missing)
                continue
            theirs = 1000 * measure(work, rounds[cohort])
            found.rows.append(
                (
                    f"{cohort}",
                    f"{name} {importlib.metadata.version(package)}",
                    f"{theirs:,.1f}",
                    f"{ours:.2f}",
                    share,
                    f"**{theirs / ours:.0f}x**",
                )
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
            tuple(part.to(device) for part in work.draw_client(client)),
            user_id=str(client),
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


def _pfl(work: Workload, rounds: int) -> float:
    """Return the median seconds with one of PyTorch's threads or all, whichever is faster."""
    counts = {1, torch.get_num_threads()}
    return min(with_threads(count, lambda: run_pfl(work, rounds)) for count in counts)


def _flower(work: Workload, rounds: int) -> float:
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from flower_client import clients

    ticks: list[float] = []
    server = ServerApp()

    class Timed(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            failed = sum(reply.has_error() for reply in replies)
            if failed or len(replies) != work.cohort:
                trained = len(replies) - failed
                raise RuntimeError(f"only {trained} of {work.cohort} clients of Flower trained")
            found = super().aggregate_train(server_round, replies)
            ticks.append(time.perf_counter())
            return found

    @server.main()
    def main(grid, context):
        strategy = Timed(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,  # also in the first round, before all nodes are known
            min_available_nodes=work.clients,
        )
        arrays = ArrayRecord(nn.Linear(784, work.classes).state_dict())
        strategy.start(grid, arrays, num_rounds=rounds)

    run_simulation(
        server,
        clients,
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"address": "local"},  # not a cluster that is running here already
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    return statistics.median(np.diff(ticks))


def _flgo(work: Workload, rounds: int) -> float:
    import flgo
    from flgo.algorithm import fedavg

    ticks: list[float] = []

    class Server(fedavg.Server):
        def iterate(self):
            updated = super().iterate()
            ticks.append(time.perf_counter())
            return updated

    class Client(fedavg.Client):
        pass

    class Timed:
        """FLGo wraps the methods of these classes, so each run has its own."""

    Timed.Server, Timed.Client = Server, Client
    threads = torch.get_num_threads()
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        torch.save([work.draw_client(client) for client in range(work.clients)], "samples.pt")
        Path("settings.py").write_text(FLGO_TASK, encoding="utf-8")
        name = f"flgo_task_{work.cohort}"
        sys.path.insert(0, folder)
        try:
            task = flgo.gen_direct_task_from_file(name, "settings.py")
            options = {
                "num_rounds": rounds,
                "proportion": work.cohort / work.clients,
                "sample": "uniform",
                "aggregate": "uniform",
                "num_epochs": 1,
                "batch_size": work.batch,
                "learning_rate": work.lr,
                "train_holdout": 0.0,
                "eval_interval": -1,
                "no_log_console": True,
                "no_tqdm": True,
            }
            flgo.init(task, Timed, options).run()
        finally:
            sys.path.remove(folder)
            torch.set_num_threads(threads)  # FLGo takes one
    return statistics.median(np.diff(ticks))


def _blazefl(work: Workload, rounds: int) -> float:
    """Return the median seconds with one thread or with one per core, whichever is faster.

    Its processes took two to three times as long, as they are started again in every round.
    """
    from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer

    class Models:
        def select_model(self, name):
            return nn.Linear(784, work.classes)

    class Data:
        def get_dataloader(self, type_, cid, batch_size, generator):
            return DataLoader(samples[cid], batch_size, shuffle=True, generator=generator)

    samples = [TensorDataset(*work.draw_client(client)) for client in range(work.clients)]
    common = {
        "model_selector": Models(),
        "model_name": "linear",
        "dataset": Data(),
        "device": "cpu",
        "num_clients": work.clients,
        "batch_size": work.batch,
        "seed": 0,
    }
    found = []
    for workers in {1, os.cpu_count() or 1}:
        server = FedAvgBaseServerHandler(
            **common, global_round=rounds, sample_ratio=work.cohort / work.clients
        )
        trainer = FedAvgThreadPoolClientTrainer(
            **common, epochs=1, lr=work.lr, num_parallels=workers
        )
        trainer.progress_fn = list  # without a bar
        ticks: list[float] = []
        for _ in range(rounds):
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for update in trainer.uplink_package():
                server.load(update)
            ticks.append(time.perf_counter())
        found.append(statistics.median(np.diff(ticks)))
    return min(found)


# simulator: package, how it is measured, rounds by clients a round
PEERS = {
    "pfl": ("pfl", _pfl, {10: 30, 100: 12}),
    "Flower": ("flwr", _flower, {10: 16, 100: 8}),
    "FLGo": ("flgo", _flgo, {10: 30, 100: 12}),
    "BlazeFL": ("blazefl", _blazefl, {10: 30, 100: 12}),
}
MISSING = {
    "pfl": " (0.6.0 needs Python 3.12 or older)",
    "BlazeFL": " (2.0.3 needs Python 3.12 or newer, 3.0.0 needs 3.14)",
}


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
