"""The network of a run, built from a name, a class, a function or a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.models.base import Model, Shape
from fedtide.problems.models.functional import cast_network
from fedtide.problems.models.imported import Imported
from fedtide.problems.models.networks import CNN, MLP, Logistic
from fedtide.randomness import random_words
from fedtide.spec import Builder

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


_BUILDER = Builder({Model: MODEL_TYPES})

ModelLike = str | Mapping[str, Any] | Model | nn.Module | Callable[[], nn.Module]
"""A name, an import path, a mapping with `type`, a network, or a function that returns one."""


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
    parameters = {"type": given} if isinstance(given, str) else dict(given)
    name = str(parameters.pop("type", ""))
    if ":" in name:
        arguments = parameters["arguments"] if [*parameters] == ["arguments"] else parameters
        parameters, name = {"path": name, "arguments": arguments}, "imported"
    elif not parameters and name in MODELS:
        return MODELS[name]
    elif isinstance(given, str):
        hint = f"{did_you_mean(given, MODELS)}, or give package.module:Class"
        raise InvalidInputError(f"model: unknown {given!r}; {hint}")
    model: Model = _BUILDER.build(Model, {"type": name, **parameters}, "model")
    return model


def resolve_network(model: ModelLike) -> Model | nn.Module | Callable[[], nn.Module]:
    """Return the object that makes the network.

    Raises:
        InvalidInputError: an unknown name, or something that does not make a network.
    """
    return resolve_model(model) if isinstance(model, str | Mapping | Model) else model


def build_network(
    model: ModelLike,
    shape: Shape,
    outputs: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
) -> nn.Module:
    """Return the network with its initial parameters, on the device, in `parameter_dtype`.

    Args:
        model: the object that makes it; a network is copied.
        shape: of the first input of one sample, for networks whose layers depend on it.
        outputs: the number of outputs per sample of such a network.
        seed: of the initial parameters.
        device, dtype: of the run.

    Raises:
        InvalidInputError: the network does not fit the shape, or a function does not return one.
    """
    module = _build(resolve_network(model), shape, outputs, seed)
    return cast_network(module.to(device), parameter_dtype(dtype))


def _build(
    maker: Model | nn.Module | Callable[[], nn.Module], shape: Shape, outputs: int, seed: int
) -> nn.Module:
    if isinstance(maker, nn.Module):
        return copy.deepcopy(maker)
    if isinstance(maker, Model):
        return build_seeded(lambda: maker.build(shape, outputs), seed)
    try:
        module = build_seeded(maker, seed)
    except TypeError as error:
        raise InvalidInputError(
            f"model: {maker!r:.60} cannot be called without arguments ({error}); give a function "
            "that needs none"
        ) from error
    if not isinstance(module, nn.Module):
        raise InvalidInputError(
            f"model: {maker!r:.60} returns a {type(module).__name__}; it must return a "
            "torch.nn.Module"
        )
    return module


def parameter_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of parameters and data: float32 where gradients are bfloat16."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the module that `build` returns when torch's generator is seeded with `seed`.

    The state of the global generator is restored.

    >>> before = torch.get_rng_state()
    >>> a, b = (build_seeded(lambda: nn.Linear(2, 1), seed=3) for _ in range(2))
    >>> bool((a.weight == b.weight).all()), bool((before == torch.get_rng_state()).all())
    (True, True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(random_words(seed, "initial model")) >> 1)
        return build()
