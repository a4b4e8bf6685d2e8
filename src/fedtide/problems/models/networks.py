"""The contract of a model, and the architectures of the papers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.spec import AtLeast, Within, spec

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


Initialisation = Literal["default", "kaiming"]


@spec
class Logistic(Model):
    """Multinomial logistic regression: one linear layer.

    Args:
        bias: whether the layer has a bias.
        start: the initial parameters: PyTorch's "default" or "zero".

    Raises:
        InvalidInputError: start is unknown.

    >>> sum(p.numel() for p in Logistic().build((1, 28, 28), 10).parameters())
    7850
    """

    bias: bool = True
    start: Literal["default", "zero"] = "default"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        layer = nn.Linear(math.prod(shape), classes, bias=self.bias)
        if self.start == "zero":
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
        return nn.Sequential(nn.Flatten(), layer)


@spec
class MLP(Model):
    """Linear layers with ReLU between them, with PyTorch's initial parameters.

    Args:
        hidden: the width of each hidden layer.

    Raises:
        InvalidInputError: a width is below 1.

    >>> sum(p.numel() for p in MLP().build((1, 8, 8), 10).parameters())
    4810
    """

    hidden: Annotated[Sequence[int], AtLeast(1)] = (64,)

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *_linear(math.prod(shape), self.hidden, classes, 0))


@spec
class CNN(Model):
    """Convolutions with ReLU and maximum pooling, then linear layers with ReLU.

    Args:
        channels: the output channels of each convolution.
        kernel, stride, padding: of each convolution, in pixels.
        pool: the side of the pooling window after each convolution, in pixels; 1: no pooling.
        hidden: the width of each hidden linear layer.
        dropout: the probability of zeroing an input of a linear layer in training.
        initialisation: "kaiming" (see `initialise_kaiming`), or PyTorch's "default".

    Raises:
        InvalidInputError: a size below 1, dropout outside [0, 1), an unknown initialisation, or
            features that are not images or too small.

    >>> net = CNN(channels=(4,), kernel=3, padding=1).build((1, 8, 8), 10)
    >>> sum(p.numel() for p in net.parameters())  # 4·(9+1) + 4·4·4·10 + 10
    690
    """

    channels: Annotated[Sequence[int], AtLeast(1)]
    kernel: Annotated[int, AtLeast(1)] = 5
    stride: Annotated[int, AtLeast(1)] = 1
    padding: Annotated[int, AtLeast(0)] = 2
    pool: Annotated[int, AtLeast(1)] = 2
    hidden: Annotated[Sequence[int], AtLeast(1)] = ()
    dropout: Annotated[float, Within(0, 1, "[)")] = 0.0
    initialisation: Initialisation = "kaiming"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        height, width = self._output_size(shape)
        features = self.channels[-1] * height * width if self.channels else math.prod(shape)
        module = nn.Sequential(
            *self._convolutions(shape[0]),
            nn.Flatten(),
            *_linear(features, self.hidden, classes, self.dropout),
        )
        if self.initialisation == "kaiming":
            initialise_kaiming(module)
        return module

    def _convolutions(self, inputs: int) -> Iterator[nn.Module]:
        for outputs in self.channels:
            yield nn.Conv2d(inputs, outputs, self.kernel, self.stride, self.padding)
            yield nn.ReLU()
            if self.pool > 1:
                yield nn.MaxPool2d(self.pool)
            inputs = outputs

    def _output_size(self, shape: Shape) -> tuple[int, int]:
        """Return the height and width of the images after the last convolution."""
        if len(shape) != 3:
            raise InvalidInputError(
                f"model: a CNN needs images, but features have shape {shape}; use 'mlp'"
            )
        sides = list(shape[1:])
        for _ in self.channels:
            sides = [
                ((side + 2 * self.padding - self.kernel) // self.stride + 1) // self.pool
                for side in sides
            ]
        if min(sides) < 1:
            raise InvalidInputError(
                f"model: images of shape {shape} are too small for the convolutions; use fewer "
                f"of them, or less pooling"
            )
        return sides[0], sides[1]


def initialise_kaiming(module: nn.Module) -> None:
    """Initialise a network as the programs of Wang & Ji (2022, 2024) do.

    Weights ~ N(0, 2 / fan_in) and zero biases for convolutions and hidden linear layers; the last
    layer keeps PyTorch's U(±1/√fan_in) for weights and biases.
    """
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _linear(
    inputs: int, hidden: Sequence[int], classes: int, dropout: float
) -> Iterator[nn.Module]:
    """Yield linear layers of these widths, each after dropout, with ReLU between them."""
    for number, outputs in enumerate([*hidden, classes]):
        if number > 0:
            yield nn.ReLU()
        if dropout > 0:
            yield nn.Dropout(dropout)
        yield nn.Linear(inputs, outputs)
        inputs = outputs
