"""What is learnt, and from which data of which client."""

from fedtide.problems.base import Batch, BatchPlan, Evaluation, Problem, Task
from fedtide.problems.classification import Classification
from fedtide.problems.lower_bound import LowerBound4D
from fedtide.problems.models import MODELS
from fedtide.problems.partitions.base import Partition
from fedtide.problems.partitions.partitioners import (
    PARTITIONS,
    Dirichlet,
    Flwr,
    Iid,
    MajorityClass,
    Natural,
    SharedPool,
    SingleClass,
)
from fedtide.problems.quadratic import Quadratic
from fedtide.problems.regression import Regression

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
    "BatchPlan",
    "Classification",
    "Dirichlet",
    "Evaluation",
    "Flwr",
    "Iid",
    "LowerBound4D",
    "MajorityClass",
    "Natural",
    "Partition",
    "Problem",
    "Quadratic",
    "Regression",
    "SharedPool",
    "SingleClass",
    "Task",
]
