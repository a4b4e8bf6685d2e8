"""Feasible sets onto which local models are projected after every step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError, quantify
from fedtide.spec import Positive, spec


class Projection(ABC):
    """Π: the nearest point of a closed convex set."""

    @abstractmethod
    def __call__(self, y: Tensor) -> Tensor:
        """Return Π(y) for each row of y, shape (..., d)."""

    @abstractmethod
    def check(self, size: int) -> None:
        """Raise InvalidInputError unless the set has d = `size` dimensions."""


@spec
class Ball(Projection):
    """The Euclidean ball around `center`: Π(y) = c + (y - c) · min(1, r / ‖y - c‖).

    Args:
        radius: r > 0.
        center: c, shape (d,); None is the origin.

    Raises:
        InvalidInputError: r is not positive, the centre is not finite, or (in `check`) its length
            is not d.

    >>> Ball(radius=1.0)(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    radius: Annotated[float, Positive]
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.center is not None:
            center = tuple(
                float(c) for c in self.center
            )  # hashable: it is part of the cache key of captured blocks
            if not all(map(math.isfinite, center)):
                raise InvalidInputError("center: a number is not finite; give finite numbers")
            object.__setattr__(self, "center", center)

    def check(self, size: int) -> None:
        """Raise InvalidInputError unless the centre has d = `size` coordinates."""
        if self.center is not None and len(self.center) != size:
            raise InvalidInputError(
                f"center: {quantify(len(self.center), 'number')} for a model of {size}; give {size}"
            )

    def __call__(self, y: Tensor) -> Tensor:
        """Return the nearest point of the ball for each row of y."""
        center: Tensor | float = 0.0
        if self.center is not None:
            center = to_device_of(torch.tensor(self.center, dtype=y.dtype), y)
        offset = y - center
        norm = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        inside: Tensor = center + offset * (self.radius / norm.clamp(min=self.radius))
        return inside


@spec
class Box(Projection):
    """The box low <= y <= high in every coordinate.

    Args:
        low: the least value of a coordinate.
        high: the greatest, above `low`.

    Raises:
        InvalidInputError: low not below high.

    >>> Box(low=-1.0, high=1.0)(torch.tensor([3.0, 0.5]))
    tensor([1.0000, 0.5000])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidInputError(f"low: {self.low} is not below high, {self.high}")

    def check(self, size: int) -> None:
        """Accept a model of any size."""

    def __call__(self, y: Tensor) -> Tensor:
        """Return y with every coordinate clipped to [low, high]."""
        return y.clamp(self.low, self.high)


PROJECTIONS: dict[str, type[Projection]] = {"ball": Ball, "box": Box}
"""The feasible sets by the name that experiment files use."""
