"""User-defined models by import path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.problems.models.base import Model, Shape


@dataclass(frozen=True)
class Imported(Model):
    """Any `torch.nn.Module` by import path; the working directory is searched first.

    Args:
        path: "package.module:Class", or a function that returns a module.
        arguments: of its call, by name.

    Raises:
        InvalidInputError: the path cannot be imported or gives no module, or rejects the arguments.

    >>> Imported("torch.nn:Linear", {"in_features": 64, "out_features": 10}).build((64,), 10)
    Linear(in_features=64, out_features=10, bias=True)
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module, _, name = str(self.path).partition(":")
        if not module or not name:
            raise InvalidInputError(
                f"path: {self.path!r:.60} is not an import path; give package.module:Class"
            )
        if not isinstance(self.arguments, Mapping) or not all(
            isinstance(key, str) for key in self.arguments
        ):
            raise InvalidInputError(
                f"arguments: {self.arguments!r:.60} are not named arguments; give name: value"
            )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Return the network; its arguments must suit `shape` and `classes`."""
        constructor = _import(self.path)
        try:
            module = constructor(**self.arguments)
        except Exception as error:
            given, reason = f"{dict(self.arguments)!r:.60}", f"{error!s:.200}".splitlines()[:1]
            raise InvalidInputError(
                f"model: {self.path} cannot be called with arguments {given} "
                f"({type(error).__name__}: {''.join(reason)}); give those that it takes"
            ) from error
        if not isinstance(module, nn.Module):
            raise InvalidInputError(
                f"model: {self.path} gives a {type(module).__name__}; it must give a "
                f"torch.nn.Module"
            )
        return module


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        reason = "".join(f"{error!s:.200}".splitlines()[:1])
        raise InvalidInputError(
            f"model: {path!r:.100} cannot be imported ({type(error).__name__}: {reason}); give "
            f"package.module:Class, installed or in the working directory"
        ) from error
    finally:
        sys.path.remove(folder)


def load_object(field: str, path: str) -> Any:
    return _import(path)
