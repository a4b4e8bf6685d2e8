"""Federated learning for clients that come and go.

Say who takes part, train, compare: `simulate` runs an experiment given as objects, `run` one given
as a YAML file.
"""

from fedtide import algorithms, participation, problems
from fedtide.audit import audit
from fedtide.errors import BadInput
from fedtide.simulation import Experiment, Result, run, simulate
from fedtide.training import Ball, Box, InverseDecay, LocalTraining, Piecewise, StepDecay

__all__ = [
    "BadInput",
    "Ball",
    "Box",
    "Experiment",
    "InverseDecay",
    "LocalTraining",
    "Piecewise",
    "Result",
    "StepDecay",
    "algorithms",
    "audit",
    "participation",
    "problems",
    "run",
    "simulate",
]
