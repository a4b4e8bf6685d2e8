"""The variance of means over dependent rounds, without a model of the dependence.

With S(f) the spectral density of a series at f cycles per T rounds, its mean over T rounds has the
variance

    V / T,    V = ∫ S(f) sinc²(f) df

S is estimated from the periodogram at the lowest frequencies f = 1, 2, ..., m. These are orthogonal
to the mean and, over whole cycles, to everything periodic. Each has two degrees of freedom, where
the mean of a batch of rounds has one, and no length of batches must be chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from fedtide.auditing.log.participation_log import Floats
from fedtide.auditing.statistics.distributions import student_t_isf
from fedtide.auditing.statistics.periodogram import FREQUENCIES

_SUBSETS = (24, 16, 12, 8, 6, 4)
"""Numbers of frequencies to fall back on if a shape does not fit all."""
_BENDS = np.array([0.7, 1.0, 1.4, 2.0])
"""β of the shapes."""
_POWERS = np.array([-1.0, -0.5, -0.25, 0.0, 0.15, 0.25, 0.5, 0.75, 1.0])
"""γ of the shapes."""
_TWO_SIDED = 1.959964
"""The 97.5% quantile of the normal distribution."""
_FLOORS = np.arange(0.0, 0.85, 0.05)
"""c of the shapes: the share of S(1) that is noise without memory."""
_FLOOR_PRIOR = 1.0
"""The prior probability of all floors c > 0, relative to c = 0."""
_MIN_CORNER_ABOVE_FLOOR = 1.0
"""Above noise, memory that is longer than the log does not show."""
_OWN_SHAPE = 0.2
"""The prior probability that a sum over the clients does not have the shape of the clients."""
_CORNERS = 2.0 ** np.arange(-3, 6.25, 0.25)
"""f_0 of the shapes; below 1, the memory is longer than the log."""


@dataclass(frozen=True, eq=False)
class SpectralShape:
    """The spectral density S(f) of all clients together.

    Args:
        level: V, relative to independent rounds.
        ratios: S(f) / V for f = 1, 2, ..., shape (m,).
        uncertainty: the relative variance of the estimate of V.
        long_memory: the probability that S still grows towards lower frequencies than the log has.
        used: how many frequencies the estimate uses.
        posterior: the probabilities of the hypotheses, (h,).
    """

    level: float
    ratios: Floats
    uncertainty: float
    long_memory: float
    used: int
    posterior: Floats


def fit_shape(
    powers: NDArray[np.floating],
    independent: Floats,
    series: float = np.inf,
    known: Hypotheses | None = None,
) -> SpectralShape:
    """Return the shape of S near f = 0, as an average over the hypotheses

        S(f) ∝ (1 − c) g(f) / g(1) + c,    g(f) = (1 + (f / f_0)^β)^(−2γ/β)

    weighted by their likelihood (Whittle 1953). They range from participation that makes the next
    less likely (γ < 0) through independence (γ = 0) to Markov chains (γ = 1, β = 2) and memory
    without end (small f_0; γ = 1/4: sessions with Pareto's tail 1.5). β says how S approaches
    f = 0: flat (2), as for Markov chains, whose covariances decay fast, or in a cusp (1 and less),
    as for sessions so uneven in length that the longest are comparable to the log. c is noise
    without memory, as from a server that selects at random among clients that come and go slowly.
    If no hypothesis agrees with the powers of all frequencies, only the lowest are used.

    Args:
        powers: of the clients, shape (n, m).
        independent: S of each client if rounds were independent, (n,).
        series: the largest number of independent series that the clients can equal.
        known: the hypotheses at the frequencies of the powers; None: f = 1, 2, ...
    """
    count = powers.shape[1]
    known = known or list_hypotheses()
    pooled, clients = _pool(powers, independent, series)
    clients *= known.step
    if not pooled.sum() > 1e-9:  # all clients repeat strictly
        return SpectralShape(0.0, np.ones(count), 0.0, 0.0, count, known.prior)
    for used in (count, *(m for m in _SUBSETS if m < count)):
        shape = _average_hypotheses(known, pooled[:used], clients)
        residuals = pooled[:used] / (shape.level * shape.ratios) - 1
        misfit = clients * float((residuals**2).sum())
        if misfit < used + 2.5 * np.sqrt(2 * used):
            break
    return _average_hypotheses(known, pooled[:used], clients / max(1.0, misfit / max(1, used - 2)))


def long_run_variance(powers: NDArray[np.floating], clients: Floats) -> float:
    """Return V of one series, a sum over the clients, for a 95% interval of its mean.

    The mean over T rounds is a mixture of normals of the variances V_h / T; 95% of it lies within
    1.96 √(V / T) of the true mean. The sum has the shape of the clients, unless they depend on each
    other: what they have in common may be slower than each. So the prior of the hypotheses is
    their posterior given the clients, mixed with a share of 1/5 of the general prior.

    Args:
        powers: of the series, shape (m,).
        clients: the probabilities of the hypotheses on the clients in the sum, (h,).
    """
    if not powers.sum() > 0:
        return 0.0
    known, count = list_hypotheses(), len(powers)
    own = np.asarray(powers, dtype=np.float64)
    prior = (1 - _OWN_SHAPE) * clients + _OWN_SHAPE * known.prior
    posterior = special.softmax(np.log(prior) + _log_likelihoods(known, own, 1.0))
    stretch = (float(student_t_isf(0.025, 2.0 * count)) / _TWO_SIDED) ** 2
    variances = _scales(known, own) * known.levels * stretch

    def excess(log_variance: float) -> float:
        outside = 2 * special.ndtr(-_TWO_SIDED * np.exp(log_variance / 2) / np.sqrt(variances))
        return float((posterior * outside).sum()) - 0.05

    low, high = np.log(variances.min()) - 1, np.log(variances.max()) + 1
    return float(np.exp(optimize.brentq(excess, low, high, xtol=1e-6)))


def _pool(powers: NDArray[np.floating], independent: Floats, series: float) -> tuple[Floats, float]:
    """Return the mean power of clients, (m,), and the number of independent ones they equal."""
    own = powers.sum(axis=1, dtype=np.float64)
    scale = float(independent.sum())
    if powers.size == 0 or scale <= 0 or own.sum() <= 0:
        return np.zeros(powers.shape[1]), 0.0
    clients = float(own.sum() ** 2 / (own**2).sum()) * (1 + 1 / powers.shape[1])
    return powers.sum(axis=0, dtype=np.float64) / scale, min(series, clients)


def _log_likelihoods(known: Hypotheses, pooled: Floats, clients: float) -> Floats:
    """Return each hypothesis's log-likelihood at its best scale, up to a constant, shape (h,)."""
    count = len(pooled)
    sums = known.log_sums[:, count - 1] + count * np.log(_scales(known, pooled))
    return np.asarray(-clients * sums)


def _scales(known: Hypotheses, pooled: Floats) -> Floats:
    """Return the scale of largest likelihood of each hypothesis, shape (h,)."""
    count = len(pooled)
    return np.asarray(np.einsum("hf,f->h", 1 / known.densities[:, :count], pooled) / count)


def _average_hypotheses(known: Hypotheses, pooled: Floats, clients: float) -> SpectralShape:
    """Return the posterior mean of the shapes; `pooled` and `clients` as returned by `_pool`."""
    count = len(pooled)
    posterior = special.softmax(np.log(known.prior) + _log_likelihoods(known, pooled, clients))
    scale = _scales(known, pooled)
    variances = scale * known.levels
    level = float((posterior * variances).sum())
    square = float((posterior * variances**2).sum()) * (1 + 1 / (clients * count))
    ratios = np.einsum("h,hf->f", posterior * scale, known.densities[:, :count]) / level
    long_memory = float(posterior[known.is_long].sum())
    return SpectralShape(level, ratios, square / level**2 - 1, long_memory, count, posterior)


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Densities up to a factor.

    Args:
        densities: S at the frequencies, shape (h, m).
        log_sums: the sums of log S over the frequencies up to each, (h, m).
        levels: V, (h,).
        prior: their probabilities, (h,).
        is_long: whether the memory is longer than the log, (h,).
        step: between the frequencies: cosines, half a cycle apart, have one degree of freedom each.
    """

    densities: Floats
    log_sums: Floats
    levels: Floats
    prior: Floats
    is_long: NDArray[np.bool_]
    step: float


@cache
def list_hypotheses(first: float = 1.0, step: float = 1.0) -> Hypotheses:
    """Return the hypotheses of `fit_shape` at the frequencies first, first + step, ..."""
    grids = np.meshgrid(_FLOORS, _BENDS, _POWERS, _CORNERS, indexing="ij")
    table = np.stack([grid.ravel() for grid in grids])
    floors, bends, powers, corners = table
    known = (floors == 0) | ((powers > 0) & (corners >= _MIN_CORNER_ABOVE_FLOOR))
    floors, bends, powers, corners = table[:, known]

    def density(frequencies: Floats) -> Floats:
        exponents = (-2 * powers / bends)[:, None]
        base: Floats = (1 + (frequencies / corners[:, None]) ** bends[:, None]) ** exponents
        first = (1 + corners[:, None] ** -bends[:, None]) ** exponents
        return np.asarray((1 - floors[:, None]) * base / first + floors[:, None])

    width = 1 / 64
    roots = np.arange(width / 2, 8, width)  # of the frequencies: finer steps towards 0
    window = 2 * width * roots * np.sinc(roots**2) ** 2
    densities = density(first + step * np.arange(float(FREQUENCIES)))
    prior = np.minimum(corners, 1.0) * np.where(powers == 0, 2.0, 1.0)
    prior *= np.where(floors > 0, _FLOOR_PRIOR / (len(_FLOORS) - 1), 1.0)
    return Hypotheses(
        densities=densities,
        log_sums=np.cumsum(np.log(densities), axis=1),
        levels=2 * (density(roots**2) * window).sum(axis=1),
        prior=prior / prior.sum(),
        is_long=(corners < 1) & (powers > 0),
        step=step,
    )
