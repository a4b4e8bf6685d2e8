"""How updates become the next model: one file per method."""

from typing import Any

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.algorithms.amplified import Amplified
from fedtide.algorithms.amplified_scaffold import AmplifiedScaffold
from fedtide.algorithms.auto import Auto
from fedtide.algorithms.averaged import Averaged
from fedtide.algorithms.base import (
    Algorithm,
    AlgorithmState,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundInfo,
    State,
    Traits,
)
from fedtide.algorithms.central_sgd import CentralSGD
from fedtide.algorithms.clipped import Clipped
from fedtide.algorithms.driver import RoundDriver
from fedtide.algorithms.f3ast import F3AST
from fedtide.algorithms.fedadam import FedAdam, FedYogi
from fedtide.algorithms.fedau import FedAU
from fedtide.algorithms.fedavg import FedAvg
from fedtide.algorithms.fedavgm import FedAvgM
from fedtide.algorithms.fedawe import FedAWE
from fedtide.algorithms.fedbuff import FedBuff
from fedtide.algorithms.fedlaavg import FedLaAvg
from fedtide.algorithms.fedpbc import FedPBC
from fedtide.algorithms.fedprox import FedProx
from fedtide.algorithms.fedstale import FedStale
from fedtide.algorithms.fedvarp import FedVARP
from fedtide.algorithms.focus import FOCUS
from fedtide.algorithms.known_rates import KnownRates
from fedtide.algorithms.mifa import MIFA
from fedtide.algorithms.scaffold import Scaffold
from fedtide.algorithms.scaled import Scaled
from fedtide.algorithms.switch import Switch
from fedtide.algorithms.trimmed_mean import Median, TrimmedMean
from fedtide.algorithms.wait_for_all import WaitForAll
from fedtide.algorithms.weighted_fedavg import WeightedFedAvg

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    "fedavg": FedAvg,
    "known-rates": KnownRates,
    "fedau": FedAU,
    "f3ast": F3AST,
    "auto": Auto,
    "fedvarp": FedVARP,
    "fedstale": FedStale,
    "mifa": MIFA,
    "fedlaavg": FedLaAvg,
    "focus": FOCUS,
    "fedawe": FedAWE,
    "fedpbc": FedPBC,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "amplified-scaffold": AmplifiedScaffold,
    "amplified": Amplified,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedavgm": FedAvgM,
    "fedbuff": FedBuff,
    "wait-for-all": WaitForAll,
    "weighted-fedavg": WeightedFedAvg,
    "switch": Switch,
    "averaged": Averaged,
    "scaled": Scaled,
    "clipped": Clipped,
    "trimmed-mean": TrimmedMean,
    "median": Median,
    "central-sgd": CentralSGD,
}
"""The methods by the `type` that experiment files use."""

__all__ = [
    "ALGORITHMS",
    "F3AST",
    "FOCUS",
    "MIFA",
    "Algorithm",
    "AlgorithmState",
    "Amplified",
    "AmplifiedScaffold",
    "Auto",
    "Averaged",
    "CentralSGD",
    "ClientMemory",
    "ClientUpdates",
    "Clipped",
    "Cohort",
    "FedAU",
    "FedAWE",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedLaAvg",
    "FedPBC",
    "FedProx",
    "FedStale",
    "FedVARP",
    "FedYogi",
    "Instructions",
    "KnownRates",
    "Median",
    "RoundDriver",
    "RoundInfo",
    "Scaffold",
    "Scaled",
    "State",
    "Switch",
    "Traits",
    "TrimmedMean",
    "WaitForAll",
    "WeightedFedAvg",
    "WeightedSum",
    "WeightedSumState",
    "Wrapper",
    "WrapperState",
]
