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
_OUTCOMES, _ATOMS = 256, 64
"""The likelihood of a shape uses this many quantiles of the observed and of the true gaps."""
_MIN_SHAPE_SPREAD = 0.1
"""Minimum uncertainty of the bias of X due to the shape: the true one may be none of these."""
_SPARSE = 0.5
"""Below this many wanted visits, their number is too discrete for a normal distribution."""
_PRECISION, _MAX_STEPS = 4e-6, 40
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
        observed: Σ |ŵ_n − a_n| of this log, which has no sampling error.
        corrected: an estimate for the underlying process, and so for the next run if participation
            stays alike: without the bias due to noise. The one to show first.
        interval: 95% interval for Σ |w_n − a_n| of the underlying process.
        doubtful: whether participation may have memory longer than the log, so that the interval
            may be too narrow for a verdict.
    """

    observed: float
    corrected: float
    interval: tuple[float, float]
    doubtful: bool = False

    @classmethod
    def without_interval(cls, weights: Floats, wanted: Floats) -> SkewEstimate:
        """Return the observed L1 skew alone; the rest is NaN."""
        return cls(float(np.abs(weights - wanted).sum()), math.nan, (math.nan, math.nan))


def estimate_skew(
    weights: Floats,
    wanted: Floats,
    errors: Errors,
    variance: Variance,
    uncertainty: float = 0.0,
) -> SkewEstimate:
    """Return the L1 skew of these weights, between 0 and 2, with a confidence interval.

    Noise inflates absolute values: even equal weights look unequal in a log. The interval therefore
    inverts a test. The hypotheses are gaps of one shape and any size κ >= 0, δ_n(κ) = κ δ_n. The
    shape is an average of

        |δ_n| ∝ ((ŵ_n − a_n)² + s_n² / 10)^(b/2),    0 <= b <= 1,    Σ δ_n² = Σ (ŵ_n − a_n)² − s_n²

    and of variants in which gaps above some number of standard errors keep their own size, each
    weighted by the likelihood of the observed gaps and by a prior centred at b = 1.

    With s_n the standard error of weights a_n + δ_n and e_n the noise, X = Σ |δ_n + e_n| has the
    mean of folded normals. Since

        |δ_n + e| = mean + (2 Φ(δ_n / s_n) − 1) e + remainder

    its variance is that of Σ (2 Φ − 1) e_n, including the dependence between rounds and clients,
    plus that of the remainders.

    A client expected to come fewer than 0.5 times at its wanted weight a_n is mostly absent by
    chance, and its weight is not normally distributed. With u_n = s_n² / w_n the weight of one
    visit, its number K of visits is Poisson with mean λ = w_n / u_n, where c = a_n / u_n is wanted:

        E |K − c| = λ − c + 2 c exp(−λ),    slope 1 − 2 c exp(−λ)
        variance of the remainder 4 c² exp(−λ) (1 − (1 + λ) exp(−λ))                   for c < 1

    The bias B, the excess of the mean over Σ |δ_n|, also depends on
    the shape: noise makes gaps less alike. It adds r B (1 − B / B(0)) to the standard deviation of
    X, with r the relative spread of B between the shapes, at least 0.1.

    `corrected` is Σ |δ_n(κ)| at the κ whose mean equals the observed X. The interval consists of
    the hypotheses that the test does not reject. X has no mean below that at κ = 0, and outcomes
    are ordered by likelihood ratio, so the interval is one-sided there (Feldman and Cousins 1998).

    Args:
        weights: ŵ_n, shape (N,).
        wanted: a_n, (N,).
        errors: s_n as a function of the weights.
        variance: of linear combinations of the ŵ_n, dependence included.
        uncertainty: the relative standard deviation of s_n due to a common error.
    """
    family = _HypothesisFamily(weights, wanted, errors, variance, uncertainty)
    observed = float(np.abs(weights - wanted).sum())
    if family.size == 0 or family.moments(1.0)[1] <= _MIN_DEVIATION * family.size:
        return SkewEstimate(observed, observed, (observed, observed))
    start = family.moments(0.0)[0]

    def find_acceptance(kappa: float) -> float:
        """Return log(p-value / level): positive if accepted."""
        mean, deviation = family.moments(kappa)
        expected = max(0.0, mean - start) / deviation
        p_value = _p_value(expected + (observed - mean) / deviation, expected)
        return math.log(max(p_value, 1e-300) / _LEVEL)

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

    Attributes:
        size: Σ |δ_n| at κ = 1.
    """

    def __init__(
        self,
        weights: Floats,
        wanted: Floats,
        errors: Errors,
        variance: Variance,
        uncertainty: float,
    ) -> None:
        self._weights, self._wanted, self._errors = weights, wanted, errors
        self._uncertainty = uncertainty
        noise = errors(weights)
        gaps = weights - wanted
        gaps[np.abs(gaps) < _ROUNDING * wanted] = 0.0
        as_wanted = errors(wanted)
        self._units = as_wanted**2 / np.maximum(wanted, 1e-300)
        self._sparse = (wanted > 0) & (wanted < _SPARSE * self._units)
        self._most_bias = float(self._fold(np.zeros_like(gaps), as_wanted)[0].sum())
        slopes = self._centre(_fold_normal(gaps, noise)[1])
        independent = float((slopes**2 * noise**2).sum())
        # The variance inflation by dependence is similar for all κ, and takes a pass to compute.
        self._inflation = variance(slopes) / independent if independent > 0 else 1.0
        self._gaps, self._spread = gaps, _MIN_SHAPE_SPREAD
        if noise.any() or independent > 0:
            # A client that never came has no noise of its own.
            self._average_shapes(gaps, np.maximum(noise, _MIN_NOISE * as_wanted))
        self.size = float(np.abs(self._gaps).sum())

    def gaps(self, kappa: float) -> Floats:
        """Return δ(κ), shape (N,); clients with few visits lose what the others gain."""
        gaps = kappa * self._gaps
        if (losing := self._sparse & (gaps < 0)).any():
            gaps[losing] = np.maximum(gaps[losing], -self._wanted[losing])
            rest = self._wanted[losing] + gaps[losing]
            gained, most = float(gaps.sum()), float(rest.sum())
            if gained > 0 and most > 0:
                gaps[losing] -= min(1.0, gained / most) * rest
        return gaps

    def moments(self, kappa: float) -> tuple[float, float]:
        """Return the mean and standard deviation of X."""
        gaps = self.gaps(kappa)
        errors = self._errors(np.clip(self._wanted + gaps, 0, 1))
        folded, slope, remainders = self._fold(gaps, errors)
        remainder = remainders.sum()
        linear = (self._centre(slope) ** 2 * errors**2).sum() * self._inflation
        biases = folded - np.abs(gaps)
        bias = float(biases.sum())
        shape = self._spread * self._uncertain_bias(bias)
        # Of few visits, the chance of absence hardly depends on the standard error.
        visits = 2 * (self._wanted + gaps) / np.maximum(self._units, 1e-300)
        sensitivity = np.where(self._sparse, np.clip(visits, 0, 1), 1.0)
        level = self._uncertainty * float((biases * sensitivity).sum())
        deviation = float(np.sqrt(linear + remainder + shape**2 + level**2))
        return float(folded.sum()), max(deviation, _MIN_DEVIATION * self.size)

    def _fold(self, gaps: Floats, errors: Floats) -> tuple[Floats, Floats, Floats]:
        """Return for each |δ_n + e_n| its mean, slope, and the remainder's variance."""
        folded, slope = _fold_normal(gaps, errors)
        squares = errors**2
        remainder = np.maximum(squares + gaps**2 - folded**2 - slope**2 * squares, 0)
        if (rare := self._sparse).any():
            unit, wanted = self._units[rare], self._wanted[rare]
            visits = np.maximum(wanted + gaps[rare], 0) / unit
            absent = np.exp(-visits)
            folded[rare] = visits * unit - wanted + 2 * wanted * absent
            slope[rare] = 1 - 2 * wanted / unit * absent
            remainder[rare] = 4 * wanted**2 * absent * (1 - (1 + visits) * absent)
        return folded, slope, remainder

    def _average_shapes(self, gaps: Floats, noise: Floats) -> None:
        """Set the gaps at κ = 1, (N,), and the relative uncertainty of B due to their shape.

        Gaps without noise are known exactly, and say nothing about the shape of the others.
        """
        noisy = noise > 0
        signs = np.where(gaps < 0, -1.0, 1.0)
        errors = np.maximum(noise[noisy], 1e-12 * float(noise.max()))
        shapes, posterior = _weigh_shapes(np.abs(gaps[noisy]), errors)
        biases = []
        for shape in (*shapes, posterior @ shapes):
            self._gaps = gaps.copy()
            self._gaps[noisy] = signs[noisy] * shape
            assumed = self._errors(np.clip(self._wanted + self._gaps, 0, 1))
            biases.append(float((self._fold(self._gaps, assumed)[0] - np.abs(self._gaps)).sum()))
        *own, bias = biases  # the last one is that of the average
        uncertain = self._uncertain_bias(bias)
        if uncertain > _MIN_DEVIATION * float(np.abs(self._gaps).sum()):
            spread = math.sqrt(float(posterior @ (np.array(own) - bias) ** 2)) / uncertain
            self._spread = max(_MIN_SHAPE_SPREAD, spread)

    def _uncertain_bias(self, bias: float) -> float:
        """Return B (1 − B / B(0)); 0 if all weights are as wanted."""
        return bias * max(0.0, 1 - bias / self._most_bias) if self._most_bias > 0 else 0.0

    def _centre(self, slopes: Floats) -> Floats:
        """Return ψ_n − Σ ψ_m w_m; since the weights sum to 1, a common slope has no noise."""
        return slopes - float((slopes * self._weights).sum())  # `@` would start BLAS threads


def _weigh_shapes(gaps: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """Return the likely sizes |δ_n|, shape (S, N), and their probabilities, (S,).

    Args:
        gaps: |ŵ_n − a_n|, (N,).
        noise: s_n > 0, (N,).
    """
    base = np.sqrt(gaps**2 + _NOISE_SHARE * noise**2)
    own = np.sqrt(np.maximum(gaps**2 - noise**2, 0))
    shapes, scores, before = [], [], -1
    for cut in _CUTS:
        apart = gaps > cut * noise
        count = int(np.count_nonzero(apart))
        if count == before or count > _MOST_APART * len(gaps):
            continue
        before = count
        least = _NOISE_SHARE * float((noise[~apart] ** 2).sum())
        squares = max(least, float((gaps[~apart] ** 2 - noise[~apart] ** 2).sum()))
        for power in _POWERS:
            shape = base**power
            shape *= math.sqrt(squares / float((shape[~apart] ** 2).sum()))
            shapes.append(np.where(apart, own, shape))
            prior = -(((1 - power) / _POWER_PRIOR_SD) ** 2) / 2
            scores.append(prior + _score(shapes[-1] / noise, gaps / noise))
    posterior = special.softmax(scores)
    likely = posterior > 1e-3
    return np.stack(shapes)[likely], posterior[likely] / posterior[likely].sum()


def _score(sizes: Floats, gaps: Floats) -> float:
    """Return the log-likelihood of gaps as draws from normal distributions around ± the sizes.

    All in standard errors; long lists are thinned to quantiles.
    """
    outcomes, centers = _thin(np.sort(gaps), _OUTCOMES), _thin(np.sort(sizes), _ATOMS)
    below, above = outcomes[:, None] - centers, outcomes[:, None] + centers
    density = (np.exp(-(below**2) / 2) + np.exp(-(above**2) / 2)).mean(axis=1)
    return len(gaps) / len(outcomes) * float(np.log(np.maximum(density, 1e-300)).sum())


def _thin(ordered: Floats, count: int) -> Floats:
    """Return at most `count` values, evenly spaced in an ordered list."""
    if len(ordered) <= count:
        return ordered
    return ordered[((np.arange(count) + 0.5) * len(ordered) / count).astype(np.int64)]


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


def _fold_normal(center: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Return the mean of |X|, and its derivative in the mean of X."""
    ratio = np.divide(center, error, out=np.sign(center) * 40.0, where=error > 0)
    slope = 2 * special.ndtr(ratio) - 1
    return error * np.exp(-(ratio**2) / 2) * np.sqrt(2 / np.pi) + center * slope, slope
