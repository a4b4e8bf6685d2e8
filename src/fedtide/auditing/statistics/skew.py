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
_MIN_NOISE = 0.1
"""Minimum standard error, relative to that of the wanted weight, in judging the shape."""
_POWERS = np.linspace(1.0, 0.0, 6)
"""Shapes of the true gaps, as powers of the observed ones: 1 is as uneven, 0 all alike."""
_POWER_PRIOR_SD = 0.7
"""Prior standard deviation of 1 − power."""
_CUTS = (np.inf, 4.5, 3.0, 2.0)
"""Gaps larger than this many standard errors may be those of a few outlying clients."""
_MOST_APART = 0.3
"""The largest share of the clients that counts as few."""
_MIN_SHAPE_SPREAD = 0.1
"""Minimum uncertainty of the bias of X due to the shape: the true one may be none of these."""
_OUTCOMES, _ATOMS = 256, 64
"""The likelihood of a shape uses this many quantiles of the observed and of the true gaps."""
_PRECISION, _MAX_STEPS = 4e-6, 40
_SPARSE = 0.5
"""Below this many wanted visits, their number is too discrete for a normal distribution."""
_ROUNDING = 1e-12
"""Gaps below this share of the wanted weight are rounding errors of 0, whose signs mean nothing."""
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
    weights: Floats,
    wanted: Floats,
    errors: Errors,
    variance: Variance,
    uncertainty: Floats | float = 0.0,
) -> SkewEstimate:
    """Return the L1 skew of these weights, between 0 and 2, with a confidence interval.

    Noise inflates absolute values: even equal weights look unequal in a log. The interval therefore
    inverts a test. The hypotheses are gaps of one shape and any size κ >= 0, δ_n(κ) = κ δ_n.

    With s_n the standard error of weights a_n + δ_n and e_n the noise, X = Σ |δ_n + e_n| has the
    mean of folded normals. Since

        |δ_n + e| = mean + (2 Φ(δ_n / s_n) − 1) e + remainder

    its variance is that of Σ (2 Φ − 1) e_n, including the dependence between rounds and clients,
    plus that of the remainders. X is skewed to the right by the third cumulants of folded normals;
    it is transformed to a normal as if it were gamma-distributed (Wilson and Hilferty 1931), which
    matters for few clients.

    A client expected to come fewer than 0.5 times at its wanted weight a_n is mostly absent by
    chance, and its weight is not normally distributed. With u_n = s_n² / w_n the weight of one
    visit, its number K of visits is Poisson with mean λ = w_n / u_n, where c = a_n / u_n is wanted:

        E |K − c| = λ − c + 2 c exp(−λ),    slope 1 − 2 c exp(−λ)
        variance of the remainder 4 c² exp(−λ) (1 − (1 + λ) exp(−λ))                   for c < 1

    The bias B, the excess of the mean over Σ |δ_n|, also depends on the shape, which matters for
    many clients: noise makes gaps less alike, so two kinds of clients look like many kinds. The
    shape is an average of

        |δ_n| ∝ ((ŵ_n − a_n)² + s_n² / 10)^(b/2),    0 <= b <= 1

    scaled so that Σ δ_n² = Σ (ŵ_n − a_n)² − s_n², and of variants in which gaps above some number
    of standard errors keep their own size. Each is weighted by the likelihood of the observed gaps
    as draws from its gaps plus normal noise, and by a prior centred at b = 1. The remaining
    uncertainty of B adds r B (1 − B / B(0)) to the standard deviation of X, with r the relative
    spread of B between the shapes, at least 0.1.

    `corrected` is Σ |δ_n(κ)| at the κ whose mean equals the observed X. The interval consists of
    the hypotheses that the test does not reject. X has no mean below that at κ = 0, and outcomes
    are ordered by likelihood ratio, so the interval is one-sided there (Feldman and Cousins 1998).

    Args:
        weights: ŵ_n, shape (N,).
        wanted: a_n, (N,).
        errors: s_n as a function of the weights.
        variance: of linear combinations of the ŵ_n, dependence included.
        uncertainty: the relative standard deviation of s_n due to a common error, (N,).
    """
    family = _HypothesisFamily(weights, wanted, errors, variance, uncertainty)
    observed = float(np.abs(weights - wanted).sum())
    if family.size == 0 or family.moments(1.0)[1] <= _MIN_DEVIATION * family.size:
        return SkewEstimate(observed, observed, (observed, observed))
    start = family.moments(0.0)[0]

    def find_acceptance(kappa: float) -> float:
        """Return log(p-value / level): positive if accepted."""
        mean, deviation, skewness = family.moments(kappa)
        expected = max(0.0, mean - start) / deviation
        z = _gamma_to_normal((observed - mean) / deviation, skewness)
        return math.log(max(_p_value(expected + z, expected), 1e-300) / _LEVEL)

    def find_shortfall(kappa: float) -> float:
        return observed - family.moments(kappa)[0]

    middle = _find_root(find_shortfall, 0.0, _find_upper(find_shortfall))
    low = _find_root(lambda kappa: -find_acceptance(kappa), 0.0, middle)
    high = _find_root(find_acceptance, middle, _find_upper(find_acceptance, middle))
    sizes = [min(2.0, float(np.abs(family.gaps(kappa)).sum())) for kappa in (middle, low, high)]
    return SkewEstimate(observed, sizes[0], (sizes[1], sizes[2]))


class _HypothesisFamily:
    """The hypotheses δ(κ), and the distribution of X = Σ |δ_n + e_n| under each.

    Args:
        weights, wanted, errors, variance, uncertainty: as in `estimate_skew`.
    """

    def __init__(
        self,
        weights: Floats,
        wanted: Floats,
        errors: Errors,
        variance: Variance,
        uncertainty: Floats | float,
    ) -> None:
        self._weights, self._wanted, self._errors = weights, wanted, errors
        self._uncertainty = uncertainty
        noise = errors(weights)
        gaps = weights - wanted
        gaps[np.abs(gaps) < _ROUNDING * wanted] = 0.0
        self._signs = np.where(gaps < 0, -1.0, 1.0)
        as_wanted = errors(wanted)
        self._units = as_wanted**2 / np.maximum(wanted, 1e-300)
        self._sparse = (wanted > 0) & (wanted < _SPARSE * self._units)
        self._max_bias = float(self._fold(np.zeros_like(gaps), as_wanted)[0].sum())
        self._spread = 0.0  # until the shapes have been compared
        slopes = self._centre(_fold_normal(gaps, noise)[1])
        independent = float((slopes**2 * noise**2).sum())
        # The variance inflation by dependence is similar for all κ, and takes a pass to compute.
        self._inflation = variance(slopes) / independent if independent > 0 else 1.0
        self._sizes = np.abs(gaps)
        if independent > 0 or noise.any():
            # A client that never came has no noise of its own.
            self._choose_shape(np.abs(gaps), np.maximum(noise, _MIN_NOISE * errors(wanted)))
        self.size = float(self._sizes.sum())

    def gaps(self, kappa: float) -> Floats:
        """Return δ(κ), shape (N,); clients with few visits lose what the others gain."""
        gaps = kappa * self._signs * self._sizes
        if (losing := self._sparse & (self._signs < 0)).any():
            gaps[losing] = np.maximum(gaps[losing], -self._wanted[losing])
            rest = self._wanted[losing] + gaps[losing]
            gained = float(gaps.sum())
            if gained > 0 and (most := float(rest.sum())) > 0:
                gaps[losing] -= min(1.0, gained / most) * rest
        return gaps

    def moments(self, kappa: float) -> tuple[float, float, float]:
        """Return the mean, standard deviation and skewness of X."""
        gaps = self.gaps(kappa)
        errors = self._errors(np.clip(self._wanted + gaps, 0, 1))
        folded, slope, remainders, third = self._fold(gaps, errors)
        remainder = remainders.sum()
        linear = (self._centre(slope) ** 2 * errors**2).sum() * self._inflation
        mean = float(folded.sum())
        biases = folded - np.abs(gaps)
        bias = float(biases.sum())
        shape = self._spread * self._uncertain_bias(bias)
        level = float((self._uncertainty * biases * self._sensitivity(gaps)).sum())
        deviation = float(np.sqrt(linear + remainder + shape**2 + level**2))
        deviation = max(deviation, _MIN_DEVIATION * self.size)
        return mean, deviation, float(third.sum()) / deviation**3

    def _fold(self, gaps: Floats, errors: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return for each |δ_n + e_n| its mean, slope, remainder's variance and third moment."""
        folded, slope, third = _fold_normal(gaps, errors)
        squares = errors**2
        remainder = np.maximum(squares + gaps**2 - folded**2 - slope**2 * squares, 0)
        if (rare := self._sparse).any():
            unit, wanted = self._units[rare], self._wanted[rare]
            visits = np.maximum(wanted + gaps[rare], 0) / unit
            absent = np.exp(-visits)
            folded[rare] = visits * unit - wanted + 2 * wanted * absent
            slope[rare] = 1 - 2 * wanted / unit * absent
            remainder[rare] = 4 * wanted**2 * absent * (1 - (1 + visits) * absent)
            third[rare] = 0.0
        return folded, slope, remainder, third

    def _sensitivity(self, gaps: Floats) -> Floats:
        """Return by how many percent the biases grow if the standard errors grow by 1%, (N,).

        One for normal weights; 2 λ for few visits, as the chance of absence hardly changes.
        """
        visits = (self._wanted + gaps) / np.maximum(self._units, 1e-300)
        return np.where(self._sparse, np.clip(2 * visits, 0, 1), 1.0)

    def _uncertain_bias(self, bias: float) -> float:
        """Return B (1 − B / B(0)); 0 if all weights are as wanted."""
        return bias * max(0.0, 1 - bias / self._max_bias) if self._max_bias > 0 else 0.0

    def _choose_shape(self, gaps: Floats, noise: Floats) -> None:
        """Set the sizes of the gaps at κ = 1 and the uncertainty of their shape.

        Gaps without noise are known exactly, and say nothing about the shape of the others.

        Args:
            gaps: |ŵ_n − a_n|, shape (N,).
            noise: s_n, (N,).
        """
        noisy = noise > 0
        observed, errors = gaps[noisy], np.maximum(noise[noisy], 1e-12 * float(noise.max()))
        shapes = _list_shapes(observed, errors)
        scores = np.array([shape.score(observed, errors) for shape in shapes])
        posterior = np.exp(scores - scores.max())
        posterior /= posterior.sum()
        likely = []
        for share, shape in zip(posterior, shapes, strict=True):
            if share > 1e-3:
                sizes = gaps.copy()
                sizes[noisy] = shape.sizes
                likely.append((share, sizes))
        self._sizes = np.sum([share * sizes for share, sizes in likely], axis=0)
        bias = self._bias(self._sizes)
        square = sum(share * (self._bias(sizes) - bias) ** 2 for share, sizes in likely)
        uncertain = self._uncertain_bias(bias)
        self._spread = _MIN_SHAPE_SPREAD
        if uncertain > _MIN_DEVIATION * float(self._sizes.sum()):
            self._spread = max(_MIN_SHAPE_SPREAD, math.sqrt(square) / uncertain)

    def _bias(self, sizes: Floats) -> float:
        """Return B for gaps of these sizes."""
        errors = self._errors(np.clip(self._wanted + self._signs * sizes, 0, 1))
        return float((self._fold(self._signs * sizes, errors)[0] - sizes).sum())

    def _centre(self, slopes: Floats) -> Floats:
        """Return ψ_n − Σ ψ_m w_m; since the weights sum to 1, a common slope has no noise."""
        return slopes - float((slopes * self._weights).sum())  # `@` would start BLAS threads


@dataclass(frozen=True, eq=False)
class _Shape:
    """A hypothesis on the sizes of the gaps.

    Args:
        sizes: |δ_n|, shape (N,).
        prior: the logarithm of its prior probability, up to a constant.
    """

    sizes: Floats
    prior: float

    def score(self, gaps: Floats, noise: Floats) -> float:
        """Return the logarithm of prior times likelihood, up to a constant.

        The gaps are treated as draws from a mixture of normal distributions centred at ± the sizes,
        in standard errors; long lists are thinned to quantiles.
        """
        outcomes = _thin(np.sort(gaps / noise), _OUTCOMES)
        centers = _thin(np.sort(self.sizes / noise), _ATOMS)
        below, above = outcomes[:, None] - centers, outcomes[:, None] + centers
        density = (np.exp(-(below**2) / 2) + np.exp(-(above**2) / 2)).mean(axis=1)
        share = len(gaps) / len(outcomes)
        return self.prior + share * float(np.log(np.maximum(density, 1e-300)).sum())


def _list_shapes(gaps: Floats, noise: Floats) -> list[_Shape]:
    """Return the hypotheses on the sizes, without duplicates."""
    shapes: list[_Shape] = []
    sizes = np.sqrt(gaps**2 + _NOISE_SHARE * noise**2)
    own = np.sqrt(np.maximum(gaps**2 - noise**2, 0))
    before = -1
    for cut in _CUTS:
        apart = gaps > cut * noise
        count = int(np.count_nonzero(apart))
        if count == before or count > _MOST_APART * len(gaps):
            continue
        before = count
        least = _NOISE_SHARE * float((noise[~apart] ** 2).sum())
        squares = max(least, float((gaps[~apart] ** 2 - noise[~apart] ** 2).sum()))
        for power in _POWERS:
            shape = sizes**power
            shape *= math.sqrt(squares / float((shape[~apart] ** 2).sum()))
            prior = -(((1 - power) / _POWER_PRIOR_SD) ** 2) / 2
            shapes.append(_Shape(np.where(apart, own, shape), prior))
    return shapes


def _thin(ordered: Floats, count: int) -> Floats:
    """Return at most `count` values, evenly spaced in an ordered list."""
    if len(ordered) <= count:
        return ordered
    return ordered[((np.arange(count) + 0.5) * len(ordered) / count).astype(np.int64)]


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


def _find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function that is positive at `low` falls to 0 before `high`.

    Returns `low` if it is not positive there, and `high` if it is still positive there. False
    position; the value at an end that stays for a second time is halved (Illinois), and every
    fourth step is a bisection.

    >>> round(_find_root(lambda x: 2 - x**3, 0.0, 4.0), 5)
    1.25992
    """
    above, below = function(low), function(high)
    if above <= 0:
        return low
    if below > 0:
        return high
    width = _PRECISION * (high - low)
    kept = 0
    for step in range(_MAX_STEPS):
        if high - low <= width:
            break
        middle = low + (high - low) * above / (above - below)
        if step % 4 == 3 or not low < middle < high:
            middle = (low + high) / 2
        value = function(middle)
        if value > 0:
            low, above, below = middle, value, below / 2 if kept > 0 else below
            kept = 1
        else:
            high, below, above = middle, value, above / 2 if kept < 0 else above
            kept = -1
        if abs(value) < _PRECISION:
            return middle
    return (low + high) / 2


def _find_upper(function: Callable[[float], float], low: float = 0.0) -> float:
    """Return a κ above `low` at which the function is not positive, or at least 10⁶.

    The steps begin small, because the function may be positive again farther out: hypotheses whose
    weights would be negative have no noise left, and with it no power.

    >>> _find_upper(lambda kappa: 1.2 - kappa if kappa < 2 else 1.0, 1.0)
    1.25
    """
    step = 0.1 * max(low, 1.0)
    kappa = low + step
    while function(kappa) > 0 and kappa < 1e6:
        step *= 1.5
        kappa += step
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
