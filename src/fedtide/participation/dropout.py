"""Dropout models: which of the selected clients report back."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import Ids
from fedtide.randomness import uniforms
from fedtide.validation import (
    require_at_least,
    require_positive,
    require_probabilities,
    require_whole_number,
)


class Dropout(ABC):
    """A dropout model: a value (a frozen dataclass)."""

    @abstractmethod
    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return whether each client reports in round t; a pure function of (seed, t, clients).

        The clients are all that were selected; the array cannot be written to.
        """

    @property
    @abstractmethod
    def reporting_probability(self) -> float | NDArray[np.float64] | None:
        """The long-run probability that a selected client reports, one for all or one per client.

        Of shape (N,) in the latter case; None: unknown. Known rates are multiplied by it, so a mean
        over clients whose probabilities differ would give each of them a wrong rate.
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


@configurable
class Stragglers(Dropout):
    """The server closes a round before the slowest of the selected clients have reported.

    Client n needs the time d_t^n = exp(σ z_n + τ e_t^n) for its share of round t, with independent
    standard normal z_n, for its speed, and e_t^n, for what happens in this round; the median over
    all clients and rounds is 1. It reports if d_t^n is at most the deadline, and among the
    `close_after` shortest of the round.

    So slow clients report less often than fast ones. Asking 130 clients to get 100 reports, as in
    Bonawitz et al., "Towards Federated Learning at Scale" (2019), is `UniformOf(size=130)` with
    `close_after=100`. These times decide who reports, and nothing else: a simulation has no clock,
    late updates are not used, and a client that was late can be selected in the next round.

    Args:
        close_after: with how many reports a round ends; None: it waits for all.
        deadline: the time after which it ends, in units of the median; None: never.
        spread: σ >= 0, how much clients differ: 1 means that two thirds are within a factor of 2.7
            of the median.
        jitter: τ >= 0, how much the rounds of a client differ.

    Raises:
        InvalidInputError: neither `close_after` nor a deadline, fewer than one report, a deadline
            that is not positive, a negative spread or jitter, or both 0.

    >>> Stragglers(close_after=2).draw_mask(0, 3, np.arange(5))
    array([False,  True,  True, False, False])
    """

    close_after: int | None = None
    deadline: float | None = None
    spread: float = 1.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.close_after is None and self.deadline is None:
            raise InvalidInputError(
                "close_after: without it and without a deadline nobody is late; give one of them"
            )
        if self.close_after is not None:
            require_whole_number("close_after", self.close_after)
        if self.deadline is not None:
            require_positive("deadline", self.deadline)
        require_at_least("spread", self.spread, 0)
        require_at_least("jitter", self.jitter, 0)
        if not self.spread and not self.jitter:
            raise InvalidInputError(
                "spread: with a jitter of 0, too, all clients are equally fast; give one of them"
            )

    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return False for the clients that are late."""
        from scipy.special import ndtri  # slow to import and rarely needed

        speed = ndtri(uniforms(seed, "speed", clients))
        time = self.spread * speed + self.jitter * ndtri(uniforms(seed, "delay", t, clients))
        in_time = np.ones(len(clients), dtype=np.bool_)
        if self.deadline is not None:
            in_time = time <= np.log(self.deadline)
        if self.close_after is not None:
            in_time &= np.argsort(np.argsort(time, kind="stable")) < self.close_after
        return in_time

    @property
    def reporting_probability(self) -> None:
        """None: it depends on the speed of each client, and on who else is selected."""
