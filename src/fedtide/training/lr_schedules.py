"""Schedules of the local learning rate γ_t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

from fedtide.errors import InvalidInputError, quantify
from fedtide.spec import AtLeast, Positive, Share, spec


class LearningRateSchedule(ABC):
    """γ_t = γ · factor(t)."""

    @abstractmethod
    def factor(self, t: int) -> float:
        """Return the factor by which γ is multiplied in round t (counted from 0)."""


@spec
class StepDecay(LearningRateSchedule):
    """Step decay: the learning rate is multiplied by the same factor at regular intervals.

    γ_t = γ · decay^k after k steps.

    Wang & Ji 2024 on CIFAR-100: StepDecay(decay=0.5, start=10_001, every=1000, times=10), with its
    second step at 11,000 in the authors' program; Yan et al. 2020: StepDecay(decay=0.9999,
    start=1).

    Args:
        decay: in (0, 1].
        every: rounds between two steps, at least 1.
        start: the round of the first step.
        times: the maximal number of steps; None: unlimited.

    Raises:
        InvalidInputError: a decay outside (0, 1], `every` below 1, or a negative number of steps.

    >>> [StepDecay(decay=0.5, every=2, start=1).factor(t) for t in range(5)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """

    decay: Annotated[float, Share]
    every: Annotated[int, AtLeast(1)] = 1
    start: int = 1
    times: Annotated[int, AtLeast(0)] | None = None

    def factor(self, t: int) -> float:
        """Return decay to the power of the number of steps up to round t."""
        steps = max(0, (t - self.start) // self.every + 1)
        if self.times is not None:
            steps = min(steps, self.times)
        return float(self.decay**steps)


@spec
class InverseDecay(LearningRateSchedule):
    """Inverse decay: γ_t = γ / (1 + t / every), as MIFA's authors use with every = 1.

    Args:
        every: the number of rounds after which γ_t is γ / 2.

    Raises:
        InvalidInputError: `every` not positive.

    >>> InverseDecay(every=10).factor(10)
    0.5
    """

    every: Annotated[float, Positive] = 1.0

    def factor(self, t: int) -> float:
        """Return 1 / (1 + t / every)."""
        return 1.0 / (1.0 + t / self.every)


@spec
class Piecewise(LearningRateSchedule):
    """Piecewise constant: γ · factors[i] from round starts[i] on, and γ before starts[0].

    Wang & Ji (2022) train 2000 rounds with γ = 0.1, then with 1e-5: starts=[2000], factors=[1e-4].

    Args:
        starts: rounds, increasing.
        factors: as many positive numbers.

    Raises:
        InvalidInputError: the rounds do not increase, or the numbers of starts and factors differ.

    >>> [Piecewise(starts=[2], factors=[0.1]).factor(t) for t in (1, 2)]
    [1.0, 0.1]
    """

    starts: Sequence[int]
    factors: Annotated[Sequence[float], Positive]

    def __post_init__(self) -> None:
        if len(self.starts) != len(self.factors):
            raise InvalidInputError(
                f"factors: {quantify(len(self.factors), 'factor')} for "
                f"{quantify(len(self.starts), 'start')}; give one for each"
            )
        if list(self.starts) != sorted(set(self.starts)):
            raise InvalidInputError("starts: the rounds do not increase; sort them, each once")

    def factor(self, t: int) -> float:
        """Return the factor of the last start at or before round t."""
        reached = [f for start, f in zip(self.starts, self.factors, strict=True) if start <= t]
        return reached[-1] if reached else 1.0


SCHEDULES: dict[str, type[LearningRateSchedule]] = {
    "step": StepDecay,
    "inverse": InverseDecay,
    "piecewise": Piecewise,
}
"""The schedules by the name that experiment files use."""
