"""FedYogi: Yogi on the server, whose second moment decays slowly."""

from __future__ import annotations

from torch import Tensor

from fedtide.algorithms._adaptive_server import AdaptiveServer
from fedtide.spec import spec


@spec
class FedYogi(AdaptiveServer):
    """Yogi on the server (Reddi et al., 2021, Algorithm 2), around any method.

    With D the step that the inner method proposes, elementwise,

        m ← β1 m + (1 - β1) D,        m = 0 at first
        v ← v - (1 - β2) D² sign(v - D²)
        x ← x + η m / (√v + τ)

    without bias correction. An empty round is a round with D = 0, in which m still moves x.

    Args:
        server_lr: η > 0; each coordinate of x moves by about η a round.
        beta1: β1 in [0, 1).
        beta2: β2 in [0, 1).
        tau: τ > 0: coordinates with steps far below τ move like FedAvg with η / τ.
        v0: v at first, >= 0; None: τ², the least that the paper allows.
        inner: the method whose steps are D.

    Raises:
        InvalidInputError: a number outside its range, or an `inner` whose clients keep models of
            their own (FedAWE, FedPBC).

    >>> import torch
    >>> from fedtide.algorithms.base import ClientUpdates
    >>> from fedtide.population import Population
    >>> method = FedYogi(server_lr=0.1, beta1=0.5, beta2=0.5, tau=1.0)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model  # m = 1/2, v = 1
    tensor([0.0250])
    """

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v - (1 - β2) Δ² sign(v - Δ²)."""
        return v - (1.0 - self.beta2) * square * (v - square).sign()
