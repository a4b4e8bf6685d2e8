"""User-defined models by import path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, get_type_hints

from torch import nn

from fedtide.errors import InvalidInputError, first_line
from fedtide.import_paths import home_module, import_object, is_import_path, is_installed
from fedtide.problems.models.base import Model, Shape
from fedtide.spec import Code, spec


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
        if not all(isinstance(key, str) for key in self.arguments):
            raise InvalidInputError(
                f"arguments: {self.arguments!r:.60} are not named arguments; give name: value"
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
        if isinstance(module, Model):
            return module.build(shape, classes)
        if not isinstance(module, nn.Module):
            raise InvalidInputError(
                f"model: {self.path} gives a {type(module).__name__}; it must give a "
                f"torch.nn.Module"
            )
        return module


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
