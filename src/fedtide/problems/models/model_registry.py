"""The registry of models by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.models.base import Model
from fedtide.problems.models.imported import Imported
from fedtide.problems.models.networks import CNN, MLP, Logistic

MODELS: dict[str, Model] = {
    "logistic": Logistic(),
    "mlp": MLP(),
    "cnn-000-fashion": CNN(channels=(32, 32), hidden=(128,)),
    "cnn-000-cifar10": CNN(channels=(32, 64), hidden=(512, 128)),
    "cnn-001-svhn": CNN(channels=(32, 32), kernel=3, padding=1, hidden=(128,)),
    "cnn-001-cifar10": CNN(channels=(32, 32), kernel=3, padding=1, hidden=(256, 64)),
    "cnn-001-cifar100": CNN(channels=(32, 32), kernel=3, padding=1, hidden=(512, 256), dropout=0.2),
    "cnn-001-cinic10": CNN(channels=(32, 32), kernel=3, padding=1, hidden=(512, 256), dropout=0.2),
    "cnn-002-cifar10": CNN(channels=(64,), stride=2, pool=1, initialisation="default"),
    "cnn-003-cifar10": CNN(channels=(6, 16), padding=0, hidden=(120, 84), initialisation="default"),
}
"""The models by name: those of the papers, each for the data set in its name.

| name | paper | parameters |
|---|---|---|
| logistic | Crawshaw & Liu 2024, FashionMNIST | 7,850 on 28×28 |
| mlp | | 4,810 on digits |
| cnn-000-fashion | Wang & Ji 2022 | 228,586 |
| cnn-000-cifar10 | Wang & Ji 2022 | 2,218,314 |
| cnn-001-svhn | Wang & Ji 2024 | 273,706 |
| cnn-001-cifar10 | Wang & Ji 2024 | 551,786 |
| cnn-001-cifar100 | Wang & Ji 2024 | 1,216,260 |
| cnn-001-cinic10 | Wang & Ji 2024 | 1,193,130 |
| cnn-002-cifar10 | Crawshaw & Liu 2024 | 168,714 |
| cnn-003-cifar10 | Yan et al. | 62,006 |
"""

MODEL_TYPES: dict[str, type[Model]] = {
    "logistic": Logistic,
    "mlp": MLP,
    "cnn": CNN,
    "imported": Imported,
}
"""The models with parameters, by their `type` in an experiment file."""


def resolve_model(given: str | Mapping[str, Any] | Model) -> Model:
    """Return the model given by a name, an import path, or a mapping with `type`.

    Raises:
        InvalidInputError: an unknown name, type or parameter.

    >>> resolve_model({"type": "mlp", "hidden": [200, 200]})
    MLP(hidden=[200, 200])
    >>> resolve_model("package.module:Class")
    Imported(path='package.module:Class', arguments={})
    """
    if isinstance(given, Model):
        return given
    if isinstance(given, str):
        if ":" in given:
            return Imported(given)
        if given in MODELS:
            return MODELS[given]
        hint = f"{did_you_mean(given, MODELS)}, or give package.module:Class"
        raise InvalidInputError(f"model: unknown {given!r}; {hint}")
    parameters = dict(given)
    name = str(parameters.pop("type", ""))
    if ":" in name:
        arguments = parameters["arguments"] if [*parameters] == ["arguments"] else parameters
        return _build(Imported, {"path": name, "arguments": arguments})
    if not parameters and name in MODELS:
        return MODELS[name]
    if name not in MODEL_TYPES:
        raise InvalidInputError(f"model.type: unknown {name!r}; {did_you_mean(name, MODEL_TYPES)}")
    return _build(MODEL_TYPES[name], parameters)


def _build(kind: type[Model], parameters: Mapping[str, Any]) -> Model:
    """Return the model of this class with these parameters."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in parameters:
        if name not in known:
            raise InvalidInputError(f"model.{name}: unknown parameter; {did_you_mean(name, known)}")
    try:
        return kind(**parameters)
    except InvalidInputError as error:
        raise error.prefixed("model") from error
    except TypeError as error:
        raise InvalidInputError(f"model: {error}") from error
