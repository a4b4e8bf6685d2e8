"""Finished runs in a tracking store, for people who look at theirs there."""

from fedtide.tracking.mlflow import MlflowTracker, tracker

__all__ = ["MlflowTracker", "tracker"]
