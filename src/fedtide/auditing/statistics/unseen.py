"""Clients that a log has not seen, estimated from those that it has seen once or twice."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Ints, ParticipationLog, find_first_entries
from fedtide.auditing.statistics.distributions import normal_isf

_MIN_GAPS = 50
"""The fewest gaps whose shortest tells how soon clients may return."""
_MAX_LINK = 20
"""Visits are linked over at most this fraction of the log."""


@dataclass(frozen=True)
class UnseenClients:
    """How many clients a log has not seen, if the size of the federation is unknown.

    All of this assumes that clients come independently of each other and of their past: where a
    server gives everybody a turn, or a site's clients come together, it is wrong. The estimate
    is unbiased if the clients that came at most twice come equally often, and too low if their
    rates differ; then only the lower end of its interval holds.

    Args:
        seen: the number of clients seen, S.
        once: clients with a single visit, Q₁.
        twice: clients with two visits, Q₂.
        visits: the number of visits, V.
        estimate: of the number of clients never seen.
        interval: 95% interval; 0 to ∞ if clients came once, but none exactly twice: they may just
            take turns, or there may be many more.
        coverage: estimated probability that a visit is by a client seen in this log.
        coverage_interval: 95% interval.
        link: participations at most this many rounds apart are one visit; 0: each is its own.
    """

    seen: int
    once: int
    twice: int
    visits: int
    estimate: float
    interval: tuple[float, float]
    coverage: float
    coverage_interval: tuple[float, float]
    link: int


def estimate_unseen(log: ParticipationLog, time: float) -> UnseenClients:
    """Estimate the number of clients that a log has not seen.

    Chao's lower bound for incidence data, in the bias-corrected form (Chao 1987; Chao and Colwell
    2017), for Q₁ clients with one visit and Q₂ with two in T rounds:

        Q̂₀ = A Q₁ (Q₁ − 1) / (2 (Q₂ + 1)),    A = (T − 1) / T

    The interval is Q̂₀ / K to Q̂₀ K with K = exp(1.96 √log(1 + V̂ / Q̂₀²)): Q̂₀ is nearly log-normal.
    The coverage of the sample is 1 − Q₁ / V (Good 1953), with Esty's (1983) interval.

    A visit is a participation, unless rounds depend on each other: then participations at most
    τ rounds apart are one visit, since one session of a client shows it only once. Two visits of
    a client cannot begin less than d rounds apart, d their mean length plus the shortest distance;
    this hides pairs of visits, of which the share (1 − d / T)² remains:

        Q₂ ← Q₂ / (1 − d / T)²,    Q₁ ← Q₁ − the pairs so added

    Args:
        log: the participation log, of any stage.
        time: the integrated autocorrelation time τ of participation, in rounds.

    >>> import polars as pl
    >>> rounds, clients = np.array([0, 1, 1, 2, 3, 4]), np.array([0, 0, 1, 2, 3, 3], dtype=np.int32)
    >>> log = ParticipationLog.from_entries(pl.Series(["a", "b", "c", "d"]), rounds, clients)
    >>> found = estimate_unseen(log, 1.0)
    >>> found.once, found.twice, round(found.estimate, 3), round(found.coverage, 3)
    (2, 2, 0.267, 0.667)
    """
    link = 0 if time < 1.5 else min(math.ceil(time), log.length // _MAX_LINK)
    visits, dead = _count_visits(log, link)
    once, twice = float((visits == 1).sum()), float((visits == 2).sum())
    hidden = twice / max(1 - dead / log.length, 0.5) ** 2 - twice
    once, twice = max(once - hidden, 0.0), twice + hidden
    estimate, (low, high) = _bound_unseen(once, twice, log.length)
    total = int(visits.sum())
    share, error = once / total, _missing_share_error(once, twice, total)
    return UnseenClients(
        seen=int((visits > 0).sum()),
        once=int((visits == 1).sum()),
        twice=int((visits == 2).sum()),
        visits=total,
        estimate=estimate,
        interval=(math.floor(low), high if math.isinf(high) else math.ceil(high)),
        coverage=1 - share,
        coverage_interval=(max(0.0, 1 - share - error), min(1.0, 1 - share + error)),
        link=link,
    )


def _count_visits(log: ParticipationLog, link: int) -> tuple[Ints, float]:
    """Return the number of visits of each client, (N,), and d, the least time between two.

    A visit longer than three times the link counts for each such part of it.
    """
    visits = np.zeros(log.size, dtype=np.int64)
    returns, shortest, total = 0, log.length, 0
    for clients, entries, starts in log.iter_client_chunks():
        rounds = log.rounds[entries].astype(np.int64)
        if len(rounds) == 0:
            continue
        apart = np.diff(rounds, prepend=-1)
        first = np.zeros(len(rounds), dtype=bool)
        first[find_first_entries(starts)] = True
        begins = np.flatnonzero(first | (apart > link))
        lengths = rounds[np.append(begins[1:], len(rounds)) - 1] - rounds[begins]
        numbers = np.zeros(len(rounds), dtype=np.int64)
        numbers[begins] = 1 + lengths // max(1, 3 * link)
        visits[clients] = np.diff(np.concatenate([[0], np.cumsum(numbers)])[starts])
        again = begins[~first[begins]]
        returns += len(again)
        shortest = min(shortest, int(apart[again].min(initial=log.length)))
        total += int(lengths.sum())
    wait = shortest - 1 if returns >= _MIN_GAPS else link
    return visits, total / max(1, int(visits.sum())) + wait


def _bound_unseen(once: float, twice: float, rounds: int) -> tuple[float, tuple[float, float]]:
    """Return Chao's estimate of the number of clients not seen and its 95% interval."""
    shrink = (rounds - 1) / rounds
    pairs = once * max(once - 1, 0)
    estimate = shrink * pairs / (2 * (twice + 1))
    if once >= 1 and twice == 0:
        return estimate, (0.0, math.inf)
    if estimate == 0:
        return 0.0, (0.0, _upper_poisson(once) ** 2 / (2 * (twice + 1)))
    ratio = once / (twice + 1)
    variance = (
        estimate
        + shrink**2 * ratio**2 * (2 * once - 1) ** 2 / (4 * once)
        + shrink**2 * ratio**2 * twice * (once - 1) ** 2 / (4 * (twice + 1) ** 2)
    )
    factor = math.exp(normal_isf(0.025) * math.sqrt(math.log1p(variance / estimate**2)))
    return estimate, (estimate / factor, estimate * factor)


def _upper_poisson(count: float) -> float:
    """Return the mean for which a count of 0 or 1 is the 2.5% quantile."""
    return 3.689 if count < 1 else 5.572


def _missing_share_error(once: float, twice: float, visits: int) -> float:
    """Return the half-width of Esty's 95% interval of the share of visits by unseen clients."""
    variance = once * (1 - once / visits) + 2 * twice
    return normal_isf(0.025) * math.sqrt(max(variance, 1.0)) / visits
