"""User-defined models by import path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from torch import nn

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError, first_line
from fedtide.import_paths import import_object, is_import_path
from fedtide.problems.models.base import Model, Shape


@configurable
class Imported(Model):
    """Any network by import path; the working directory is searched first.

    Args:
        path: "package.module:Class" of a `torch.nn.Module`, a function that returns one, or a
            subclass of `Model`.
        arguments: of its call, by name.

    Raises:
        InvalidInputError: the path cannot be imported or gives no module, or rejects the arguments.

    >>> Imported("torch.nn:Linear", {"in_features": 64, "out_features": 10}).build((64,), 10)
    Linear(in_features=64, out_features=10, bias=True)
    """

    path: str
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
