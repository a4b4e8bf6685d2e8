"""A small convolutional network with batch or group normalisation."""

from __future__ import annotations

from torch import nn


def convnet(norm: str = "batch", width: int = 16) -> nn.Module:
    """Return a network for 32×32 colour images and ten classes.

    Args:
        norm: "batch" or "group" (of 4 channels).
        width: channels of the first convolution.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (width, 2 * width, 4 * width):
        normalise = (
            nn.BatchNorm2d(outputs) if norm == "batch" else nn.GroupNorm(outputs // 4, outputs)
        )
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            normalise,
            nn.ReLU(),
        ]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * inputs, 10))
