"""The network of a run, built from a name, an import path, a class, a function or a network."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, get_type_hints

import torch
from torch import nn

from fedtide.errors import InvalidInputError, did_you_mean, first_line
from fedtide.import_paths import home_module, import_object, is_import_path, is_installed
from fedtide.problems.models.functional import cast_network
from fedtide.problems.models.networks import CNN, MLP, Logistic, Model, Shape
from fedtide.randomness import random_words
from fedtide.spec import Builder, Code, spec


@spec
class Imported(Model):
    """Any network by import path; the working directory is searched first.

    It is called with arguments from a file, so not everything is allowed: a class or function is
    your own, or a network of `torch.nn`, `torchvision.models`, `timm`, `transformers` or `peft`. A
    class must derive from `torch.nn.Module` or `Model`; of installed functions, only those of
    torchvision that are annotated to return a network are called.

    Args:
        path: "package.module:Class" of a `torch.nn.Module`, a function that returns one, or a
            subclass of `Model`.
        arguments: of its call, by name.

    Raises:
        InvalidInputError: the path cannot be imported or gives no module, or rejects the arguments.

    >>> Imported("torch.nn:Linear", {"in_features": 64, "out_features": 10}).build((64,), 10)
    Linear(in_features=64, out_features=10, bias=True)
    """

    path: Annotated[str, Code]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_import_path(self.path):
            raise InvalidInputError(
                f"path: {self.path!r:.60} is not an import path; give package.module:Class"
            )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Return the network; the arguments of a module must suit `shape` and `classes`."""
        constructor = import_object(self.path, "model")
        if not _makes_network(constructor):
            raise InvalidInputError(
                f"model: {self.path} is not known to make a network; give a subclass of "
                "torch.nn.Module, or a function of a module of your own that returns one"
            )
        try:
            module = constructor(**self.arguments)
        except Exception as error:
            raise InvalidInputError(
                f"model: {self.path} cannot be called with arguments "
                f"{dict(self.arguments)!r:.60} ({first_line(error, with_type=True)}); give those "
                "that it takes"
            ) from error
        return module.build(shape, classes) if isinstance(module, Model) else _checked(module)


def _makes_network(maker: Any) -> bool:
    """Return whether a class, or a function by its annotation or origin, makes a network."""
    if isinstance(maker, type):
        return issubclass(maker, nn.Module | Model)
    function = inspect.unwrap(maker)
    if not inspect.isroutine(function):
        return False
    if not is_installed(str(home_module(function))):
        return True
    try:
        made = get_type_hints(function).get("return")
    except Exception:  # builtin functions, and names that only a type checker imports
        return False
    return isinstance(made, type) and issubclass(made, nn.Module | Model)


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
    maker = resolve_network(model)
    if isinstance(maker, nn.Module):
        module = copy.deepcopy(maker)
    elif isinstance(maker, Model):
        module = build_seeded(lambda: maker.build(shape, outputs), seed)
    else:
        module = _checked(build_seeded(maker, seed))
    return cast_network(module.to(device), parameter_dtype(dtype))


def _checked(made: object) -> nn.Module:
    """Return what a class or function made if it is a network."""
    if not isinstance(made, nn.Module):
        raise InvalidInputError(
            f"model: it returns a {type(made).__name__}; it must return a torch.nn.Module"
        )
    return made


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
