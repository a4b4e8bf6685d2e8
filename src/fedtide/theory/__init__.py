"""Bounds, learning rates and moments of the five papers, as functions.

Results stated up to a constant, O(·), are returned without it; their docstrings say so.
"""

from fedtide.theory.agnostic_fedavg import (
    agnostic_best_learning_rate,
    agnostic_bound,
    agnostic_learning_rate,
    bernoulli_agnostic_weights,
)
from fedtide.theory.amplified_scaffold_bounds import (
    CyclicConstants,
    amplified_scaffold_bound,
    amplified_scaffold_learning_rate_limit,
    amplified_scaffold_rounds,
    amplified_scaffold_rounds_for_steps,
    cyclic_constants,
)
from fedtide.theory.fedau_bounds import (
    constant_weights_bound,
    fedau_bound,
    fedau_learning_rate_limits,
    fedau_learning_rates,
    fedau_rate,
)
from fedtide.theory.fedau_weights import (
    cutoff_moments,
    cyclic_weight,
    fedau_cutoff,
    participation_objective,
    weight_error,
    weight_error_bound,
)
from fedtide.theory.fedlaavg_bounds import (
    fedavg_two_clients,
    fedlaavg_absence,
    fedlaavg_bound,
    fedlaavg_learning_rate,
    fedlaavg_rate,
    fedlaavg_two_clients_bound,
)
from fedtide.theory.generalized_fedavg import (
    generalized_fedavg_bound,
    generalized_fedavg_learning_rate_limits,
    generalized_fedavg_learning_rates,
    generalized_fedavg_rate,
    generalized_fedavg_speedup_learning_rates,
    leading_rates,
    regularized_rate,
    stochastic_rate,
)
from fedtide.theory.irregularity import (
    DivergenceConstants,
    asymptotic_variance,
    divergence_constants,
    independent_irregularity,
    irregularity_bound,
    mixing_irregularity,
    period_for_speedup,
)
from fedtide.theory.learning_rates import (
    LearningRates,
)

__all__ = [
    "CyclicConstants",
    "DivergenceConstants",
    "LearningRates",
    "agnostic_best_learning_rate",
    "agnostic_bound",
    "agnostic_learning_rate",
    "amplified_scaffold_bound",
    "amplified_scaffold_learning_rate_limit",
    "amplified_scaffold_rounds",
    "amplified_scaffold_rounds_for_steps",
    "asymptotic_variance",
    "bernoulli_agnostic_weights",
    "constant_weights_bound",
    "cutoff_moments",
    "cyclic_constants",
    "cyclic_weight",
    "divergence_constants",
    "fedau_bound",
    "fedau_cutoff",
    "fedau_learning_rate_limits",
    "fedau_learning_rates",
    "fedau_rate",
    "fedavg_two_clients",
    "fedlaavg_absence",
    "fedlaavg_bound",
    "fedlaavg_learning_rate",
    "fedlaavg_rate",
    "fedlaavg_two_clients_bound",
    "generalized_fedavg_bound",
    "generalized_fedavg_learning_rate_limits",
    "generalized_fedavg_learning_rates",
    "generalized_fedavg_rate",
    "generalized_fedavg_speedup_learning_rates",
    "independent_irregularity",
    "irregularity_bound",
    "leading_rates",
    "mixing_irregularity",
    "participation_objective",
    "period_for_speedup",
    "regularized_rate",
    "stochastic_rate",
    "weight_error",
    "weight_error_bound",
]
