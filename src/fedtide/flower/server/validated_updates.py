"""Clients' updates that have passed validation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedtide.algorithms import ClientUpdates

Metrics = dict[str, float | list[float]]
"""A client's metrics by name, validated."""

SAMPLES = "num-examples"
"""The metric with the number of samples, as Flower calls it."""

MAX_METRICS = 100
"""How many metrics a client may send, and how many are averaged."""


@dataclass(frozen=True)
class ValidatedUpdate:
    """The validated content of a client's reply.

    Args:
        client: its number.
        round: the round of the request that it answers.
        update: Δ_n, shape (d,).
        samples: how many samples it holds.
        lr: γ; 0 if not given.
        steps: I_n; 0 if not given.
        gradients: ∇F_n at the model that it was sent, shape (d,); None unless requested.
        metrics: further numbers, and lists of numbers.
    """

    client: int
    round: int
    update: Tensor
    samples: int
    lr: float
    steps: int
    gradients: Tensor | None = None
    metrics: Metrics = field(default_factory=dict)

    @cached_property
    def norm(self) -> float:
        """The norm of Δ_n."""
        return _norm(self.update)

    @property
    def largest_norm(self) -> float:
        """The largest norm of Δ_n, its mean gradient and ∇F_n."""
        gradient = self.norm / (self.lr * self.steps) if self.lr and self.steps else 0.0
        reported = 0.0 if self.gradients is None else _norm(self.gradients)
        return max(self.norm, gradient, reported)


def stack_updates(updates: list[ValidatedUpdate], weight: float, like: Tensor) -> ClientUpdates:
    """Return updates with the same learning rate and participation weight as `ClientUpdates`.

    Args:
        updates: at least one, sorted by client.
        weight: q_t^n of each.
        like: the model.
    """
    gradients = [u.gradients for u in updates if u.gradients is not None]
    return ClientUpdates(
        clients=torch.tensor([u.client for u in updates]),
        weights=torch.full((len(updates),), weight, dtype=like.dtype, device=like.device),
        deltas=_stack([u.update for u in updates]),
        lr=updates[0].lr,
        steps=torch.tensor([u.steps for u in updates]),
        samples=torch.tensor([u.samples for u in updates]),
        gradients=_stack(gradients) if len(gradients) == len(updates) else None,
    )


def _norm(x: Tensor) -> float:
    """Return the norm of a vector whose sum of squares is finite in its dtype; without a copy."""
    values = x.numpy(force=True)
    return math.sqrt(values.dot(values))


def _stack(rows: list[Tensor]) -> Tensor:
    """Return vectors, each of shape (d,), as rows; a single one is not copied."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)
