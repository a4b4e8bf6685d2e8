"""The problem on which methods are replayed: clients whose optima differ, as their data would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.recommend.findings import Findings
from fedtide.auditing.recommend.log_replay import Script, Settings, replay
from fedtide.auditing.statistics.auto_weights import auto_weights
from fedtide.auditing.statistics.forgetting import Forgetting
from fedtide.auditing.statistics.influence import ObjectiveComparison, mean_intervals
from fedtide.auditing.statistics.rate_estimates import RateEstimates
from fedtide.randomness import generator

_STEPS = 0.8 * 10.0 ** (-np.arange(9) / 2)
"""φ, the products of step size and curvature."""
_CURVATURES = 10.0 ** (-np.arange(3) / 2)
"""h of the problem's coordinates; each is a shift on the grid of φ."""
_TUNED = len(_STEPS) - len(_CURVATURES) + 1
"""The number of step sizes that each method may choose from."""
_TIMING, _RATES, _UNRELATED, _NOISE = 4, 1, 4, 2
"""Coordinates of each kind."""
_KINDS = tuple(
    slice(end - number, end)
    for number, end in zip(
        (_TIMING, _RATES, _UNRELATED, _NOISE),
        1 + np.cumsum((_TIMING, _RATES, _UNRELATED, _NOISE)),
        strict=True,
    )
)
"""The coordinates of each kind; those of a kind are drawn alike."""
_SHARES = {"timing": 0.4, "rates": 0.3, "unrelated": 0.3}
"""Shares of the variance between the clients' optima."""
_NOISE_VARIANCE = 0.1
_BLOCKS = 6
_ROUNDS, _ENTRIES, _CLIENTS = 3000, 40_000, 3000
_RANK = 6
_MAX_CELLS = 4_000_000
"""Cells of the table of participations by client and window."""


@dataclass(frozen=True, eq=False)
class ReplayedLoss:
    """The loss of a method in the last third of a replay, around its best step size.

    Args:
        parts: of F(x_t) − F(x*) over its value at the start, by block of rounds and coordinate,
            shape (B, K).
    """

    parts: Floats

    @property
    def mean(self) -> float:
        """The mean over the blocks."""
        return float(self.parts.sum(axis=1).mean())

    def error_of_gap(self, other: ReplayedLoss) -> float:
        """Return the standard error of the difference of two means.

        It covers other rounds, judged by the differences between blocks, and other clients, judged
        by those between coordinates of the same kind.
        """
        gaps = self.parts - other.parts
        blocks, coordinates = gaps.sum(axis=1), gaps.mean(axis=0)
        variance = blocks.var(ddof=1) / len(blocks) if len(blocks) > 1 else 0.0
        for kind in _KINDS:
            drawn = coordinates[kind]
            variance += len(drawn) * drawn.var(ddof=1) if len(drawn) > 1 else 0.0
        return float(np.sqrt(variance))


def measure_losses(script: Script, methods: Sequence[Settings]) -> list[ReplayedLoss]:
    """Return the loss of each method in the replay of a script, around the best of its step sizes.

    Step sizes are never tuned exactly, so the loss is (l_{k−1} + 2 l_k + l_{k+1}) / 4 for the
    losses l of neighbouring step sizes, each at most the loss at the start.
    """
    weights = _weigh_coordinates()
    weights /= float(weights[:, 0].sum())  # the loss at the start
    found = []
    for squares in replay(script, methods, _BLOCKS):
        parts = sum(
            squares[:, shift : shift + _TUNED] * of_curvature
            for shift, of_curvature in enumerate(weights)
        )
        total = parts.sum(axis=2, keepdims=True)
        diverged = np.full_like(parts, 1 / parts.shape[2])
        parts = np.divide(parts, np.maximum(total, 1.0), out=diverged, where=np.isfinite(total))
        parts = np.pad(parts, ((0, 0), (1, 1), (0, 0)), mode="edge")
        smooth = (parts[:, :-2] + 2 * parts[:, 1:-1] + parts[:, 2:]) / 4
        best = int(np.argmin(smooth.sum(axis=2).mean(axis=0)))
        found.append(ReplayedLoss(smooth[:, best]))
    return found


def make_script(findings: Findings, seed: int, long: bool) -> Script:
    """Return the script of a replay of the log, on a problem made for it.

    Optima of clients differ in three ways, each in its own coordinates: by when clients take part
    (those that take part at the same times are alike), by how often, and independently of both. The
    first two are mixed with the third as far as chance explains the differences between clients in
    time and rate. Gradients have noise. F is the sum over the coordinates, whose curvatures are 1,
    0.32 and 0.1.

    The last 3000 rounds are replayed, of a random subset of the clients where there are more than
    3000 of them or 40,000 entries; ten times as many of each if `long`. Known rates have the errors
    of rates from another log of this length: p_n is multiplied by a draw of the gamma distribution
    with the relative variance of its estimate.

    Args:
        findings: the audit.
        seed: of the problem.
        long: whether to replay more.
    """
    log, objectives = findings.log, findings.objectives
    random = generator(seed, "audit-replay")
    order = _order_clients(log, objectives.wanted, seed)
    part, chosen = _select(log, order, random, 10 if long else 1)
    wanted = objectives.wanted[chosen]
    wanted = wanted / wanted.sum() if wanted.sum() > 0 else np.full(part.size, 1 / part.size)
    centers = _draw_centers(part, chosen, wanted, objectives, findings.forgetting, random)
    kinds = centers.shape[1]
    targets = np.zeros((len(part.clients), 1 + kinds + _NOISE), dtype=np.float32)
    targets[:, 1 : 1 + kinds] = centers[part.clients]
    targets[:, 1 + kinds :] = random.normal(size=(len(part.clients), _NOISE))
    start = np.zeros(targets.shape[1], dtype=np.float32)
    start[0] = 1.0
    fedau_weights = np.empty(len(part.clients))
    by_client = np.argsort(part.clients, kind="stable")
    fedau_weights[by_client] = mean_intervals(part.rounds, part.client_starts, findings.cutoff)
    return Script(
        starts=part.starts,
        clients=part.clients,
        size=part.size,
        targets=targets,
        start=start,
        steps=_STEPS.astype(np.float32),
        factors=part.size * wanted,
        fedau_weights=fedau_weights,
        auto_weights=auto_weights(part.starts, part.clients, part.size),
        rates=_draw_rates(log.length, findings.rates, chosen, random),
        samples=part.samples,
    )


def _order_clients(log: ParticipationLog, wanted: Floats, seed: int) -> Ints:
    """Return the clients in an order that depends on their entries alone, (N,).

    Their numbers depend on the rows and names of the source; the advice must not.
    """
    samples = np.zeros(log.size) if log.samples is None else log.samples
    return np.lexsort((samples, wanted, log.mark_clients(seed)))


def _select(
    log: ParticipationLog, order: Ints, random: np.random.Generator, extent: int
) -> tuple[ParticipationLog, Ints]:
    """Return the part of the log that is replayed, and its clients' indices in the log.

    Its clients, and those of a round, are in the order `order`.
    """
    end = 1 + int(np.flatnonzero(log.cohorts)[-1])
    first = max(0, end - extent * _ROUNDS)
    place = np.empty(log.size, dtype=np.int32)
    place[order] = np.arange(log.size)
    clients = place[log.clients[log.starts[first] : log.starts[end]]]
    rounds = np.repeat(np.arange(first, end), log.cohorts[first:end])
    share = min(1.0, extent * _CLIENTS / log.size, extent * _ENTRIES / len(clients))
    chosen = np.arange(log.size)
    if share < 1:
        some = random.permutation(log.size)[: max(2, round(share * log.size))]
        last = clients[rounds == end - 1].max()
        chosen = np.union1d(some, last)  # at least one that took part
    place = np.full(log.size, -1, dtype=np.int32)
    place[chosen] = np.arange(len(chosen))
    kept = place[clients] >= 0
    rounds, clients = rounds[kept], place[clients[kept]]
    names = pl.Series("client", np.arange(len(chosen)))
    by_round = np.lexsort((clients, rounds))
    part = ParticipationLog.from_entries(names, rounds, clients[by_round], (first, end))
    chosen = order[chosen]
    samples = None if log.samples is None else np.nan_to_num(log.samples[chosen], nan=1.0)
    return replace(part, samples=samples), chosen


def _draw_rates(
    length: int, rates: RateEstimates, chosen: Ints, random: np.random.Generator
) -> Floats:
    """Return clients' rates with the errors of estimates from another log, at least 1 / T."""
    rate = np.maximum(rates.estimate[chosen], 1 / length)
    times = np.nan_to_num(rates.autocorrelation_time[chosen], nan=1.0)
    draws = length * rate / np.maximum(times * (1 - rate), 1e-6)
    draws = np.clip(draws, 0.5, 1e9)
    return np.asarray(np.clip(rate * random.gamma(draws) / draws, 1 / length, 1.0))


def _draw_centers(
    part: ParticipationLog,
    chosen: Ints,
    wanted: Floats,
    objectives: ObjectiveComparison,
    forgetting: Forgetting,
    random: np.random.Generator,
) -> Floats:
    """Return e_n, shape (N, coordinates), with weighted mean 0 and variance 1."""
    window = part.usual_span(max(2, forgetting.window))
    timing = _standardise(_find_activity(part, window, random), wanted)
    influence = objectives.in_force.weights[chosen] / np.maximum(wanted, 1e-300)
    least = influence[influence > 0].min(initial=1.0)
    by_rate = _standardise(np.log(np.maximum(influence, least))[:, None], wanted)
    skew = objectives.in_force.skew
    real = min(1.0, skew.corrected / max(skew.observed, 1e-12)) ** 2
    unrelated = random.normal(size=(part.size, _TIMING + _RATES + _UNRELATED))
    shares = np.concatenate([np.full(_TIMING, forgetting.reliability), np.full(_RATES, real)])
    related = np.sqrt(shares) * np.concatenate([timing, by_rate], axis=1)
    unrelated[:, : len(shares)] *= np.sqrt(1 - shares)
    unrelated[:, : len(shares)] += related
    return _standardise(unrelated, wanted)


def _find_activity(part: ParticipationLog, window: int, random: np.random.Generator) -> Floats:
    """Return coordinates in which clients that take part at the same times are alike.

    They are random mixtures of the leading components of the table of participations by client and
    window, as deviations from constant rates over their standard deviation.
    """
    rounds = np.repeat(np.arange(part.length), part.cohorts)
    window = max(window, -(-part.size * part.length // _MAX_CELLS))
    windows = -(-part.length // window)
    cells = part.clients.astype(np.int64) * windows + rounds // window
    table = np.bincount(cells, minlength=part.size * windows).reshape(part.size, windows)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / max(1, table.sum())
    deviations = (table - expected) / np.sqrt(np.maximum(expected, 1e-3))
    rank = min(_RANK, windows, part.size)
    basis = random.normal(size=(windows, rank))
    for _ in range(3):  # subspace iteration
        basis = np.linalg.qr(deviations.T @ (deviations @ basis))[0]
    return np.asarray(deviations @ basis @ random.normal(size=(rank, _TIMING)))


def _standardise(values: Floats, wanted: Floats) -> Floats:
    """Return the columns with weighted mean 0 and variance 1; columns without variance stay 0."""
    centred = values - wanted @ values
    deviation = np.sqrt(wanted @ centred**2)
    return np.asarray(centred / np.where(deviation > 1e-9, deviation, np.inf))


def _weigh_coordinates() -> Floats:
    """Return the weight of each coordinate's square in the loss, for each curvature, (H, K)."""
    weights = [1.0]
    for kind, number in (("timing", _TIMING), ("rates", _RATES), ("unrelated", _UNRELATED)):
        weights += [_SHARES[kind] / number] * number
    noise = [_NOISE_VARIANCE / _NOISE] * _NOISE
    # Noise of variance proportional to the curvature h moves x by h⁻² times that.
    return np.stack([[*(h * np.array(weights)), *noise] for h in _CURVATURES])
