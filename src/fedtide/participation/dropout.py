"""Dropout models: which of the selected clients report back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.client_values import Name, order_by_id
from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import Ids
from fedtide.population import Population
from fedtide.randomness import uniforms
from fedtide.spec import AtLeast, Positive, Unit, spec
from fedtide.validation import require_one_per_client


class Dropout(ABC):
    """A dropout model: a value (a frozen dataclass)."""

    def for_population(self, population: Population) -> Dropout:
        """Return the model for these clients: itself, unless it needs to know something about them.

        Raises:
            InvalidInputError: a parameter does not fit them.
        """
        return self

    @abstractmethod
    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return whether each client reports in round t; a pure function of (seed, t, clients).

        `clients` are all selected clients; the array cannot be written to.
        """

    @property
    @abstractmethod
    def reporting_probability(self) -> float | NDArray[np.float64] | None:
        """The long-run probability that a selected client reports, one for all or one per client.

        Shape (N,) in the latter case; None: unknown. Known rates are multiplied by it, so a mean of
        differing probabilities would make the clients' rates wrong.
        """


@spec
class NoDropout(Dropout):
    """Every selected client reports."""

    reporting_probability = 1.0

    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return all True."""
        return np.ones(len(clients), dtype=np.bool_)


@spec
class RandomDropout(Dropout):
    """Each selected client fails to report with a probability, independently of everything else.

    Args:
        probability: of failing, within [0, 1].

    Raises:
        InvalidInputError: a probability outside [0, 1].

    >>> RandomDropout(probability=1.0).draw_mask(0, 3, np.array([5, 8]))
    array([False, False])
    """

    probability: Annotated[float, Unit]

    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return False for the clients that fail."""
        return uniforms(seed, "drop", t, clients) >= self.probability

    @property
    def reporting_probability(self) -> float:
        """1 − probability."""
        return 1.0 - self.probability


@spec
class Stragglers(Dropout):
    """The server closes a round before the slowest of the selected clients have reported.

    Client n needs the time d_t^n = m_n exp(σ z_n + τ e_t^n) in round t, with independent standard
    normal z_n for the client's speed and e_t^n for the variation in this round. It reports if d_t^n
    is at most the deadline and among the `close_after` shortest of the round.

    So slow clients report less often than fast ones. Asking 130 clients to get 100 reports, as in
    Bonawitz et al., "Towards Federated Learning at Scale" (2019), is `UniformOf(size=130)` with
    `close_after=100`. These times decide who reports, and nothing else: rounds have no duration,
    late updates are not used, and a client that was late can be selected in the next round. For
    rounds that last, see `Timing`.

    Args:
        close_after: the number of reports after which a round ends; None: it waits for all.
        deadline: the time after which it ends, in the unit of `times`; None: never.
        times: m_n > 0, (N,) or by name, for known differences in speed, such as from unequal
            numbers of samples; None: 1.
        spread: σ >= 0, the spread of the drawn speeds: with 1, two thirds of the clients are within
            a factor of 2.7 of the median. None: 1, or 0 if `times` are given.
        jitter: τ >= 0, the variation between the rounds of a client.

    Raises:
        InvalidInputError: neither `close_after` nor a deadline, fewer than one report, a deadline
            or time that is not positive, a negative spread or jitter; (`for_population`) not one
            time for each client.

    >>> Stragglers(close_after=2).draw_mask(0, 3, np.arange(5))
    array([ True, False,  True, False, False])
    """

    close_after: Annotated[int | None, AtLeast(1)] = None
    deadline: Annotated[float | None, Positive] = None
    times: Annotated[
        Sequence[float] | NDArray[np.float64] | Mapping[Name, float] | None, Positive
    ] = None
    spread: Annotated[float | None, AtLeast(0)] = None
    jitter: Annotated[float, AtLeast(0)] = 0.5

    def __post_init__(self) -> None:
        if self.close_after is None and self.deadline is None:
            raise InvalidInputError(
                "close_after: without it and without a deadline nobody is late; give one of them"
            )

    def for_population(self, population: Population) -> Stragglers:
        if self.times is None:
            return self
        times = np.asarray(order_by_id("times", self.times, population), dtype=np.float64)
        require_one_per_client("times", times, population.clients)
        return replace(self, times=times)

    def draw_mask(self, seed: int, t: int, clients: Ids) -> NDArray[np.bool_]:
        """Return False for the clients that are late."""
        from scipy.special import ndtri  # slow to import and rarely needed

        spread = self.spread
        if spread is None:
            spread = 1.0 if self.times is None else 0.0
        delay = uniforms(seed, "delay", t, clients)
        time = spread * ndtri(uniforms(seed, "speed", clients)) + self.jitter * ndtri(delay)
        if self.times is not None:
            time += np.log(np.asarray(self.times)[clients])
        in_time = np.ones(len(clients), dtype=np.bool_)
        if self.deadline is not None:
            in_time = time <= np.log(self.deadline)
        if self.close_after is not None:
            late = np.lexsort((delay, time))[self.close_after :]
            in_time[late] = False
        return in_time

    @property
    def reporting_probability(self) -> None:
        """None: it depends on each client's speed and on which others are selected."""
