"""Local training of a cohort of clients."""

from fedtide.training.local_training import LocalTraining
from fedtide.training.lr_schedules import (
    SCHEDULES,
    InverseDecay,
    LearningRateSchedule,
    Piecewise,
    StepDecay,
)
from fedtide.training.projection import PROJECTIONS, Ball, Box, Projection

__all__ = [
    "PROJECTIONS",
    "SCHEDULES",
    "Ball",
    "Box",
    "InverseDecay",
    "LearningRateSchedule",
    "LocalTraining",
    "Piecewise",
    "Projection",
    "StepDecay",
]
