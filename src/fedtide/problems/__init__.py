"""What is learnt, and from which data of which client."""

from fedtide.problems.classification import Classification
from fedtide.problems.models import MODELS
from fedtide.problems.partition import Partition
from fedtide.problems.partitions import (
    PARTITIONS,
    Dirichlet,
    Flwr,
    Iid,
    MajorityClass,
    Natural,
    SharedPool,
    SingleClass,
)
from fedtide.problems.problem import Batch, Evaluation, Plan, Problem, Task
from fedtide.problems.quadratic import Quadratic
from fedtide.problems.regression import Regression
from fedtide.problems.synthetic import LowerBound4D

PROBLEMS: dict[str, type[Problem]] = {
    "quadratic": Quadratic,
    "lower-bound-4d": LowerBound4D,
    "regression": Regression,
    "classification": Classification,
}
"""The problems by the `type` that an experiment file gives them."""

__all__ = [
    "MODELS",
    "PARTITIONS",
    "PROBLEMS",
    "Batch",
    "Classification",
    "Dirichlet",
    "Evaluation",
    "Flwr",
    "Iid",
    "LowerBound4D",
    "MajorityClass",
    "Natural",
    "Partition",
    "Plan",
    "Problem",
    "Quadratic",
    "Regression",
    "SharedPool",
    "SingleClass",
    "Task",
]
