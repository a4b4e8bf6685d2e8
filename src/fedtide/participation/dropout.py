"""Who of the selected reports back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import Ids
from fedtide.randomness import uniforms
from fedtide.validation import probabilities


class Dropout(ABC):
    """Who of the selected reports back: a value (frozen dataclass)."""

    @abstractmethod
    def mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return whether each client reports in round t; a pure function of (seed, t, client)."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """The long-run probability that a selected client reports."""


@dataclass(frozen=True)
class NoDropout(Dropout):
    """Everyone who was selected reports."""

    def mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return True for each."""
        return np.ones(len(clients), dtype=np.bool_)

    @property
    def rate(self) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class RandomDropout(Dropout):
    """A selected client fails to report with a probability, independently over rounds and clients.

    Args:
        probability: of failing, within [0, 1].

    Raises:
        InvalidInputError: a probability outside [0, 1].

    >>> RandomDropout(probability=1.0).mask(0, 3, np.array([5, 8]))
    array([False, False])
    """

    probability: float

    def __post_init__(self) -> None:
        probabilities("probability", self.probability)

    def mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return False for those who fail."""
        return uniforms(seed, "drop", t, clients) >= self.probability

    @property
    def rate(self) -> float:
        """1 − probability."""
        return 1.0 - self.probability
