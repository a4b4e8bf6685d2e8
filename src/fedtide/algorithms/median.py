"""The coordinate-wise median of a round's updates."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from fedtide.algorithms._coordinatewise import CoordinatewiseTrimmed
from fedtide.algorithms.base import Algorithm
from fedtide.algorithms.fedavg import FedAvg
from fedtide.spec import spec


@spec
class Median(CoordinatewiseTrimmed):
    """The coordinate-wise median (Yin et al., 2018, Definition 1 and Algorithm 1).

        x_j ← x_j + W · median_{n in S_t} Δ_nj        in each coordinate j

    with W = Σ_{n in S_t} a_n the sum of the weights that the inner method gives the updates: η for
    FedAvg, η/N Σ ω_n for FedAU. With an even number of clients, the median is the average of the
    two middle values with their weights a_n. It is the `TrimmedMean` that leaves out all but the
    middle, with the same properties in their strongest form: fewer than half of a cohort cannot
    take a coordinate of the step outside W times the range of the honest clients' values, **and
    fewer than half of the clients, such as the rare ones, are ignored when they differ**. FedAU's
    weights still decide how long the step is, but hardly its direction.

    Args:
        inner: as for `TrimmedMean`.

    Raises:
        InvalidInputError: another `inner`.

    >>> import torch
    >>> from fedtide.algorithms.base import ClientUpdates
    >>> from fedtide.population import Population
    >>> method = Median()
    >>> state = method.init(torch.zeros(1), Population(3))
    >>> updates = ClientUpdates(torch.arange(3), torch.ones(3),
    ...                         torch.tensor([[1.0], [2.0], [1e6]]), 0.1, torch.ones(3))
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model
    tensor([2.])
    """

    inner: Algorithm[Any] = field(default_factory=FedAvg)

    def trimmed(self, size: int) -> int:
        """Return ⌊(S - 1) / 2⌋."""
        return max(size - 1, 0) // 2
