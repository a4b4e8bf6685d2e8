"""The weights that `fedtide.algorithms.Auto` gives to the entries of a log."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.influence import share_entries

_SHARE = (5**0.5 - 1) / 2
_LARGEST_STEP = 1.1
"""ρ and the bound of `fedtide.algorithms.Auto`, whose import would load PyTorch."""
MOST_ROUNDS = 100_000
"""Of longer logs, the last rounds are used."""


def auto_weights(starts: Ints, clients: np.ndarray, size: int) -> Floats:
    """Return a_n of every entry under Auto, shape (E,).

    Every client is owed one weight a round, and a round pays a share ρ of the debts of its clients:

        owed = t + 1 + (N / ρ) max(t, 1) / max(M, 1)
        a_n = ρ debt_n min(1, 1.1 N / Σ ρ debt),    debt_n = max(0, owed − c_n)

    with M the number of earlier entries, t that of earlier rounds with entries, and c_n the sum of
    the weights that client n has had, less what it was forgiven: c_n ← min(c_n, owed) + a_n
    (docs/auto.md).

    Args:
        starts: the entries of round t are starts[t]..starts[t + 1], (T + 1,).
        clients: the client of each entry, (E,).
        size: N.

    >>> weights = auto_weights(np.array([0, 1, 2, 3, 5]), np.array([0, 0, 0, 0, 1]), 2)
    >>> weights[3:].round(4)  # client 1 was away for three rounds
    array([0.4431, 1.7569])
    """
    paid, weights = np.zeros(size), np.empty(len(clients))
    used = [(low, high) for low, high in pairwise(starts) if low < high]
    for t, (low, high) in enumerate(used):
        ids = clients[low:high]
        owed = t + 1 + size / _SHARE * max(t, 1) / max(low - starts[0], 1)
        debts = np.maximum(owed - paid[ids], 0)
        asked = _SHARE * debts
        most = _LARGEST_STEP * size
        weights[low:high] = asked * (most / max(float(asked.sum()), most))
        paid[ids] = owed - debts + weights[low:high]
    return weights


def average_auto_weights(log: ParticipationLog) -> Floats:
    """Return each client's share of Auto's weights, (N,), in at most the last `MOST_ROUNDS`."""
    starts = log.starts[-MOST_ROUNDS - 1 :]
    clients = log.clients[starts[0] : starts[-1]]
    weights = auto_weights(starts - starts[0], clients, log.size)
    return share_entries(clients, weights, log.size)
