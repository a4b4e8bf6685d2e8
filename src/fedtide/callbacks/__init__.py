"""Callbacks: objects that watch a run, and may end it early.

`fedtide.tracking` has those that log to MLflow, TensorBoard, and Weights & Biases.
"""

from fedtide.simulation.callbacks import Callback, EarlyStopping, RunView

__all__ = ["Callback", "EarlyStopping", "RunView"]
