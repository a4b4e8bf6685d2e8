"""A federated classification workload, as fedtide runs it and as one would write it by hand."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from measuring import fastest_threads, with_threads


@dataclass(frozen=True)
class Workload:
    """Federated averaging with a cohort drawn uniformly each round.

    Args:
        cohort: clients per round.
        steps: local steps.
        batch: samples per local step.
        model: the name or the parameters of the model.
        shape: of a sample.
        clients: in all.
        samples: of each client.
        lr: γ.
        classes: C.
        optimizer: of the local steps, "sgd" or "adam".
    """

    cohort: int
    steps: int
    batch: int
    model: str | dict[str, object] = "logistic"
    shape: tuple[int, ...] = (784,)
    clients: int = 1000
    samples: int = 60
    lr: float = 0.01
    classes: int = 10
    optimizer: str = "sgd"

    def write_data(self, folder: Path) -> None:
        """Write random samples, as many as the clients hold, with numbers like the plain loop's."""
        rng = np.random.default_rng(0)
        for name, size in (("train", self.clients * self.samples), ("test", 100)):
            images = rng.standard_normal((size, *self.shape), dtype=np.float32)
            labels = rng.integers(0, self.classes, size)
            labels[: self.classes] = np.arange(self.classes)
            frame = pl.DataFrame({"image": images, "label": labels})
            frame.write_parquet(folder / f"{name}.parquet")

    def draw_client(self, client: int) -> tuple[Tensor, Tensor]:
        """Return random samples of a client and their classes, for other simulators."""
        draw = torch.Generator().manual_seed(client)
        x = torch.randn(self.samples, *self.shape, generator=draw)
        return x, torch.randint(self.classes, (self.samples,), generator=draw)

    def experiment(self, folder: Path, trainer: str, **changes: object) -> Experiment:
        """Return the experiment on the data in the folder; `changes` replace its fields."""
        fields = {
            "rounds": 10**6,
            "problem": {
                "type": "classification",
                "dataset": str(folder),
                "clients": self.clients,
                "partition": "iid",
                "model": self.model,
            },
            "participation": {"type": "uniform", "size": self.cohort},
            "algorithm": "fedavg",
            "local": {
                "steps": self.steps,
                "batch_size": self.batch,
                "lr": self.lr,
                "optimizer": self.optimizer,
            },
            "evaluation": {"every": 0},
            "trainer": trainer,
        }
        return Experiment.from_dict(fields | changes)

    def run(
        self,
        folder: Path,
        trainer: str,
        evaluation: dict[str, object] | None = None,
        dtype: str = "float32",
        rounds: int = 10**6,
    ) -> tuple[Run, float]:
        """Return a run that is under way, and the seconds of its first round, which prepares."""
        evaluation = evaluation or {"every": 0}
        changes = {"evaluation": evaluation, "dtype": dtype, "rounds": rounds}
        run = Run(self.experiment(folder, trainer, **changes))
        began = time.perf_counter()
        run.round()
        seconds = time.perf_counter() - began
        run.round()
        return run, seconds


class PlainLoop:
    """The same round written by hand: one client after another, all minibatches ready in memory.

    Args:
        work: its shape.
        model: the network.

    Attributes:
        threads: how many of PyTorch's threads it uses: 1 or all, whichever is faster.
    """

    def __init__(self, work: Workload, model: nn.Module) -> None:
        self._work, self._model = work, model
        shape = (work.cohort, work.steps, work.batch)
        self._x = torch.randn(*shape, *work.shape)
        self._y = torch.randint(work.classes, shape)
        self.threads = fastest_threads(self._train)

    def round(self) -> None:
        """Train all clients and average their models."""
        with_threads(self.threads, self._train)

    def _train(self) -> None:
        mean: dict[str, Tensor] = {}
        for client in range(self._work.cohort):
            local = copy.deepcopy(self._model)
            kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[self._work.optimizer]
            optimizer = kind(local.parameters(), lr=self._work.lr)
            for step in range(self._work.steps):
                optimizer.zero_grad()
                logits = local(self._x[client, step])
                nn.functional.cross_entropy(logits, self._y[client, step]).backward()
                optimizer.step()
            for name, tensor in local.state_dict().items():
                mean[name] = mean.get(name, 0) + tensor / self._work.cohort
        self._model.load_state_dict(mean)
