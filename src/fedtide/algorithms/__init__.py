"""How updates become the next model: one file per method."""

from fedtide.algorithms.algorithm import Algorithm, Info, Instructions, Reports, State
from fedtide.algorithms.fedau import FedAU
from fedtide.algorithms.fedavg import FedAvg
from fedtide.algorithms.known_rates import KnownRates

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "known-rates": KnownRates,
    "fedau": FedAU,
}
"""The methods by the name that experiment files use."""

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "FedAU",
    "FedAvg",
    "Info",
    "Instructions",
    "KnownRates",
    "Reports",
    "State",
]
