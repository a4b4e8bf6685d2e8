"""A confidence interval for the L1 skew Σ |w_n − a_n|, which noise in the w_n inflates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from fedtide.auditing.log.participation_log import Floats
from fedtide.auditing.statistics.distributions import normal_sf

_LEVEL = 0.045
"""Below 0.05, because the noise is estimated and counts are discrete."""
_NOISE_SHARE = 0.1
"""The share of the noise variance added to each observed squared gap."""
_POWERS = np.linspace(1.0, 0.0, 6)
"""Shapes of the true gaps, as powers of the observed ones: 1 is as uneven, 0 all alike."""
_POWER_PRIOR_SD = 0.7
"""Prior standard deviation of 1 − power."""
_MIN_SHAPE_SPREAD = 0.1
"""Minimum uncertainty of the bias of X due to the shape, as the shape may be none of those."""
_BISECTIONS = 18
_MIN_DEVIATION = 1e-9
"""Minimum standard deviation of X, relative to X."""

Errors = Callable[[Floats], Floats]
"""From weights, shape (N,), to their standard errors in a log, (N,)."""
Variance = Callable[[Floats], float]
"""From slopes ψ, shape (N,), to the variance of Σ ψ_n ŵ_n."""


@dataclass(frozen=True)
class SkewEstimate:
    """The L1 skew.

    Args:
        observed: Σ |ŵ_n − a_n| of this log.
        corrected: the same, corrected for the bias due to noise.
        interval: 95% interval for Σ |w_n − a_n| of the underlying process.
    """

    observed: float
    corrected: float
    interval: tuple[float, float]

    @classmethod
    def without_interval(cls, weights: Floats, wanted: Floats) -> SkewEstimate:
        """Return the observed L1 skew alone; the rest is NaN."""
        return cls(float(np.abs(weights - wanted).sum()), math.nan, (math.nan, math.nan))


def estimate_skew(
    weights: Floats, wanted: Floats, errors: Errors, variance: Variance
) -> SkewEstimate:
    """Return the L1 skew of these weights, between 0 and 2, with a confidence interval.

    Noise inflates absolute values: even equal weights look unequal in a log. The interval therefore
    inverts a test. The hypotheses are gaps of one shape and any size κ,

        δ_n(κ) = κ δ_n,    |δ_n| ∝ ((ŵ_n − a_n)² + s_n² / 10)^(b/2),    κ >= 0,  0 <= b <= 1

    With s_n the standard error of weights a_n + δ_n and e_n the noise, X = Σ |δ_n + e_n| has the
    mean of folded normals. Since

        |δ_n + e| = mean + (2 Φ(δ_n / s_n) − 1) e + remainder

    its variance is that of Σ (2 Φ − 1) e_n, including the dependence between rounds and clients,
    plus that of the remainders. X is skewed to the right by the third cumulants of folded normals;
    it is transformed to a normal as if it were gamma-distributed (Wilson and Hilferty 1931), which
    matters for few clients.

    The bias B, the excess of the mean over Σ |δ_n|, also depends on the shape b, which matters for
    many clients: noise makes gaps less alike, so two kinds of clients look like many kinds. For
    several b, X is evaluated at the size where Σ δ_n² = Σ (ŵ_n − a_n)² − s_n². A shape is weighted
    by how well its mean agrees with the observed X and by a prior centred at b = 1. The hypotheses
    use the weighted mean of b. The remaining uncertainty of B adds r B (1 − B / B(0)) to the
    standard deviation of X, with r the relative spread at this size, at least 0.1.

    `corrected` is Σ |δ_n(κ)| at the κ whose mean equals the observed X. The interval holds the
    hypotheses that the test does not reject. X has no mean below that at κ = 0, and outcomes are
    ordered by likelihood ratio, so that the interval is one-sided there (Feldman and Cousins 1998).

    Args:
        weights: ŵ_n, shape (N,).
        wanted: a_n, (N,).
        errors: s_n as a function of the weights.
        variance: of linear combinations of the ŵ_n, dependence included.
    """
    family = _HypothesisFamily(weights, wanted, errors, variance)
    observed = float(np.abs(weights - wanted).sum())
    if family.size == 0 or family.moments(1.0)[1] <= _MIN_DEVIATION * family.size:
        return SkewEstimate(observed, observed, (observed, observed))
    start = family.moments(0.0)[0]

    def is_accepted(kappa: float) -> bool:
        mean, deviation, skewness = family.moments(kappa)
        expected = max(0.0, mean - start) / deviation
        z = _gamma_to_normal((observed - mean) / deviation, skewness)
        return _p_value(expected + z, expected) >= _LEVEL

    def is_below(kappa: float) -> bool:
        return family.moments(kappa)[0] < observed

    middle = _bisect(is_below, 0.0, _find_upper(is_below))
    low = 0.0 if is_accepted(0.0) else _bisect(lambda kappa: not is_accepted(kappa), 0.0, middle)
    high = _bisect(is_accepted, middle, _find_upper(is_accepted, middle))
    sizes = [min(2.0, kappa * family.size) for kappa in (middle, low, high)]
    return SkewEstimate(observed, sizes[0], (sizes[1], sizes[2]))


class _HypothesisFamily:
    """The hypotheses δ(κ), and the distribution of X = Σ |δ_n + e_n| under each.

    Args:
        weights, wanted, errors, variance: as in `estimate_skew`.
    """

    def __init__(self, weights: Floats, wanted: Floats, errors: Errors, variance: Variance) -> None:
        self._weights, self._wanted, self._errors = weights, wanted, errors
        noise = errors(weights)
        gaps = weights - wanted
        sizes = np.sqrt(gaps**2 + _NOISE_SHARE * noise**2)
        self.size = float(sizes.sum())
        self._signs = np.where(gaps < 0, -1.0, 1.0)
        self._gaps = self._signs * sizes
        self._spread = 0.0  # until the shapes have been compared
        self._max_bias = float(errors(wanted).sum()) * math.sqrt(2 / math.pi)
        slopes = self._centre(_fold_normal(self._gaps, noise)[1])
        independent = float((slopes**2 * noise**2).sum())
        # The variance inflation by dependence is similar for all κ, and takes a pass to compute.
        self._inflation = variance(slopes) / independent if independent > 0 else 1.0
        if independent > 0:
            squares = float((gaps**2 - noise**2).sum())
            self._choose_shape(sizes, float(np.abs(gaps).sum()), max(0.0, squares))

    def moments(self, kappa: float) -> tuple[float, float, float]:
        """Return the mean, standard deviation and skewness of X."""
        return self._moments(kappa * self._gaps)

    def _moments(self, gaps: Floats) -> tuple[float, float, float]:
        errors = self._errors(np.clip(self._wanted + gaps, 0, 1))
        folded, slope, third = _fold_normal(gaps, errors)
        squares = errors**2
        remainder = np.maximum(squares + gaps**2 - folded**2 - slope**2 * squares, 0).sum()
        linear = (self._centre(slope) ** 2 * squares).sum() * self._inflation
        mean = float(folded.sum())
        shape = self._spread * self._uncertain_bias(mean - float(np.abs(gaps).sum()))
        deviation = float(np.sqrt(linear + remainder + shape**2))
        deviation = max(deviation, _MIN_DEVIATION * self.size)
        return mean, deviation, float(third.sum()) / deviation**3

    def _uncertain_bias(self, bias: float) -> float:
        """Return B (1 − B / B(0)), 0 for weights as wanted."""
        return bias * max(0.0, 1 - bias / self._max_bias) if self._max_bias > 0 else 0.0

    def _choose_shape(self, sizes: Floats, observed: float, squares: float) -> None:
        """Set the gaps at κ = 1 and the uncertainty of their shape.

        Args:
            sizes: of the observed gaps, shape (N,).
            observed: Σ |ŵ_n − a_n|.
            squares: the estimate of Σ δ_n².
        """
        shapes = [self._of_power(sizes, power) for power in _POWERS]
        scores = ((1 - _POWERS) / _POWER_PRIOR_SD) ** 2
        for number, gaps in enumerate(shapes):
            mean, deviation, _ = self._moments(gaps * _scale_to(gaps, squares))
            scores[number] += ((observed - mean) / deviation) ** 2
        likelihood = np.exp((scores.min() - scores) / 2)
        likelihood /= likelihood.sum()
        self._gaps = self._of_power(sizes, float((likelihood * _POWERS).sum()))
        kappa = _scale_to(self._gaps, squares)
        means = np.array([self._moments(kappa * gaps)[0] for gaps in shapes])
        mean = self.moments(kappa)[0]
        uncertain = self._uncertain_bias(mean - kappa * self.size)
        apart = math.sqrt(float((likelihood * (means - mean) ** 2).sum()))
        self._spread = _MIN_SHAPE_SPREAD
        if uncertain > _MIN_DEVIATION * self.size:
            self._spread = max(_MIN_SHAPE_SPREAD, apart / uncertain)

    def _of_power(self, sizes: Floats, power: float) -> Floats:
        """Return gaps of this shape whose absolute values sum to `self.size`."""
        shape: Floats = sizes**power
        return self._signs * shape * (self.size / float(shape.sum()))

    def _centre(self, slopes: Floats) -> Floats:
        """Return ψ_n − Σ ψ_m w_m; since the weights sum to 1, a common slope has no noise."""
        return slopes - float((slopes * self._weights).sum())  # `@` would start BLAS threads


def _scale_to(gaps: Floats, squares: float) -> float:
    """Return the κ at which the squares of κ `gaps` sum to `squares`."""
    return math.sqrt(squares / float((gaps**2).sum()))


def _gamma_to_normal(value: float, skewness: float) -> float:
    """Return the normal quantile that corresponds to a value of a gamma distribution.

    Both distributions have mean 0 and variance 1. At −0.4 of an exponential distribution the exact
    value is −0.12.

    >>> _gamma_to_normal(1.5, 0.0), round(_gamma_to_normal(-0.4, 2.0), 2)
    (1.5, -0.14)
    """
    if skewness < 1e-6:
        return value
    return 6 / skewness * (math.cbrt(max(0.0, 1 + skewness * value / 2)) - 1) + skewness / 6


def _p_value(value: float, expected: float) -> float:
    """Return the p-value of the likelihood-ratio test for a normal with a mean of at least 0.

    Args:
        value: the outcome.
        expected: its mean under the hypothesis, >= 0.

    >>> round(_p_value(1.645, 0.0), 3), round(_p_value(8.0, 9.96), 3), _p_value(-1.0, 0.0)
    (0.05, 0.05, 1.0)
    """
    square = (value - expected) ** 2 - (value**2 if value < 0 else 0.0)
    distance = float(np.sqrt(max(square, 0.0)))
    below = expected - distance
    if below < 0:  # below 0, the best mean is 0, so the same ratio lies further out
        below = (expected**2 - square) / (2 * expected) if expected > 0 else -np.inf
    tails = float(normal_sf(distance)) + float(normal_sf(expected - below))
    return 1.0 if distance == 0 else tails


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return where a condition that holds at `low` stops holding before `high`."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def _find_upper(holds: Callable[[float], bool], low: float = 0.0) -> float:
    """Return a κ above `low` at which the condition does not hold."""
    kappa = max(2 * low, 1.0)
    while holds(kappa) and kappa < 1e6:
        kappa *= 2
    return kappa


def _fold_normal(center: Floats, error: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the mean of |X|, its derivative in the mean of X, and its third central moment."""
    ratio = np.divide(center, error, out=np.sign(center) * 40.0, where=error > 0)
    square = ratio**2
    density = np.exp(-square / 2) * np.sqrt(2 / np.pi)
    slope = 2 * special.ndtr(ratio) - 1
    mean = error * density + center * slope
    raw = error**3 * ((2 + square) * density + (square + 3) * ratio * slope)
    third = raw - 3 * mean * (error**2 + center**2) + 2 * mean**3
    return mean, slope, np.where(square < 400, np.maximum(third, 0), 0)  # 0: cancellation
