"""Dropout models: which of the selected clients report back."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.participation.availability.base import Ids
from fedtide.randomness import uniforms
from fedtide.validation import require_probabilities


class Dropout(ABC):
    """A dropout model: a value (a frozen dataclass)."""

    @abstractmethod
    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return whether each client reports in round t; a pure function of (seed, t, client).

        The array `clients` cannot be written to.
        """

    @property
    @abstractmethod
    def reporting_probability(self) -> float | NDArray[np.float64]:
        """The long-run probability that a selected client reports, one for all or one per client.

        Of shape (N,) in the latter case. Known rates are multiplied by it, so a mean over clients
        whose probabilities differ would give each of them a wrong rate.
        """


@configurable
class NoDropout(Dropout):
    """Every selected client reports."""

    reporting_probability = 1.0

    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return all True."""
        return np.ones(len(clients), dtype=np.bool_)


@configurable
class RandomDropout(Dropout):
    """Each selected client fails to report with a probability, independently of all else.

    Args:
        probability: of failing, within [0, 1].

    Raises:
        InvalidInputError: a probability outside [0, 1].

    >>> RandomDropout(probability=1.0).draw_mask(0, 3, np.array([5, 8]))
    array([False, False])
    """

    probability: float

    def __post_init__(self) -> None:
        require_probabilities("probability", self.probability)

    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return False for the clients that fail."""
        return uniforms(seed, "drop", t, clients) >= self.probability

    @property
    def reporting_probability(self) -> float:
        """1 − probability."""
        return 1.0 - self.probability
