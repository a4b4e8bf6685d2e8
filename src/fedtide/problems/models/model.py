"""The contract of a model: which network for these features and classes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

Shape = tuple[int, ...]
"""The shape of one sample's features: (C, H, W) for images, (F,) for others."""


class Model(ABC):
    """Which network is trained: a value (frozen dataclass), built for the data of a problem."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Return the network with its initial parameters, drawn from torch's global generator.

        Args:
            shape: of one sample's features.
            classes: C; the network maps (B, *shape) to logits (B, C).

        Raises:
            InvalidInputError: features that the network cannot take.
        """
