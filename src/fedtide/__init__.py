"""Federated learning for clients that come and go.

`simulate` runs an experiment given as objects, `run` one given as a YAML file, and `audit` analyses
a participation log.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedtide.auditing import audit
from fedtide.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtide import algorithms, participation, problems
    from fedtide.simulation import Experiment, Result, run, simulate
    from fedtide.training import Ball, Box, InverseDecay, LocalTraining, Piecewise, StepDecay

__all__ = [
    "Ball",
    "Box",
    "Experiment",
    "InvalidInputError",
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

_HOMES = {
    "fedtide.simulation": ("Experiment", "Result", "run", "simulate"),
    "fedtide.training": ("Ball", "Box", "InverseDecay", "LocalTraining", "Piecewise", "StepDecay"),
}


def __getattr__(name: str) -> object:
    """Import modules that need PyTorch on first use; an audit does not need it."""
    if name in ("algorithms", "participation", "problems"):
        return importlib.import_module(f"fedtide.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'fedtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
