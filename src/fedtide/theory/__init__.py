"""Bounds, step sizes and moments of the five papers, as functions.

What a paper states up to a constant, O(·), is returned without the constant, and says so.
"""

from fedtide.theory.agnostic_fedavg import agnostic_bound, agnostic_step
from fedtide.theory.amplified_scaffold_bounds import (
    CyclicPrescription,
    amplified_scaffold_rounds,
    amplified_scaffold_step,
    cyclic_prescription,
)
from fedtide.theory.fedau_bounds import (
    cutoff_moments,
    cyclic_weight,
    fedau_cutoff,
    fedau_step_conditions,
    fedau_steps,
    participation_objective,
    weight_error,
)
from fedtide.theory.fedlaavg_bounds import fedlaavg_absence, fedlaavg_rate, fedlaavg_step
from fedtide.theory.generalized_fedavg import (
    generalized_fedavg_conditions,
    generalized_fedavg_steps,
    independent_irregularity,
    irregularity_bound,
    period_for_speedup,
)
from fedtide.theory.steps import Steps
from fedtide.theory.two_clients import fedavg_two_clients, fedlaavg_two_clients_bound

__all__ = [
    "CyclicPrescription",
    "Steps",
    "agnostic_bound",
    "agnostic_step",
    "amplified_scaffold_rounds",
    "amplified_scaffold_step",
    "cutoff_moments",
    "cyclic_prescription",
    "cyclic_weight",
    "fedau_cutoff",
    "fedau_step_conditions",
    "fedau_steps",
    "fedavg_two_clients",
    "fedlaavg_absence",
    "fedlaavg_rate",
    "fedlaavg_step",
    "fedlaavg_two_clients_bound",
    "generalized_fedavg_conditions",
    "generalized_fedavg_steps",
    "independent_irregularity",
    "irregularity_bound",
    "participation_objective",
    "period_for_speedup",
    "weight_error",
]
