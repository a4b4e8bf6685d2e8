"""A transformer trained on one play, of which only low-rank adapters are trained further."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedtide.examples.tasks.plays import CharacterTransformer, next_characters
from fedtide.problems.losses import next_token

STEPS = 200  # of Adam on the first play, before the federation begins


class LowRank(nn.Module):
    """Adds the product of two small matrices to a frozen weight W: W + B A (Hu et al., 2022).

    Args:
        weight: W, (m, n).
        rank: of the product.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1]) / weight.shape[1] ** 0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the sum."""
        return weight + self.b @ self.a


def adapted_transformer(rank: int = 4, steps: int = STEPS) -> nn.Module:
    """Return a transformer trained on Twelfth Night, frozen but for new adapters of this rank."""
    module = CharacterTransformer()
    pretrain(module, steps)
    module.requires_grad_(False)
    for layer in [part for part in module.modules() if type(part) is nn.Linear]:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))
    return module


def pretrain(module: nn.Module, steps: int) -> None:
    """Train on Twelfth Night with Adam, as a server would on public text."""
    samples = torch.from_numpy(next_characters("twelfth_night")["x"])
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = samples[torch.randint(len(samples), (32,))]
        optimizer.zero_grad()
        loss = next_token(module(batch), batch).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
