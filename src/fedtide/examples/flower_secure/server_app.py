"""The server: FedAU over sums of masked updates, with Flower's legacy SecAgg+ workflow."""

import numpy as np
from client_app import MIN_SITES, SIZE, largest_masked, secret
from flwr.app import Context
from flwr.common import FitIns, GetPropertiesIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import Strategy
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from fedtide.algorithms import FedAU
from fedtide.flower import ClientSideMemory


class EnoughContributions(SecAggPlusWorkflow):
    """SecAgg+ that ends a round, with all masks on, if sites were lost and too few contributed."""

    def collect_masked_vectors_stage(self, grid, context, state):
        """Collect the masked updates; `active_node_ids` are then the sites that sent one."""
        is_safe = super().collect_masked_vectors_stage(grid, context, state)
        return is_safe and len(state.active_node_ids) >= MIN_SITES


class SecureFedAU(Strategy):
    """Steps along 1/N Σ ω_n Δ_n; the server learns only that sum."""

    def __init__(self, clients: int, cutoff: int) -> None:
        method = ClientSideMemory(FedAU(cutoff=cutoff))
        self._clients, self._form = clients, method.traits.client_form
        self._x, self._accepted_rounds = np.zeros(SIZE), {}

    def initialize_parameters(self, client_manager):
        """Return x_0."""
        return ndarrays_to_parameters([self._x])

    def configure_fit(self, server_round, parameters, client_manager):
        """Ask the available sites to train: one that leaves before sending keys ends the round."""
        t = server_round - 1
        cohort = [node for node in client_manager.all().values() if takes_part(node, t)]
        config = {"round": t, "form": self._form}
        return [
            (node, FitIns(parameters, config | {"accepted-round": self._accepted_round(node)}))
            for node in (cohort if len(cohort) >= MIN_SITES else [])
        ]

    def _accepted_round(self, node):
        return self._accepted_rounds.get(node.node_id, -1)

    def aggregate_fit(self, server_round, results, failures):
        """Step along the sum; SecAgg+ returns the mean in place of every single update."""
        [mean] = parameters_to_ndarrays(results[0][1].parameters)
        self._x = self._x + len(results) * mean / self._clients
        self._accepted_rounds |= {node.node_id: server_round - 1 for node, _ in results}
        return ndarrays_to_parameters([self._x]), {}

    def evaluate(self, server_round, parameters):
        """Return the distance of the model from the average of all secrets, to show progress."""
        average = sum(secret(site).numpy() for site in range(self._clients)) / self._clients
        return float(np.linalg.norm(self._x - average)), {}

    def configure_evaluate(self, server_round, parameters, client_manager):
        """Request no evaluation on sites."""
        return []

    def aggregate_evaluate(self, server_round, results, failures):
        """Return nothing, as no site evaluates."""
        return None, {}


def takes_part(node, t):
    """Ask a site whether it takes part in round t; one that fails does not."""
    try:
        answer = node.get_properties(GetPropertiesIns({"round": t}), None, None)
    except ValueError:  # an error in place of the answer
        return False
    return answer.properties["available"]


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the SecAgg+ workflow."""
    config = context.run_config
    cutoff = int(config["cutoff"])
    strategy = SecureFedAU(int(config["num-clients"]), cutoff)
    rounds = ServerConfig(num_rounds=int(config["num-server-rounds"]))
    largest = largest_masked(float(config.get("noise-multiplier", 0.0)), cutoff)
    masked = EnoughContributions(1.0, 0.6, max_weight=1.0, clipping_range=largest)
    DefaultWorkflow(fit_workflow=masked)(grid, LegacyContext(context, rounds, strategy))
