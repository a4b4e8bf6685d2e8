"""Sweeps: one experiment under several methods, values and seeds, resumable at any moment."""

from fedtide.sweep.members import Member
from fedtide.sweep.run import run_sweep
from fedtide.sweep.search import TwoStage
from fedtide.sweep.sweep import Sweep

__all__ = ["Member", "Sweep", "TwoStage", "run_sweep"]
