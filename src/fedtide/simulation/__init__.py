"""The loop: from an experiment to its results."""

from fedtide.simulation.experiment import Experiment
from fedtide.simulation.runner import Result, execute, run, simulate

__all__ = ["Experiment", "Result", "execute", "run", "simulate"]
