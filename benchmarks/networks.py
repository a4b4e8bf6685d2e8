"""Networks of the benchmarks that fedtide does not come with."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """Two convolutions, each with group normalisation, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)])
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of `outputs` channels."""
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.shortcut(x)).relu()


def resnet8() -> nn.Module:
    """Return ResNet-8 with group normalisation for images of 32×32 in colour."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Transformer(nn.Module):
    """Two layers of width 64 over sequences of 64 positions: the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(64, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, 10) of images (B, 1, 64, 64)."""
        states = self.embedding(x.reshape(len(x), 64, 64))
        for layer in self.layers:
            states = layer(states)
        return self.output(states.mean(1))


class Recurrent(nn.Module):
    """A recurrent layer of width 64 over the rows of an image of 32×32.

    Args:
        kind: "LSTM" or "GRU".
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        layer = {"LSTM": nn.LSTM, "GRU": nn.GRU}[kind]
        self.layer: nn.Module = layer(32, 64, batch_first=True)
        self.output = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, 10) of images (B, 1, 32, 32)."""
        states, _ = self.layer(x.reshape(len(x), 32, 32))
        return self.output(states[:, -1])
