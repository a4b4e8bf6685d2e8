"""The network of a run, built from a name, a class, a function or a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.problems.models.base import Model, Shape
from fedtide.problems.models.functional import cast_network
from fedtide.problems.models.model_registry import resolve_model
from fedtide.randomness import random_words

ModelLike = str | Mapping[str, Any] | Model | nn.Module | Callable[[], nn.Module]
"""A name, an import path, a mapping with `type`, a network, or a function that returns one."""


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
