"""What one round's log will say, while the round goes on."""

from __future__ import annotations

from collections.abc import Callable

from fedtide.participation import STAGES
from fedtide.participation.log.ledger import Entry


class RoundLog:
    """The entries of round t: each client with the furthest stage that it reached.

    Args:
        t: the round.
        names: of the clients by number.
        now: the time, in seconds since 1970.
    """

    def __init__(self, t: int, names: list[str], now: Callable[[], float]) -> None:
        self._t, self._names, self._now = t, names, now
        self._entries: dict[int, Entry] = {}

    def enter(
        self, client: int, stage: str, weight: float | None = None, asked: int | None = None
    ) -> None:
        """Note that a client came so far; `asked` is the round whose message it answers."""
        there = self._entries.get(client)
        if there is None or STAGES.index(there.stage) <= STAGES.index(stage):
            asked = None if asked == self._t else asked
            self._entries[client] = Entry(self._names[client], stage, weight, self._now(), asked)

    def strike(self, client: int) -> None:
        """Note that a client was not there after all."""
        self._entries.pop(client, None)

    def entries(self) -> list[Entry]:
        """Return all entries, sorted by the number of the client."""
        return [entry for _, entry in sorted(self._entries.items())]
