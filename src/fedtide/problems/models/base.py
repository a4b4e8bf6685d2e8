"""The contract of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

Shape = tuple[int, ...]
"""The shape of one sample's features: (C, H, W) for images, (F,) for vectors."""


class Model(ABC):
    """A network architecture (a frozen dataclass), built for the shape of the data."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Return the network with its initial parameters, drawn from torch's global generator.

        Args:
            shape: of one sample's features.
            classes: C; the network maps (B, *shape) to logits (B, C).

        Raises:
            InvalidInputError: the network does not fit the features.
        """
