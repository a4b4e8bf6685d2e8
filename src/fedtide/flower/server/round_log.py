"""The record of a round: the ledger entries of its clients, and log lines on their replies."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger

from fedtide.flower.ledger.ledger import Entry
from fedtide.participation import STAGES

log = getLogger("flwr")

_NOT_REPORTED = ("no reply", "offline", "error")
"""The reasons for which a client is not used without having sent an update."""
_LOGGED = 10  # of the warnings of a kind that clients can cause by the thousand


class LimitedWarnings:
    """Logs the first ten warnings of a kind, and only the number of the others.

    Args:
        further: the text about the others, with %d for their number.
    """

    def __init__(self, further: str) -> None:
        self._further, self._count = further, 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, unless there were too many."""
        self._count += 1
        if self._count <= _LOGGED:
            log.warning(text, *arguments)

    def close(self) -> None:
        """Log how many were only counted, and begin again."""
        if self._count > _LOGGED:
            log.warning(self._further, self._count - _LOGGED)
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
        self._entries: dict[int, Entry] = {}
        self._late, self._rejected = 0, LimitedWarnings("Further replies not used: %d")

    def record(
        self,
        client: int,
        stage: str,
        weight: float | None = None,
        asked: int | None = None,
        reason: str | None = None,
        **facts: float | None,
    ) -> None:
        """Record that a client reached a stage.

        Args:
            client: its number.
            stage: one of STAGES.
            weight: its q_t^n if its update is used.
            asked: the round of the message that it answers.
            reason: why its update is not used, one of REASONS.
            facts: its further columns, see `Entry`.
        """
        entry = self._entries.get(client)
        if entry is None or STAGES.index(entry.stage) <= STAGES.index(stage):
            asked = None if asked == self._t else asked
            name = self._names[client]
            self._entries[client] = Entry(name, stage, weight, self._now(), asked, reason, **facts)

    def reject(self, client: int, asked: int, reason: str, text: str) -> None:
        """Record and log that a client's reply, or the error in its place, is not used.

        Args:
            client: its number.
            asked: the round of the message that it answers.
            reason: one of REASONS.
            text: why, for the log.
        """
        if reason not in _NOT_REPORTED:
            self.record(client, "reported", asked=asked, reason=reason)
        elif asked == self._t:
            self.record(client, "selected", reason=reason)
        if reason == "late":  # every slow client may cause one in every round
            self._late += 1
        else:
            self._rejected.warn("reply of %s not used: %s", self._names[client], text)

    def remove(self, client: int) -> None:
        """Remove a client that turned out not to be available."""
        self._entries.pop(client, None)

    def close(self) -> list[Entry]:
        """Return all entries, sorted by client number; log how many replies were only counted."""
        if self._late:
            log.info("Replies not used, as their rounds have ended: %d", self._late)
        self._rejected.close()
        return [self._entries[client] for client in sorted(self._entries)]
