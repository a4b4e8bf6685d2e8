"""Sweeps: one experiment under several methods, values and seeds; resumable at any time."""

from fedtide.sweep.grid import SweepRun
from fedtide.sweep.strategies import TwoStage
from fedtide.sweep.sweep_runner import run_sweep
from fedtide.sweep.sweep_spec import Sweep

__all__ = ["Sweep", "SweepRun", "TwoStage", "run_sweep"]
