"""Experiment tracking: logs runs to MLflow, TensorBoard, and Weights & Biases."""

from fedtide.tracking.base import Tracker
from fedtide.tracking.mlflow import MlflowTracker
from fedtide.tracking.selection import make_tracker
from fedtide.tracking.tensorboard import TensorBoardTracker
from fedtide.tracking.wandb import WandbTracker

__all__ = ["MlflowTracker", "TensorBoardTracker", "Tracker", "WandbTracker", "make_tracker"]
