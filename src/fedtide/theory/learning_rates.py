"""The pair of learning rates that the theorems prescribe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LearningRates:
    """Learning rates that a theorem prescribes, or the largest that it allows.

    Args:
        local: γ, the local learning rate.
        server: η, the server learning rate or amplification factor.
    """

    local: float
    server: float

    @property
    def product(self) -> float:
        """The effective learning rate γ η."""
        return self.local * self.server
