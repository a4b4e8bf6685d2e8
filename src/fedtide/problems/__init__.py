"""Problems: the objective and which data each client holds."""

from fedtide.problems.base import Batch, BatchPlan, Evaluation, Problem, Task
from fedtide.problems.classification import Classification
from fedtide.problems.models import MODELS
from fedtide.problems.partitions import (
    PARTITIONS,
    Dirichlet,
    Flwr,
    Iid,
    MajorityClass,
    Natural,
    Partition,
    SharedPool,
    SingleClass,
)
from fedtide.problems.sample_metrics import Metric, SetMetric
from fedtide.problems.supervised import Supervised
from fedtide.problems.synthetic import LowerBound4D, Quadratic, Regression

PROBLEMS: dict[str, type[Problem]] = {
    "quadratic": Quadratic,
    "lower-bound-4d": LowerBound4D,
    "regression": Regression,
    "classification": Classification,
    "supervised": Supervised,
}
"""The problems by their `type` in an experiment file."""

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
    "Metric",
    "Natural",
    "Partition",
    "Problem",
    "Quadratic",
    "Regression",
    "SetMetric",
    "SharedPool",
    "SingleClass",
    "Supervised",
    "Task",
]
