"""Federated learning for clients that come and go.

`simulate` runs an experiment given as objects, `run` one given as a YAML file, and `audit` analyses
a participation log.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedtide.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtide import algorithms, callbacks, participation, privacy, problems
    from fedtide.auditing import audit
    from fedtide.report.result_comparison import compare
    from fedtide.simulation import Experiment, Result, Results, run, simulate
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
    "Results",
    "StepDecay",
    "algorithms",
    "audit",
    "callbacks",
    "compare",
    "participation",
    "privacy",
    "problems",
    "run",
    "simulate",
]

_HOMES = {
    "fedtide.auditing": ("audit",),
    "fedtide.report.result_comparison": ("compare",),
    "fedtide.simulation": ("Experiment", "Result", "Results", "run", "simulate"),
    "fedtide.training": ("Ball", "Box", "InverseDecay", "LocalTraining", "Piecewise", "StepDecay"),
}


def __getattr__(name: str) -> object:
    """Import modules on first use: an audit needs no PyTorch, the command line starts at once."""
    if name in ("algorithms", "callbacks", "participation", "privacy", "problems"):
        return importlib.import_module(f"fedtide.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'fedtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
