"""A pair of learning rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """Learning rates that a theorem prescribes, or the largest that it allows.

    Args:
        local: γ, the local learning rate.
        server: η, the server learning rate or amplification factor.
    """

    local: float
    server: float

    @property
    def product(self) -> float:
        """γ η, which moves the model."""
        return self.local * self.server
