"""What is trained: networks by name, with parameters, or of the user's own."""

from fedtide.problems.models.imported import Imported
from fedtide.problems.models.model import Model
from fedtide.problems.models.networks import CNN, MLP, Logistic
from fedtide.problems.models.pure import PureModel
from fedtide.problems.models.table import MODEL_TYPES, MODELS, model_of

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "MODEL_TYPES",
    "Imported",
    "Logistic",
    "Model",
    "PureModel",
    "model_of",
]
