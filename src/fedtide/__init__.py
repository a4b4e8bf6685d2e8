"""Federated learning for clients that come and go.

Say who takes part, train, compare: `simulate` runs an experiment given as objects, `run` one given
as a YAML file; `audit` reads a log of who took part.
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
    "fedtide.training": (
        "Ball",
        "Box",
        "InverseDecay",
        "LocalTraining",
        "Piecewise",
        "StepDecay",
    ),
}


def __getattr__(name: str) -> object:
    """Import what trains when it is first asked for: an audit needs no PyTorch."""
    if name in ("algorithms", "participation", "problems"):
        return importlib.import_module(f"fedtide.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'fedtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
