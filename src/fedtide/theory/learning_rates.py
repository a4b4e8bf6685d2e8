"""The pair of learning rates that the theorems prescribe."""

from __future__ import annotations

from dataclasses import dataclass

from fedtide.errors import InvalidInputError


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


def require_within_limits(lr: float, server_lr: float, largest: LearningRates) -> None:
    """Raise InvalidInputError unless γ and γ η are at most those of `largest`."""
    rounding = 1 + 1e-9
    if lr > largest.local * rounding:
        raise InvalidInputError(f"lr: the theorem holds up to {largest.local:.3g}; lower it")
    if lr * server_lr > largest.product * rounding:
        raise InvalidInputError(
            f"lr: times the server's rate it may be {largest.product:.3g}; lower one of them"
        )
