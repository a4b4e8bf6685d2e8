"""What happened in a round: the ledger entries of its clients, and log lines on their replies."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger

from fedtide.participation import STAGES
from fedtide.participation.log.ledger import Entry

log = getLogger("flwr")

_LOGGED_REPLIES = 10
"""How many replies that are not used are logged in a round; of the others, only the number."""


class LimitedWarnings:
    """Logs the first warnings of a kind; of the others, only the number.

    Args:
        further: the text about the others, with a place for their number.
    """

    def __init__(self, further: str) -> None:
        self._further, self._count = further, 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, unless there were too many."""
        self._count += 1
        if self._count <= _LOGGED_REPLIES:
            log.warning(text, *arguments)

    def close(self) -> None:
        """Log how many were only counted, and begin again."""
        if self._count > _LOGGED_REPLIES:
            log.warning(self._further, self._count - _LOGGED_REPLIES)
        self._count = 0


class RoundLog:
    """The ledger entries of round t: each client with the furthest stage that it reached.

    Args:
        t: the round.
        names: of the clients by number.
        now: the time, in seconds since 1970.
    """

    def __init__(self, t: int, names: list[str], now: Callable[[], float]) -> None:
        self._t, self._names, self._now = t, names, now
        self._reached: dict[int, tuple[str, float | None, float, int | None, str | None]] = {}
        self._late, self._rejected = 0, LimitedWarnings("Further replies not used: %d")

    def record(
        self,
        client: int,
        stage: str,
        weight: float | None = None,
        asked: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Record that a client reached a stage.

        Args:
            client: its number.
            stage: one of STAGES.
            weight: its q_t^n if its update is used.
            asked: the round of the message that it answers.
            reason: why its update is not used, one of REASONS.
        """
        reached = self._reached.get(client)
        if reached is None or STAGES.index(reached[0]) <= STAGES.index(stage):
            asked = None if asked == self._t else asked
            self._reached[client] = (stage, weight, self._now(), asked, reason)

    def reject(self, client: int, asked: int, reason: str, text: str) -> None:
        """Record and log that a client's reply is not used.

        Args:
            client: its number.
            asked: the round of the message that it answers.
            reason: one of REASONS.
            text: why, for the log.
        """
        self.record(client, "reported", asked=asked, reason=reason)
        self._log(client, reason, text)

    def fail(self, client: int, asked: int, reason: str, text: str) -> None:
        """Record and log that an error came in place of a client's reply."""
        if asked == self._t:
            self.record(client, "selected", reason=reason)
        self._log(client, reason, text)

    def remove(self, client: int) -> None:
        """Remove a client that turned out not to be available."""
        self._reached.pop(client, None)

    def close(self) -> list[Entry]:
        """Return all entries, sorted by the number of the client; log what was only counted."""
        if self._late:
            log.info("Replies not used, as their rounds have ended: %d", self._late)
        self._rejected.close()
        return [Entry(self._names[n], *facts) for n, facts in sorted(self._reached.items())]

    def _log(self, client: int, reason: str, text: str) -> None:
        if reason == "late":  # of each slow client in every round
            self._late += 1
            return
        self._rejected.warn("reply of %s not used: %s", self._names[client], text)
