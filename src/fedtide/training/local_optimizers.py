"""The step that a local optimizer takes, given a gradient: SGD, Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining

Moments = tuple[Params, ...]
"""What an optimizer keeps between the steps of a round: (), (m,) for momentum, (m, v) for Adam."""

Scales = tuple[float, float] | Tensor
"""1 / (1 - β₁^k) and 1 / √(1 - β₂^k) of step k."""


def count_moments(local: LocalTraining) -> int:
    """Return how many tensors the optimizer keeps per parameter."""
    return int(local.momentum > 0) if local.optimizer == "sgd" else 2


def step_direction(
    local: LocalTraining, y: Params, gradient: Params, moments: Moments, scales: Scales
) -> tuple[Params, Moments]:
    """Return the direction of a step, y ← y - γ direction, and the moments after it.

    Args:
        local: the optimizer and its parameters (its docstring has the equations).
        y: the model before the step.
        gradient: g, with everything that is added to it.
        moments: those after the step before; () in the first step of a round, where they are 0.
        scales: of this step, see `adam_scales`; SGD ignores them.
    """
    if local.optimizer == "sgd":
        if local.momentum and moments:
            m = moments[0]
            gradient = {name: g + local.momentum * m[name] for name, g in gradient.items()}
        return gradient, (gradient,) if local.momentum else ()
    zero = {name: torch.zeros_like(g) for name, g in gradient.items()}
    m, v = moments or (zero, zero)
    first, second = local.betas
    m = {name: first * m[name] + (1 - first) * g for name, g in gradient.items()}
    v = {name: second * v[name] + (1 - second) * g * g for name, g in gradient.items()}
    direction = {name: scales[0] * m[name] / (scales[1] * v[name].sqrt() + local.eps) for name in m}
    if local.optimizer == "adamw" and local.weight_decay:
        direction = {name: d + local.weight_decay * y[name] for name, d in direction.items()}
    return direction, (m, v)


def adam_scales(local: LocalTraining, steps: int) -> Iterator[tuple[float, float]]:
    """Yield the scales of the steps k = 1, ..., `steps` of a round.

    They are computed in double precision: in single precision 1 - β₂ would lose four digits.
    """
    first, second = local.betas
    for k in range(1, steps + 1):
        yield 1 / (1 - first**k), 1 / math.sqrt(1 - second**k)
