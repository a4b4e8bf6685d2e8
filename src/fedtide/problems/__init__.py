"""What is learnt, and from which data of which client."""

from fedtide.problems.partition import Partition
from fedtide.problems.partitions import PARTITIONS
from fedtide.problems.problem import Batch, Evaluation, Plan, Problem, Task
from fedtide.problems.quadratic import Quadratic
from fedtide.problems.regression import Regression
from fedtide.problems.synthetic import LowerBound4D

PROBLEMS: dict[str, type[Problem]] = {
    "quadratic": Quadratic,
    "lower-bound-4d": LowerBound4D,
    "regression": Regression,
}
"""The problems by the `type` that an experiment file gives them."""
