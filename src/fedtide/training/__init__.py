"""How a cohort trains locally."""

from fedtide.training.local import LocalTraining
from fedtide.training.projection import PROJECTIONS, Ball, Box
from fedtide.training.schedule import SCHEDULES, InverseDecay, Piecewise, StepDecay

__all__ = [
    "PROJECTIONS",
    "SCHEDULES",
    "Ball",
    "Box",
    "InverseDecay",
    "LocalTraining",
    "Piecewise",
    "StepDecay",
]
