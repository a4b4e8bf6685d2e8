"""Bounds, learning rates and moments of the five papers, as functions.

Results stated up to a constant, O(·), are returned without it; their docstrings say so.
"""

from fedtide.theory.agnostic_fedavg import agnostic_bound, agnostic_learning_rate
from fedtide.theory.amplified_scaffold_bounds import (
    CyclicConstants,
    amplified_scaffold_learning_rate_limit,
    amplified_scaffold_rounds,
    cyclic_constants,
)
from fedtide.theory.fedau_bounds import (
    cutoff_moments,
    cyclic_weight,
    fedau_cutoff,
    fedau_learning_rate_limits,
    fedau_learning_rates,
    participation_objective,
    weight_error,
)
from fedtide.theory.fedlaavg_bounds import (
    fedavg_two_clients,
    fedlaavg_absence,
    fedlaavg_learning_rate,
    fedlaavg_rate,
    fedlaavg_two_clients_bound,
)
from fedtide.theory.generalized_fedavg import (
    generalized_fedavg_learning_rate_limits,
    generalized_fedavg_learning_rates,
    independent_irregularity,
    irregularity_bound,
    period_for_speedup,
)
from fedtide.theory.learning_rates import LearningRates

__all__ = [
    "CyclicConstants",
    "LearningRates",
    "agnostic_bound",
    "agnostic_learning_rate",
    "amplified_scaffold_learning_rate_limit",
    "amplified_scaffold_rounds",
    "cutoff_moments",
    "cyclic_constants",
    "cyclic_weight",
    "fedau_cutoff",
    "fedau_learning_rate_limits",
    "fedau_learning_rates",
    "fedavg_two_clients",
    "fedlaavg_absence",
    "fedlaavg_learning_rate",
    "fedlaavg_rate",
    "fedlaavg_two_clients_bound",
    "generalized_fedavg_learning_rate_limits",
    "generalized_fedavg_learning_rates",
    "independent_irregularity",
    "irregularity_bound",
    "participation_objective",
    "period_for_speedup",
    "weight_error",
]
