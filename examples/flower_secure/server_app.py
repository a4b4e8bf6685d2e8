"""The server: FedAU over sums of masked updates, by Flower's legacy SecAgg+ workflow."""

import numpy as np
from client_app import CLIP, SIZE, secret
from flwr.app import Context
from flwr.common import FitIns, GetPropertiesIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import Strategy
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from fedtide.algorithms import FedAU
from fedtide.flower import ClientSideMemory

FEWEST = 3
"""In a sum of two, each of them can tell what the other sent."""


class SecureFedAU(Strategy):
    """Steps along 1/N Σ ω_n Δ_n, of which it learns the sum alone."""

    def __init__(self, clients: int, cutoff: int) -> None:
        self._clients, self._form = clients, ClientSideMemory(FedAU(cutoff=cutoff)).form
        self._x, self._accepted = np.zeros(SIZE), {}

    def initialize_parameters(self, client_manager):
        """Return x_0."""
        return ndarrays_to_parameters([self._x])

    def configure_fit(self, server_round, parameters, client_manager):
        """Ask who takes part: SecAgg+ loses the round of whoever leaves before sending keys."""
        t = server_round - 1
        asks, everybody = GetPropertiesIns({"round": t}), client_manager.all().values()
        there = [n for n in everybody if n.get_properties(asks, None, None).properties["comes"]]
        told = {"round": t, "form": self._form}
        return [
            (node, FitIns(parameters, told | {"accepted": self._accepted.get(node.node_id, -1)}))
            for node in (there if len(there) >= FEWEST else [])
        ]

    def aggregate_fit(self, server_round, results, failures):
        """Step along the sum; SecAgg+ hands over the mean in the place of every single update."""
        [mean] = parameters_to_ndarrays(results[0][1].parameters)
        self._x = self._x + len(results) * mean / self._clients
        self._accepted |= {node.node_id: server_round - 1 for node, _ in results}
        return ndarrays_to_parameters([self._x]), {}

    def evaluate(self, server_round, parameters):
        """Return, for the show, how far the model is from the average of all secrets."""
        average = sum(secret(site).numpy() for site in range(self._clients)) / self._clients
        return float(np.linalg.norm(self._x - average)), {}

    def configure_evaluate(self, server_round, parameters, client_manager):
        """Ask nobody."""
        return []

    def aggregate_evaluate(self, server_round, results, failures):
        """Return nothing."""
        return None, {}


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train."""
    config = context.run_config
    strategy = SecureFedAU(int(config["num-clients"]), int(config["cutoff"]))
    rounds = ServerConfig(num_rounds=int(config["num-server-rounds"]))
    masked = SecAggPlusWorkflow(1.0, 0.6, max_weight=1.0, clipping_range=CLIP)
    DefaultWorkflow(fit_workflow=masked)(grid, LegacyContext(context, rounds, strategy))
