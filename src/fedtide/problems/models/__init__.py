"""What is trained: networks by name, with parameters, or of the user's own."""

from fedtide.problems.models.functional import FunctionalModel
from fedtide.problems.models.import_path import Imported
from fedtide.problems.models.model import Model
from fedtide.problems.models.networks import CNN, MLP, Logistic
from fedtide.problems.models.registry import MODEL_TYPES, MODELS, model_of

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "MODEL_TYPES",
    "FunctionalModel",
    "Imported",
    "Logistic",
    "Model",
    "model_of",
]
