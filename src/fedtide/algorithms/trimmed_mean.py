"""The coordinate-wise trimmed mean of a round's updates."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Any

from fedtide.algorithms._coordinatewise import CoordinatewiseTrimmed
from fedtide.algorithms.base import Algorithm
from fedtide.algorithms.fedavg import FedAvg
from fedtide.spec import Within, spec


@spec
class TrimmedMean(CoordinatewiseTrimmed):
    """The coordinate-wise trimmed mean (Yin et al., 2018, Definition 2 and Algorithm 1).

        b = min(⌈β S⌉, ⌊(S - 1) / 2⌋) for a cohort of S clients
        x_j ← x_j + W · Σ_{n in T_j} a_n Δ_nj / Σ_{n in T_j} a_n

    in each coordinate j, where T_j are the clients that remain without the b largest and the b
    smallest Δ_nj, a_n is the weight that the inner method gives an update (1 / S for FedAvg,
    ω_n / N for FedAU) and W = Σ_{n in S_t} a_n, so that the step keeps its length. As long as at
    most b clients of a cohort are hostile, every coordinate of x moves by W times a value between
    those of the honest clients. W sums the weights of all: clients that were long away make the
    step of FedAU longer, hostile or not.

    **Updates are trimmed before they are weighted**: a client counts once, whatever its weight. If
    trimming counted weights, a hostile client could become the median by staying away until FedAU
    gives it half of the weight. The cost is that a rare client whose values lie outside those of
    the others, so that nobody else represents it, is removed like an attacker (see
    docs/methods.md).

    There is no protection in rounds of one or two clients, where nothing can be trimmed; Clipped
    around this method bounds their updates. All updates of a round are kept until its end: S d
    numbers. Yin et al. assume that all clients take part in every round, and trim gradients where
    this trims updates.

    Args:
        trim: β in [0, 1/2), the share of the cohort that is left out at each end; 0 is the inner
            method.
        inner: a method whose step is a weighted average of the round's updates: FedAvg, FedProx,
            FedAU, F3AST, KnownRates, WeightedFedAvg, or Auto with `preconditioned=False`. Other
            wrappers go around this one.

    Raises:
        InvalidInputError: a share outside [0, 1/2), or another `inner`.

    >>> import torch
    >>> from fedtide.algorithms.base import ClientUpdates
    >>> from fedtide.population import Population
    >>> method = TrimmedMean(trim=0.25)
    >>> state = method.init(torch.zeros(1), Population(4))
    >>> updates = ClientUpdates(torch.arange(4), torch.ones(4),
    ...                         torch.tensor([[1.0], [2.0], [4.0], [-1e6]]), 0.1, torch.ones(4))
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model  # the mean of 1 and 2
    tensor([1.5000])
    """

    trim: Annotated[float, Within(0, 0.5, "[)", "give a share, or use the type median")] = 0.1
    inner: Algorithm[Any] = field(default_factory=FedAvg)

    def trimmed(self, size: int) -> int:
        """Return min(⌈β S⌉, ⌊(S - 1) / 2⌋)."""
        wanted = math.ceil(round(self.trim * size, 9))  # 0.1 · 30 is 3.0000000000000004
        return min(wanted, max(size - 1, 0) // 2)
