"""Models: the networks of the papers, networks by their parameters, and user-defined ones."""

from fedtide.problems.models.base import Model
from fedtide.problems.models.functional import FunctionalModel
from fedtide.problems.models.imported import Imported
from fedtide.problems.models.network_building import MODEL_TYPES, MODELS, resolve_model
from fedtide.problems.models.networks import CNN, MLP, Logistic

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "MODEL_TYPES",
    "FunctionalModel",
    "Imported",
    "Logistic",
    "Model",
    "resolve_model",
]
