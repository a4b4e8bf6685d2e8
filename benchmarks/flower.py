"""Seconds per round of `FedTide` and of Flower's own `FedAvg`, in Flower's simulation engine.

200 clients, all of them in every round; 20 rounds of each strategy, in turns of 5 within one run.
The clients only add a constant to a model of 1000 numbers, so the time is that of Flower and the
strategies. It includes FedTide's saving of state and ledger after every round, and its asking every
client for its name in the first.

    python benchmarks/flower.py
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation

from fedtide import algorithms
from fedtide.flower import FedTide

CLIENTS, ROUNDS, TURN, SIZE = 200, 20, 5, 1000


def client_app() -> ClientApp:
    """Return the client app."""
    app = ClientApp()

    @app.query("fedtide_name")
    def tell_name(message: Message, context: Context) -> Message:
        name = ConfigRecord({"name": str(context.node_config["partition-id"])})
        return Message(RecordDict({"config": name}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x = message.content["arrays"]["x"].numpy()
        arrays = ArrayRecord({"x": Array(x + np.float32(0.01))})
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def server_app(seconds: dict[str, list[float]], folder: Path) -> ServerApp:
    """Return the app that appends the seconds per round of each turn to `seconds`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        flower = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        fedtide = FedTide(
            algorithms.FedAvg(weights="data"),
            clients=CLIENTS,
            min_available_nodes=CLIENTS,
            state=folder / "state",
            ledger=f"sqlite:///{folder / 'ledger.db'}",
        )
        start = ArrayRecord({"x": Array(np.zeros(SIZE, dtype=np.float32))})
        flower.start(grid, start, num_rounds=1)  # starts the engine's workers
        for ended in range(TURN, ROUNDS + 1, TURN):
            seconds["FedAvg"].append(time_rounds(flower, grid, start, TURN))
            seconds["FedTide"].append(time_rounds(fedtide, grid, start, ended))

    return app


def time_rounds(strategy: Strategy, grid: Grid, start: ArrayRecord, rounds: int) -> float:
    """Return the seconds per round of one turn."""
    began = time.perf_counter()
    strategy.start(grid, start, num_rounds=rounds)
    return (time.perf_counter() - began) / TURN


def main() -> None:
    """Measure and print."""
    seconds: dict[str, list[float]] = {"FedAvg": [], "FedTide": []}
    with TemporaryDirectory() as folder:
        run_simulation(server_app(seconds, Path(folder)), client_app(), num_supernodes=CLIENTS)
    for name, each in seconds.items():
        print(f"{name:8} {sum(each) / len(each):.2f} s a round; turns", np.round(each, 2))
    ratios = np.divide(seconds["FedTide"], seconds["FedAvg"])
    total = sum(seconds["FedTide"]) / sum(seconds["FedAvg"])
    print(f"ratio    {total:.2f} over all {ROUNDS} rounds; median turn {median(ratios):.2f}")


if __name__ == "__main__":
    main()
