"""The loop: from an experiment to its results."""

from fedtide.simulation.api import run, simulate
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.result import Result, Results
from fedtide.simulation.runner import execute

__all__ = ["Experiment", "Result", "Results", "execute", "run", "simulate"]
