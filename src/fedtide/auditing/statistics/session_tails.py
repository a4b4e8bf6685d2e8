"""Sessions so uneven in length that rates have no finite variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog

_SHARE = 0.05
"""The share of the sessions, the longest ones, that shows the tail."""
_MIN_SESSIONS = 10
"""Fewer of them show nothing."""
_MIN_OWN = 8
"""Clients with fewer sessions have no mean to compare with."""
_MIN_LENGTH = 4.0
"""Shorter sessions, in rounds, are too coarsely counted."""
_MOST_ENTRIES = 1 << 18
_BORDER = 1.85
"""The estimate below which lengths are taken to lack a variance.

The true border is 2, but the longest sessions of lighter laws look like a power of the length, too:
in logs of 40 clients and 500 rounds, Weibull's with shape 0.6 have a median estimate of 2.3 and
Pareto's with α = 1.5 of 1.45. With 1.85 about 5% of the logs of each are mistaken for the other.
"""


@dataclass(frozen=True)
class SessionTail:
    """The tail of the lengths of sessions, P(length > x) ∝ x^−α.

    Args:
        index: α; infinite if the log does not show it.
        interval: of α, 95%.
    """

    index: float
    interval: tuple[float, float]

    @property
    def may_lack_variance(self) -> bool:
        """Whether the estimate is that of lengths without a finite variance (α < 2)."""
        return self.index < _BORDER


def measure_session_tail(log: ParticipationLog) -> SessionTail:
    """Return Hill's estimate of the tail of session lengths, over all clients.

    A session is a run of rounds in a row; its length x is relative to the mean of the client's
    other sessions, as clients differ. With x_1, ..., x_k the longest 5% and u the next shorter one,

        1 / α̂ = 1/k Σ log(x_i / u)    (Hill 1975),    standard error of α̂: α̂ / √k

    Lengths are whole rounds, so each stands for one spread evenly within its last round. Sessions
    that the log cuts off count with the length that it shows, which makes tails lighter.

    Args:
        log: the participation log; of a large one, a sample of the clients is used.
    """
    lengths, relative = _list_sessions(log)
    k = int(_SHARE * len(relative))
    if k < _MIN_SESSIONS:
        return SessionTail(np.inf, (0.0, np.inf))
    order = np.argpartition(relative, len(relative) - k - 1)[-k - 1 :]
    if lengths[order].mean() < _MIN_LENGTH:
        return SessionTail(np.inf, (0.0, np.inf))
    longest = np.sort(relative[order])
    index = 1 / max(float(np.log(longest[1:] / longest[0]).mean()), 1e-9)
    error = 1.96 * index / np.sqrt(k)
    return SessionTail(index, (max(0.0, index - error), index + error))


def _list_sessions(log: ParticipationLog) -> tuple[Floats, Floats]:
    """Return the sessions of clients with enough of them: lengths in rounds, and relative ones."""
    chosen = log.sample_clients(_MOST_ENTRIES / len(log.clients))
    rounds, owner = log.of_clients(log.rounds, chosen), np.repeat(chosen, log.counts[chosen])
    changes = (np.diff(rounds, prepend=-2) != 1) | (np.diff(owner, prepend=-1) != 0)
    begins = np.flatnonzero(changes)
    # By the entries of the clients, as their numbers depend on their names.
    order = np.lexsort((rounds[begins], log.mark_clients()[owner[begins]]))
    spread = np.empty(len(begins))
    spread[order] = (np.arange(len(begins)) * 0.6180339887498949) % 1.0
    lengths = np.diff(np.append(begins, len(rounds))) - spread
    number = np.bincount(owner[begins])[owner[begins]]
    total = np.bincount(owner[begins], lengths)[owner[begins]]
    often = number >= _MIN_OWN
    relative = lengths * (number - 1) / np.maximum(total - lengths, 1e-9)
    return lengths[often], relative[often]
