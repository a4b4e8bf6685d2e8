"""The monitor of a federation: follows its ledger in a thread and keeps the latest status."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread

import polars as pl

from fedtide.auditing.log.client_table import ClientTable
from fedtide.errors import InvalidInputError, first_line
from fedtide.flower.ledger.ledger import read_ledger_part, read_metrics, read_quarantine
from fedtide.monitoring.exporter import render_metrics
from fedtide.monitoring.ledger_window import LedgerWindow
from fedtide.monitoring.status import FairShares, Status, measure_status
from fedtide.monitoring.surroundings import AskSuperLink, Surroundings, look_around
from fedtide.validation import require_at_least

_POLL = 1.0  # seconds between two reads of the ledger
_LOOK = 10.0  # seconds between two looks at the disk and the SuperLink
_SHARE = 0.1  # of a core that following the ledger may take
_PATIENCE = 5.0  # seconds to wait for the thread to end
_ROWS = 100_000  # read at a time, roughly


@dataclass(frozen=True)
class MonitorSettings:
    """What a monitor shows.

    Args:
        clients: N, or the names of the clients; None: those that the ledger shows.
        roster: a table of all clients, whose column `weight`, if any, gives the fair shares.
        window: W, the number of rounds of the window.
        client_series: metrics of single clients are exported if there are at most so many clients.
        ask_superlink: for the newest run and the certificate; None: nobody is asked.

    Raises:
        InvalidInputError: a number outside its range, or a roster and clients.
    """

    clients: int | Sequence[str] | None = None
    roster: ClientTable | None = None
    window: int = 100
    client_series: int = 100
    ask_superlink: AskSuperLink | None = None

    def __post_init__(self) -> None:
        require_at_least("window", self.window, 2)
        require_at_least("client_series", self.client_series, 0)
        if isinstance(self.clients, int):
            require_at_least("clients", self.clients, 1)
        if self.clients is not None and self.roster is not None:
            raise InvalidInputError(
                "clients: the roster already gives the number of clients; leave one of the two out"
            )

    @property
    def names(self) -> list[str]:
        """The clients that are known before the ledger shows them."""
        if self.roster is not None:
            return [str(name) for name in self.roster.names]
        return [] if self.clients is None or isinstance(self.clients, int) else list(self.clients)

    @property
    def shares(self) -> FairShares:
        """The fair shares of the clients."""
        if self.roster is not None and self.roster.wanted is not None:
            weights = self.roster.wanted.tolist()
            return FairShares(given=dict(zip(self.names, weights, strict=True)))
        return FairShares(size=self.clients if isinstance(self.clients, int) else None)


class Monitor:
    """Follows a ledger: reads its new rounds and keeps the latest status.

    If the round that was read last is gone from the ledger, or replaced by another, the ledger is
    read again from the start, even if its federation has another name now.

    Args:
        url: of the ledger, as in `read_ledger`.
        settings: what is shown.

    Attributes:
        status: after the last round; None: no round has ended.
        error: why the ledger could not be read at the last attempt; None: it could.
        progress: how many of how many rounds of the ledger have been read.
        around: what is known besides the ledger.
        metrics: the status as Prometheus reads it.
    """

    def __init__(self, url: str, settings: MonitorSettings | None = None) -> None:
        self.settings = settings or MonitorSettings()
        self.status: Status | None = None
        self.error: str | None = None
        self.progress = 0, 0
        self.around = Surroundings()
        self._url, self._federation = url, ""
        self._batch = 64
        self._changed = False  # since the status was measured
        self._quarantined: set[str] = set()
        self._measured = pl.DataFrame()
        self._looked_at = -math.inf
        self._forget()
        self._stop = Event()
        self._thread = Thread(target=self._follow, name="fedtide-monitor", daemon=True)
        self.metrics = self._render()

    def start(self) -> None:
        """Begin to follow the ledger, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following the ledger; a read that waits for the database is abandoned."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)

    def refresh(self) -> None:
        """Read the new rounds, if there are any, look around, and update status and metrics.

        Raises:
            InvalidInputError: as `read_ledger`.
        """
        if time.monotonic() - self._looked_at >= _LOOK:
            with suppress(InvalidInputError, OSError):  # what is wrong from the start is refused
                self.around = look_around(self._url, self.settings.ask_superlink)
            self._looked_at = time.monotonic()
            self.metrics = self._render()
        self._read()
        self._read_notes()
        if self._changed:
            shares, notes = self.settings.shares, (self._quarantined, self._measured)
            self.status = measure_status(self._window, self._federation, shares, *notes)
        if self._changed or self.error is not None:
            self.error, self._changed = None, False
            self.metrics = self._render()

    def _follow(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            began = time.monotonic()
            try:
                self.refresh()
            except Exception as error:  # federation and page continue; the next read may work
                self.error = first_line(error, with_type=not isinstance(error, InvalidInputError))
                self.metrics = self._render()
            wait = max(_POLL, (time.monotonic() - began) * (1 / _SHARE - 1))

    def _read(self) -> None:
        """Read all new rounds."""
        while not self._stop.is_set():
            last = self._window.rounds[-1] if self._window.rounds else None
            after = -1 if last is None else last.number
            part = read_ledger_part(self._named_url(), after, self._batch)
            self._federation, rounds = part.federation, part.rounds
            if last is not None:
                if rounds[:1].rows() != [(last.number, last.time)]:
                    self._forget()
                    continue
                rounds = rounds[1:]
            if rounds.is_empty():
                if last is None:
                    self._federation = ""  # the ledger may be that of another one by now
                return
            self._changed = True
            self._window.add(rounds, part.rows)
            self.progress = self._window.counts.ended, part.ended
            self._batch = max(2, min(10_000, self._batch * _ROWS // max(len(part.rows), 1)))

    def _read_notes(self) -> None:
        """Read who is quarantined, and what was measured in the window."""
        if not self._window.rounds:
            return
        url, since = self._named_url(), self._window.rounds[0].number
        quarantined = {name for name, _ in read_quarantine(url)}
        measured = read_metrics(url, since)
        if quarantined != self._quarantined or not measured.equals(self._measured):
            self._quarantined, self._measured, self._changed = quarantined, measured, True

    def _forget(self) -> None:
        """Forget what was read of the ledger."""
        self._window = LedgerWindow(self.settings.window, self.settings.names)
        self._changed = True

    def _named_url(self) -> str:
        """Return the URL with the federation's name, once that is known."""
        name = self._federation
        return f"{self._url.partition('#')[0]}#{name}" if name else self._url

    def _render(self) -> bytes:
        series, up = self.settings.client_series, self.error is None
        return render_metrics(self.status, up, series, self.around)
