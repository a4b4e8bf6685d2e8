"""A server that runs several methods at once, each with its own state and ledger."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from script import METHODS

from fedtide.flower import FedTide

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    methods, folder = config["methods"].split(), Path(config["folder"])

    def train(method):
        strategy = FedTide(
            METHODS[method],
            clients=config["names"].split(),
            state=folder / f"state-{method}",
            ledger=f"sqlite:///{folder / method}.db",
            min_available_nodes=config["min-nodes"],
        )
        initial = ArrayRecord({"x": Array(np.zeros(3))})
        train_config = ConfigRecord({"scripted": config["scripted"]})
        strategy.start(grid, initial, int(config["rounds"]), config["timeout"], train_config)

    with ThreadPoolExecutor(len(methods)) as pool:
        list(pool.map(train, methods))
