"""An interval for Σ |w_n − a_n| from noisy estimates of the w_n, which makes it look larger."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from fedtide.auditing.log.participation_log import Floats
from fedtide.auditing.statistics.distributions import normal_above

_LEVEL = 0.045
"""Half a per cent less than asked for: the noise is estimated and counts come in steps."""
_EVEN = 0.1
"""What share of their noise's variance the gaps that were found have at least."""
_POWERS = np.linspace(1.0, 0.0, 6)
"""Shapes of the true gaps, as powers of the found ones: from as unlike as those to all alike."""
_BELOW = 0.7
"""How far below 1 the power is thought to be beforehand, as a standard deviation."""
_LEAST_SPREAD = 0.1
"""How far at least the bias of X is unknown, given its size, as the shape may be none of those."""
_STEPS = 18
"""Halvings that find an end of the interval."""
_LEAST = 1e-9
"""The least standard deviation of X, relative to it."""

Errors = Callable[[Floats], Floats]
"""From weights, shape (N,), to the standard errors with which a log shows them, (N,)."""
Variance = Callable[[Floats], float]
"""From slopes ψ, shape (N,), to the variance of Σ ψ_n ŵ_n."""


@dataclass(frozen=True)
class Skew:
    """The L1 skew.

    Args:
        found: Σ |ŵ_n − a_n|, of this log.
        likely: without what its noise adds to it.
        interval: 95 % for Σ |w_n − a_n| of the process behind the log.
    """

    found: float
    likely: float
    interval: tuple[float, float]


def estimate_skew(weights: Floats, wanted: Floats, errors: Errors, variance: Variance) -> Skew:
    """Return the L1 skew of these weights, between 0 and 2, with an interval.

    Noise makes absolute values too large: even weights alike look uneven. So each hypothesis is
    asked what it would look like. The hypotheses are gaps of one shape, at another size,

        δ_n(κ) = κ δ_n,    |δ_n| ∝ ((ŵ_n − a_n)² + s_n² / 10)^(b/2),    κ >= 0,  0 <= b <= 1

    With s_n the standard error of weights of a_n + δ_n and e_n the noise, X = Σ |δ_n + e_n| has the
    mean of folded normals, and as

        |δ_n + e| = mean + (2 Φ(δ_n / s_n) − 1) e + rest

    the variance of Σ (2 Φ − 1) e_n, where the rounds' and the clients' dependence counts, plus that
    of the rests. X leans to the right by the third cumulants of folded normals: it is brought to a
    normal as if it were a gamma variable (Wilson and Hilferty 1931), which matters where clients
    are few.

    By how much the mean lies above Σ |δ_n|, the bias B, hangs on the shape b as well, which matters
    where clients are many: noise makes gaps less alike, and those of two kinds of clients look like
    many kinds. So several b are asked for the mean of X at the size where Σ δ_n² is Σ (ŵ_n − a_n)²
    − s_n². One is likely if that is what was found, and if it is near 1. The hypotheses have the
    mean of the b, weighted by that. How B differs between them is one more part of X's standard
    deviation, r B (1 − B / B(0)), with r what it is at this size, and 0.1 at least.

    `likely` is Σ |δ_n(κ)| where the mean is what was found. The interval holds those that a test
    does not reject; X has no mean below that at κ = 0, and the test's order is that of the
    likelihood ratio, so that it is one-sided there (Feldman and Cousins 1998).

    Args:
        weights: ŵ_n, shape (N,).
        wanted: a_n, (N,).
        errors: s_n, by the weights.
        variance: of sums of the ŵ_n, dependence included.
    """
    family = _Family(weights, wanted, errors, variance)
    found = float(np.abs(weights - wanted).sum())
    if family.size == 0 or family.law(1.0)[1] <= _LEAST * family.size:
        return Skew(found, found, (found, found))
    start = family.law(0.0)[0]

    def accepted(kappa: float) -> bool:
        mean, deviation, lean = family.law(kappa)
        expected = max(0.0, mean - start) / deviation
        return _p_value(expected + _upright((found - mean) / deviation, lean), expected) >= _LEVEL

    top = _above(lambda kappa: family.law(kappa)[0] < found)
    middle = _edge(lambda kappa: family.law(kappa)[0] < found, 0.0, top)
    low = 0.0 if accepted(0.0) else _edge(lambda kappa: not accepted(kappa), 0.0, middle)
    high = _edge(accepted, middle, _above(accepted, middle))
    sizes = [min(2.0, kappa * family.size) for kappa in (middle, low, high)]
    return Skew(found, sizes[0], (sizes[1], sizes[2]))


class _Family:
    """The hypotheses κ, and what Σ |δ_n + e_n| looks like under each.

    Args:
        weights, wanted, errors, variance: as of `estimate_skew`.
    """

    def __init__(self, weights: Floats, wanted: Floats, errors: Errors, variance: Variance) -> None:
        self._weights, self._wanted, self._errors = weights, wanted, errors
        shown = errors(weights)
        found = weights - wanted
        sizes = np.sqrt(found**2 + _EVEN * shown**2)
        self.size = float(sizes.sum())
        self._signs = np.where(found < 0, -1.0, 1.0)
        self._gaps = self._signs * sizes
        self._spread = 0.0  # until the shapes have been compared
        self._most = float(errors(wanted).sum()) * math.sqrt(2 / math.pi)
        slopes = self._centred(_absolute(self._gaps, shown)[1])
        apart = float((slopes**2 * shown**2).sum())
        # How much the clients' noise hangs together is alike for all κ, and costs a pass each.
        self._together = variance(slopes) / apart if apart > 0 else 1.0
        if apart > 0:
            squares = float((found**2 - shown**2).sum())
            self._choose_shape(sizes, float(np.abs(found).sum()), max(0.0, squares))

    def law(self, kappa: float) -> tuple[float, float, float]:
        """Return the mean, standard deviation and skewness of Σ |δ_n + e_n|."""
        return self._law(kappa * self._gaps)

    def _law(self, gaps: Floats) -> tuple[float, float, float]:
        errors = self._errors(np.clip(self._wanted + gaps, 0, 1))
        folded, slope, third = _absolute(gaps, errors)
        squares = errors**2
        rest = np.maximum(squares + gaps**2 - folded**2 - slope**2 * squares, 0).sum()
        linear = (self._centred(slope) ** 2 * squares).sum() * self._together
        mean = float(folded.sum())
        shape = self._spread * self._unknown(mean - float(np.abs(gaps).sum()))
        deviation = max(float(np.sqrt(linear + rest + shape**2)), _LEAST * self.size)
        return mean, deviation, float(third.sum()) / deviation**3

    def _unknown(self, bias: float) -> float:
        """Return B (1 − B / B(0)): all of a small bias; nothing of that of weights as wanted."""
        return bias * max(0.0, 1 - bias / self._most) if self._most > 0 else 0.0

    def _choose_shape(self, sizes: Floats, found: float, squares: float) -> None:
        """Set the gaps at κ = 1, and how far their shape is unknown.

        Args:
            sizes: of the gaps that were found, shape (N,).
            found: Σ |ŵ_n − a_n|.
            squares: Σ δ_n², as it is estimated.
        """
        shapes = [self._of_power(sizes, power) for power in _POWERS]
        scores = ((1 - _POWERS) / _BELOW) ** 2
        for number, gaps in enumerate(shapes):
            mean, deviation, _ = self._law(gaps * _scale(gaps, squares))
            scores[number] += ((found - mean) / deviation) ** 2
        likely = np.exp((scores.min() - scores) / 2)
        likely /= likely.sum()
        self._gaps = self._of_power(sizes, float((likely * _POWERS).sum()))
        kappa = _scale(self._gaps, squares)
        means = np.array([self._law(kappa * gaps)[0] for gaps in shapes])
        mean = self.law(kappa)[0]
        unknown = self._unknown(mean - kappa * self.size)
        apart = math.sqrt(float((likely * (means - mean) ** 2).sum()))
        self._spread = _LEAST_SPREAD
        if unknown > _LEAST * self.size:
            self._spread = max(_LEAST_SPREAD, apart / unknown)

    def _of_power(self, sizes: Floats, power: float) -> Floats:
        """Return gaps of this shape whose absolute values sum to `self.size`."""
        shape: Floats = sizes**power
        return self._signs * shape * (self.size / float(shape.sum()))

    def _centred(self, slopes: Floats) -> Floats:
        """Return ψ_n − Σ ψ_m w_m: weights sum to 1, so what is common to all has no noise."""
        return slopes - float((slopes * self._weights).sum())  # `@` would wait for other cores


def _scale(gaps: Floats, squares: float) -> float:
    """Return the κ at which the squares of these gaps sum to that."""
    return math.sqrt(squares / float((gaps**2).sum()))


def _upright(value: float, lean: float) -> float:
    """Return the normal value at the same place as this one of a gamma law of skewness `lean`.

    Both laws have mean 0 and variance 1. At −0.4 of an exponential law the exact value is −0.12.

    >>> _upright(1.5, 0.0), round(_upright(-0.4, 2.0), 2)
    (1.5, -0.14)
    """
    if lean < 1e-6:
        return value
    return 6 / lean * (math.cbrt(max(0.0, 1 + lean * value / 2)) - 1) + lean / 6


def _p_value(found: float, expected: float) -> float:
    """Return P(a likelihood ratio as small) for a normal of which the mean is at least 0.

    Args:
        found: the value.
        expected: its mean under the hypothesis, >= 0.

    >>> round(_p_value(1.645, 0.0), 3), round(_p_value(8.0, 9.96), 3), _p_value(-1.0, 0.0)
    (0.05, 0.05, 1.0)
    """
    square = (found - expected) ** 2 - (found**2 if found < 0 else 0.0)
    distance = float(np.sqrt(max(square, 0.0)))
    below = expected - distance
    if below < 0:  # as unlikely as a value below 0, where the best mean is 0
        below = (expected**2 - square) / (2 * expected) if expected > 0 else -np.inf
    tails = float(normal_above(distance)) + float(normal_above(expected - below))
    return 1.0 if distance == 0 else tails


def _edge(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return where the condition ceases to hold, between `low`, where it does, and `high`."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def _above(holds: Callable[[float], bool], low: float = 0.0) -> float:
    """Return a κ above `low` at which the condition does not hold."""
    kappa = max(2 * low, 1.0)
    while holds(kappa) and kappa < 1e6:
        kappa *= 2
    return kappa


def _absolute(center: Floats, error: Floats) -> tuple[Floats, Floats, Floats]:
    """Return of |X|, for X normal: its mean, how that moves with X's, its third central moment."""
    ratio = np.divide(center, error, out=np.sign(center) * 40.0, where=error > 0)
    square = ratio**2
    density = np.exp(-square / 2) * np.sqrt(2 / np.pi)
    slope = 2 * special.ndtr(ratio) - 1
    mean = error * density + center * slope
    raw = error**3 * ((2 + square) * density + (square + 3) * ratio * slope)
    third = raw - 3 * mean * (error**2 + center**2) + 2 * mean**3  # about the mean
    return mean, slope, np.where(square < 400, np.maximum(third, 0), 0)  # beyond, all cancels
