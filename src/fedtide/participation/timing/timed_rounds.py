"""The participants of rounds that last: a clock in place of round numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.availability.presence import Presence
from fedtide.participation.availability.samples import Full
from fedtide.participation.dropout import Dropout
from fedtide.participation.schedule import Participants, RoundStream, Schedule
from fedtide.participation.selections import SelectionStream, UniformOf
from fedtide.participation.timing.device_speeds import DeviceSpeeds, Floats, Work
from fedtide.participation.timing.synchronous import Synchronous
from fedtide.population import Population
from fedtide.randomness import uniforms
from fedtide.spec import spec


@dataclass(frozen=True)
class TimedParticipants(Participants):
    """The clients of a round that lasts; times are seconds since the run began.

    Args:
        started: when the clients were asked.
        ended: when the round ended.
        arrived: when the update of each client that reported arrived, shape of `reported`.
    """

    started: float
    ended: float
    arrived: Floats


@spec
class Timing:
    """Rounds that last: a clock says who is available, and devices how long their work takes.

    The clock begins at 0. If nobody is available when a round is to begin, it moves on to the time
    at which the next client is. A client whose session ends before its update has arrived leaves,
    and its update is lost.

    Args:
        policy: when the server asks clients, and when it moves the model.
        devices: how long a client needs for a round; by default no time at all.
    """

    policy: Synchronous
    devices: DeviceSpeeds = field(default_factory=DeviceSpeeds)

    def start(
        self, schedule: Schedule, population: Population, work: Work, seed: int
    ) -> TimedStream:
        """Start the clock, with the availability process, selection and dropout of a schedule.

        Raises:
            InvalidInputError: the process is a law per round, or a parameter does not fit the
                population.
        """
        with error_prefix("participation"):
            presence = schedule.process.presence(population, seed)
        with error_prefix("timing.policy"):
            limit = UniformOf(self.policy.size).start(population, seed)
        with error_prefix("timing.devices"):
            seconds = self.devices.seconds(work, population)
        selection, dropout = schedule.start_choices(population, seed)
        return TimedStream(self, presence, seconds, selection, limit, dropout, seed)

    def known_rates(
        self, schedule: Schedule, population: Population, seed: int
    ) -> NDArray[np.float64] | None:
        """Return each client's long-run probability of reporting, (N,); None: unknown.

        Known if all clients are always available and asked, and the server waits for them.
        """
        policy = self.policy
        waits = policy.close_after is None and policy.deadline is None
        if not waits or policy.size < population.clients or type(schedule.process) is not Full:
            return None
        return schedule.known_rates(population, seed)


class TimedStream(RoundStream):
    """A started clock, asked for rounds in increasing order; skipped rounds are gone through.

    Args:
        timing: the policy and the devices.
        presence: who is available at a time.
        seconds: the time that each client needs for a round without jitter, shape (N,).
        selection: which of the available clients are selected.
        limit: takes the policy's number of clients from these.
        dropout: which of the clients that are asked fail; they leave when they would report.
        seed: of all draws.

    Attributes:
        is_endless: whether somebody always comes again.
    """

    def __init__(
        self,
        timing: Timing,
        presence: Presence,
        seconds: Floats,
        selection: SelectionStream,
        limit: SelectionStream,
        dropout: Dropout,
        seed: int,
    ) -> None:
        super().__init__(selection, dropout, seed, len(seconds))
        self.is_endless = presence.is_endless
        self._policy, self._devices = timing.policy, timing.devices
        self._presence, self._limit, self._seconds = presence, limit, seconds
        self._now = 0.0

    def round(self, t: int) -> TimedParticipants:
        """Return the participants of round t.

        Raises:
            ValueError: t is not larger than every round asked for before.
            InvalidInputError: nobody is available any more, or the selection or the dropout model
                returned something else than its contract says.
        """
        for earlier in self._order.advance(t):
            self._next_round(earlier)
        return self._next_round(t)

    def _next_round(self, t: int) -> TimedParticipants:
        available = self._available(t)
        start, chosen = self._now, self._select(t, AvailableClients(available))
        asked = self._limit.select(t, AvailableClients(chosen))
        u = uniforms(self._seed, "duration", t, asked)
        finish = start + self._devices.vary(self._seconds[asked], u)
        leave = self._presence.ends_of(asked)
        reports = (finish <= leave) & self._draw_mask(t, asked)
        finish = np.minimum(finish, leave)
        in_time, self._now = self._policy.end_round(start, finish, reports, u)
        reported = asked[in_time]
        weights = np.full(len(reported), 1 / max(1, len(reported)))
        arrived = finish[in_time]
        return TimedParticipants(t, available, asked, reported, weights, start, self._now, arrived)

    def _available(self, t: int) -> Ids:
        """Return the clients that are available when round t begins, and begin it then."""
        while not len(clients := self._presence.at(self._now)):
            begin = self._presence.next_start()
            if math.isinf(begin):
                raise InvalidInputError(
                    f"rounds: nobody is available after {self._now / 3600:.3g} hours, in round "
                    f"{t}; ask for at most {t} rounds"
                )
            self._now = begin
        return clients
