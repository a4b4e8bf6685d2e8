"""A local step, which all trainers share: its gradient, and what SGD, Adam or AdamW make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedtide.problems.base import Gradient, Task
from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining

Moments = tuple[Params, ...]
"""What an optimizer keeps between the steps of a round: (), (m,) for momentum, (m, v) for Adam."""

Scales = tuple[float, float] | Tensor
"""1 / (1 - β₁^k) and 1 / √(1 - β₂^k) of step k."""


def local_gradient(
    task: Task,
    local: LocalTraining,
    gradients_at_start: bool,
    differentiate: Callable[[Callable[..., tuple[Tensor, Params]]], Gradient],
) -> Gradient:
    """Return the gradient of one client's local step, a pure function of tensors.

    gradient(y, x, correction, mu, buffers, *batch) = (g(y) + λ y + correction + μ (y - x), new
    buffers), with y, x, correction and the buffers as named tensors; correction is None if there
    is none, and mu, a 0-d tensor, is None without a proximal term. With AdamW, λ y is left out and
    applied in the step instead. With `gradients_at_start`, g is taken at x. `differentiate` turns
    the loss into g.
    """
    loss_gradient = differentiate(task.loss_and_buffers)
    decay = 0.0 if local.optimizer == "adamw" else local.weight_decay

    def gradient(
        y: Params,
        x: Params,
        correction: Params | None,
        mu: Tensor | None,
        buffers: Params,
        *batch: Tensor,
    ) -> tuple[Params, Params]:
        g, buffers = loss_gradient(x if gradients_at_start else y, buffers, *batch)
        if decay:
            g = {name: g[name] + decay * y[name] for name in y}
        if correction is not None:
            g = {name: g[name] + correction[name] for name in y}
        if mu is not None:
            g = {name: g[name] + mu * (y[name] - x[name]) for name in y}
        return g, buffers

    return gradient


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
        moments: before the step; () stands for zeros, as in the first step of a round.
        scales: of this step, see `adam_scales`; SGD ignores them.
    """
    if local.optimizer == "sgd":
        if local.momentum and moments:
            m, beta = moments[0], local.momentum
            gradient = {name: torch.add(g, m[name], alpha=beta) for name, g in gradient.items()}
        return gradient, (gradient,) if local.momentum else ()
    m, v = _adam_moments(local, gradient, moments)
    # scales[0] m / (scales[1] √v + eps), a pass over memory shorter
    ratio, eps = scales[1] / scales[0], local.eps / scales[0]
    direction = {name: m[name] / (v[name].sqrt() * ratio + eps) for name in m}
    if local.optimizer == "adamw" and local.weight_decay:
        decay = local.weight_decay
        direction = {name: torch.add(d, y[name], alpha=decay) for name, d in direction.items()}
    return direction, (m, v)


def _adam_moments(
    local: LocalTraining, gradient: Params, moments: Moments
) -> tuple[Params, Params]:
    """Return m and v after a step, computed in as few passes over memory as possible."""
    first, second = local.betas
    if not moments:
        m = {name: (1 - first) * g for name, g in gradient.items()}
        return m, {name: (1 - second) * g * g for name, g in gradient.items()}
    m, v = moments
    m = {name: torch.lerp(m[name], g, 1 - first) for name, g in gradient.items()}
    v = {
        name: torch.addcmul(second * v[name], g, g, value=1 - second)
        for name, g in gradient.items()
    }
    return m, v


def adam_scales(local: LocalTraining, steps: int) -> Iterator[tuple[float, float]]:
    """Yield the scales of the steps k = 1, ..., `steps` of a round.

    They are computed in double precision: in single precision 1 - β₂ would lose four digits.
    """
    first, second = local.betas
    for k in range(1, steps + 1):
        yield 1 / (1 - first**k), 1 / math.sqrt(1 - second**k)
