"""Models: the networks of the papers, networks by their parameters, and user-defined ones."""

from fedtide.problems.models.functional import FunctionalModel
from fedtide.problems.models.network_building import MODEL_TYPES, MODELS, Imported, resolve_model
from fedtide.problems.models.networks import CNN, MLP, Logistic, Model

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
