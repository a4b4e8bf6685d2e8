"""Sessions and absences so uneven in length that rates have no finite variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog

Stays = Literal["sessions", "absences"]

_SHARES: dict[Stays, tuple[float, ...]] = {"sessions": (0.05,), "absences": (0.025, 0.025 / 3)}
"""The shares of the longest ones that show the tail.

Rounds that a client misses within a session are absences, too. Where most are of this kind, the
longest ones of any law lie far from the mean of all, but in long logs less far from one another.
"""
_MIN_LONGEST = 10
"""Fewer of them show nothing."""
_MIN_OWN = 8
"""Clients with fewer sessions have no mean to compare with."""
_MIN_LENGTH = 4.0
"""Shorter ones, in rounds, are too coarsely counted."""
_MOST_ENTRIES = 1 << 18
_BORDER = 1.85
"""The estimate below which lengths are taken to lack a variance.

The true border is 2, but the longest sessions of lighter laws look like a power of the length, too:
in logs of 40 clients and 500 rounds, Weibull's with shape 0.6 have a median estimate of 2.3 and
Pareto's with α = 1.5 of 1.45. With 1.85 about 3% of the logs of each are mistaken for the other.
"""


@dataclass(frozen=True)
class Tail:
    """The tail of the lengths of sessions or absences, P(length > x) ∝ x^−α.

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

    def describe(self) -> str:
        """Return in words how uneven the lengths are."""
        low, high = self.interval
        return (
            f"so uneven in length (tail index {self.index:.2g}, 95%: {low:.2g} to {high:.2g}) that "
            "their variance may be infinite"
        )


def measure_tail(log: ParticipationLog, stays: Stays) -> Tail:
    """Return Hill's estimate of the tail of the lengths of sessions or absences, over all clients.

    A session is a run of rounds in a row, an absence lies between two of them; its length x is
    relative to the mean of the client's others, as clients differ. With x_1, ..., x_k the longest
    5% of the sessions, or 2.5% of the absences, and u the next shorter one,

        1 / α̂ = 1/k Σ log(x_i / u)    (Hill 1975),    standard error of α̂: α̂ / √k

    Of absences, the longest third of these gives an estimate, too, and the larger one counts: a
    power of the length has the same index further out, and a mixture of short and long ones has
    not. Lengths are whole rounds, so each stands for one spread evenly within its last round.
    Sessions that the log cuts off count with the length that it shows, which makes tails lighter.

    Args:
        log: the participation log; of very large ones, evenly spaced clients.
        stays: which of them.
    """
    lengths, relative = _list_lengths(log, stays)
    tails = [_fit(lengths, relative, int(share * len(relative))) for share in _SHARES[stays]]
    return max(tails, key=lambda tail: tail.index)


def _fit(lengths: Floats, relative: Floats, k: int) -> Tail:
    """Return Hill's estimate from the k longest."""
    if k < _MIN_LONGEST:
        return Tail(np.inf, (0.0, np.inf))
    order = np.argpartition(relative, len(relative) - k - 1)[-k - 1 :]
    if lengths[order].mean() < _MIN_LENGTH:
        return Tail(np.inf, (0.0, np.inf))
    longest = np.sort(relative[order])
    index = 1 / max(float(np.log(longest[1:] / longest[0]).mean()), 1e-9)
    error = 1.96 * index / np.sqrt(k)
    return Tail(index, (max(0.0, index - error), index + error))


def _list_lengths(log: ParticipationLog, stays: Stays) -> tuple[Floats, Floats]:
    """Return the stays of clients with enough of them: lengths in rounds, and relative ones."""
    step = max(1, -(-len(log.clients) // _MOST_ENTRIES))
    lengths, relative = [], []
    for _, entries, starts in log.iter_client_chunks():
        rounds, counts = log.rounds[entries], np.diff(starts)
        owner = np.repeat(np.arange(len(counts)), counts)
        if step > 1:
            kept = owner % step == 0
            rounds, owner = rounds[kept], owner[kept]
        gaps, moves = np.diff(rounds, prepend=-2), np.diff(owner, prepend=-1) != 0
        if stays == "sessions":
            begins = np.flatnonzero((gaps != 1) | moves)
            own = np.diff(np.append(begins, len(rounds)))
        else:
            begins = np.flatnonzero((gaps != 1) & ~moves)
            own = gaps[begins] - 1
        owner = owner[begins]
        own = own - (np.arange(len(begins)) * 0.6180339887498949) % 1.0
        number = np.bincount(owner, minlength=len(counts))[owner]
        total = np.bincount(owner, own, minlength=len(counts))[owner]
        often = number >= _MIN_OWN
        lengths.append(own[often])
        relative.append((own * (number - 1) / np.maximum(total - own, 1e-9))[often])
    return np.concatenate(lengths), np.concatenate(relative)
