"""Experiment tracking: finished runs in an MLflow store."""

from fedtide.tracking.mlflow import MlflowTracker, make_tracker

__all__ = ["MlflowTracker", "make_tracker"]
