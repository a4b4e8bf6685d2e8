"""Mechanisms of client-level differential privacy: how much noise, and how it is correlated.

Every mechanism here adds the rows of L⁻¹ Z to the rounds' sums, where Z has independent Gaussian
entries and L is a lower triangular Toeplitz matrix with the coefficients c_0, ..., c_{b-1} in its
first column, ‖c‖ = 1. Independent noise is b = 1.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.differential_privacy.accounting import epsilon_of_loss, loss_of_epsilon
from fedtide.errors import InvalidInputError
from fedtide.spec import AtLeast, Positive, Within, spec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Mechanism(ABC):
    """Clipping and noise for the weighted sums of a method; see `Gaussian`.

    Args:
        clip: C, the largest Euclidean norm of an update, in units of the parameters.
        noise_multiplier: z, the noise relative to what one update can change.
        delta: δ, for which ε is stated.
        budget: the ε that a client may spend; None: no limit.
        quantile: γ, the share of the updates that clipping should not change; None: C is fixed.
        clip_rate: η_C, how fast C follows the quantile.
        count_noise: σ_b, the noise on the count that C follows; None: 5 z.
    """

    clip: Annotated[float, Positive]
    noise_multiplier: Annotated[float, AtLeast(0)]
    delta: Annotated[float, Within(0, 1, "()", "give less than 1 / N, such as 1e-5")]
    budget: Annotated[float, Positive] | None = field(default=None, kw_only=True)
    quantile: Annotated[float, Within(0, 1, "()", "0.5 is usual, None keeps clip")] | None = field(
        default=None, kw_only=True
    )
    clip_rate: Annotated[float, Within(0, 1, "(]", "0.2 is usual")] = field(
        default=0.2, kw_only=True
    )
    count_noise: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.budget is not None and self.noise_multiplier == 0:
            raise InvalidInputError("budget: without noise no budget can be kept; leave it out")
        if self.count_noise is None:
            return
        if self.quantile is None:
            raise InvalidInputError(
                "count_noise: only a clipping norm that follows a quantile counts updates; give "
                "quantile, too"
            )
        if not self.count_noise > self.noise_multiplier:
            raise InvalidInputError(
                f"count_noise: {self.count_noise:g} is not above noise_multiplier, "
                f"{self.noise_multiplier:g}, which leaves no noise_multiplier for the sum; give "
                f"{5 * self.noise_multiplier:g}, say"
            )

    @property
    def separation(self) -> int:
        """The least number of rounds from a client's participation to its next."""
        return 1

    @property
    def participations(self) -> int | None:
        """How often a client may take part; None: no limit."""
        return None

    @cached_property
    def coefficients(self) -> Floats:
        """c, the first column of L, shape (b,), of norm 1."""
        return np.ones(1)

    @cached_property
    def noise_on_count(self) -> float:
        """σ_b, the deviation of the noise on the count that C follows, relative to A."""
        return 5 * self.noise_multiplier if self.count_noise is None else self.count_noise

    @cached_property
    def noise_on_sum(self) -> float:
        """z_Δ, the deviation of the noise on the sum relative to A C; z if C is fixed."""
        z = self.noise_multiplier
        if self.quantile is None or z == 0:
            return z
        return z / math.sqrt(1 - (z / self.noise_on_count) ** 2)

    def loss(self, rounds: Ints, weights: Floats, horizon: int | None = None) -> float:
        """Return μ², the loss of one client that took part in these rounds with these weights.

            μ² = Σ_{s, s'} u_s u_s' |X_ss'| / z²,        X = LᵀL

        It is exact if no entry of X is negative, as for the mechanisms here: updates that all point
        in the same direction then reach it. It is at most k / z² for k participations at least b
        rounds apart.

        Args:
            rounds: ascending, shape (k,).
            weights: u in [0, 1], the weight of each update relative to the largest one that the
                method can give, shape (k,).
            horizon: the number of rounds that are ever released; None: no end, an upper bound for
                any number.
        """
        same = np.zeros(len(rounds), dtype=np.int64)
        total = relative_losses(self.coefficients, same, rounds, weights, horizon)
        return float(total.sum()) / self.variance

    @property
    def variance(self) -> float:
        """z², as a divisor: the smallest positive number stands for no noise."""
        return max(self.noise_multiplier**2, 5e-324)

    def epsilon(self, loss: float) -> float:
        """Return the ε of a loss μ² at this mechanism's δ; ∞ without noise, unless nothing is lost.

        Raises:
            MissingExtraError: dp-accounting is not installed.
        """
        if self.noise_multiplier == 0:
            return math.inf if loss else 0.0
        return epsilon_of_loss(loss, self.delta)

    @cached_property
    def limit(self) -> float:
        """The loss μ² that the budget allows; ∞ without a budget."""
        return math.inf if self.budget is None else loss_of_epsilon(self.budget, self.delta)


@spec
class Gaussian(Mechanism):
    """Independent Gaussian noise in every round.

    With S_t the clients whose updates are used and a_t^n their weights, at most A,

        Σ_{n in S_t} a_t^n Δ_n · min(1, C / ‖Δ_n‖)  +  N(0, (z A C)² I)

    takes the place of the sum in the method's step. A is 1 for averages over all clients, K for
    FedAU, and max 1 / p_n for known rates. The noise is the same whichever and however few
    clients take part.

    A client with the weights a_t^n in the rounds T_n in which it took part has lost

        μ² = Σ_{t in T_n} (a_t^n / A)² / z²

    and ε is computed from μ² and δ. `docs/privacy.md` says what this protects against whom.

    With a quantile γ, C follows the norms of the updates (Andrew, Thakkar, McMahan, Ramaswamy,
    "Differentially Private Learning with Adaptive Clipping", 2021), here with the weights of the
    method, and paid for by the same z. With η and N of the method's step x ← x + η/N Σ a_t^n Δ_n,

        b_t = Σ_{n in S_t} a_t^n (1[‖Δ_n‖ > C_t] - (1 - γ))  +  N(0, (σ_b A)²)
        C_0 = clip,        C_{t+1} = C_t · exp(η_C η b_t / N)

    and the noise on the sum is z_Δ A C_t instead of z A C. An update with the weight a changes sum
    and count together by at most a / (z_Δ A) and a / (σ_b A) deviations of their noise, whose
    squares add up to (a / A)² / z² if

        1 / (z_Δ)² + 1 / (σ_b)² = 1 / z²

    so μ² is as above. (Andrew et al. count ±1/2 for updates that are there or not, which changes
    by 1/2 and gives them (2 σ_b)²; here an update is replaced by zeros, and changes a count by 1.)

    Args:
        clip: C, the largest Euclidean norm of an update, in units of the parameters; with a
            quantile that of round 0.
        noise_multiplier: z; 0 clips without noise, for comparisons.
        delta: δ, for which ε is stated; less than 1 / N.
        budget: the ε that a client may spend at this δ: it is no longer asked to train when its
            next update could exceed it. None: no limit.
        quantile: γ in (0, 1), the share of the updates, counted with their weights, that clipping
            should not change; None: C is fixed.
        clip_rate: η_C in (0, 1], how fast C follows the quantile.
        count_noise: σ_b > z; None: 5 z, for which z_Δ is 1.02 z.

    Raises:
        InvalidInputError: a clip or budget that is not positive, a negative noise_multiplier, δ,
            quantile or clip_rate out of range, or count_noise without a quantile or at most z.

    >>> mechanism = Gaussian(clip=1.0, noise_multiplier=2.0, delta=1e-5)
    >>> mechanism.loss(np.array([0, 1, 7]), np.array([1.0, 1.0, 0.5]))
    0.5625
    """


@spec
class MatrixFactorisation(Mechanism):
    """Noise that cancels over the rounds (DP-FTRL): less of it in the model, for the same ε.

        Σ a_t^n Δ_n · min(1, C / ‖Δ_n‖)  +  z A C (L⁻¹ Z)_t,        Z_t ~ N(0, I)

    L is the banded square root of the matrix of prefix sums (C in Kalinin and Lampert, "Banded
    Square Root Matrix Factorization", 2024), of which b bands are kept and scaled to ‖c‖ = 1:

        c_j ∝ (2j)! / (j! 2^j)² ,        j = 0, ..., b - 1

    Noise is added in every round, even without updates; otherwise it would not cancel.

    Participations at least `min_separation` >= b rounds apart use columns of L that have no row in
    common. So k of them lose at most k / z², as with independent noise of the same z, for any
    updates, even if these and the participation depend on earlier models. A client is therefore not
    asked to train again too soon, nor more than `max_participations` times.

    Args:
        clip: C, the largest Euclidean norm of an update, in units of the parameters.
        noise_multiplier: z; 0 clips without noise, for comparisons.
        delta: δ, for which ε is stated; less than 1 / N.
        min_separation: the least number of rounds from a client's participation to its next; 2
            leaves one round between them. The selection `MinSeparation` with `rounds` one less
            fills its cohorts under this rule.
        max_participations: k, how often a client may take part; None: no limit.
        bands: b, at most `min_separation`; None: as many. The server keeps b - 1 rows of noise, of
            the size of the model.
        budget: as for `Gaussian`.
        quantile: as for `Gaussian`. The noise on the count is correlated in the same way, so that
            it nearly cancels in log C, too.
        clip_rate: as for `Gaussian`.
        count_noise: as for `Gaussian`.

    Raises:
        InvalidInputError: a value that `Gaussian` refuses, a number below 1, or more bands than
            `min_separation`.

    >>> mechanism = MatrixFactorisation(1.0, 2.0, 1e-5, min_separation=3, max_participations=2)
    >>> mechanism.coefficients.round(4)
    array([0.848, 0.424, 0.318])
    >>> [round(mechanism.loss(np.array(pair), np.ones(2)), 4) for pair in ([0, 3], [0, 1])]
    [0.5, 0.7472]
    """

    min_separation: Annotated[int, AtLeast(1)] = 1
    max_participations: Annotated[int, AtLeast(1)] | None = None
    bands: Annotated[int, AtLeast(1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bands is not None and self.bands > self.min_separation:
            raise InvalidInputError(
                f"bands: {self.bands} bands overlap for participations {self.min_separation} "
                f"rounds apart; give at most {self.min_separation}"
            )

    @property
    def separation(self) -> int:
        return self.min_separation

    @property
    def participations(self) -> int | None:
        return self.max_participations

    @cached_property
    def coefficients(self) -> Floats:
        j = np.arange(1, self.bands or self.min_separation)
        c = np.cumprod(np.concatenate([[1.0], (2 * j - 1) / (2 * j)]))
        return np.asarray(c / np.linalg.norm(c))


def require_mechanism(value: object) -> None:
    """Refuse anything that is not a mechanism, such as plain data or a class.

    Raises:
        InvalidInputError: it is not a mechanism.
    """
    if not isinstance(value, Mechanism):
        raise InvalidInputError(
            f"privacy: {value!r:.60} is not a mechanism; give one, such as "
            "fedtide.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-5)"
        )


MECHANISMS: dict[str, type[Mechanism]] = {
    "gaussian": Gaussian,
    "matrix-factorisation": MatrixFactorisation,
}
"""The mechanisms by the `type` that names them in experiment files."""


def relative_losses(
    coefficients: Floats,
    clients: Ints,
    rounds: Ints,
    weights: Floats,
    horizon: int | None = None,
) -> Floats:
    """Return Σ_{s, s'} u_s u_s' |X_ss'| with X = LᵀL of every client: its loss at z = 1, (N,).

    Args:
        coefficients: c, not negative, shape (b,).
        clients: the client of each participation, 0..N - 1, ascending, shape (E,).
        rounds: its round, ascending for each client, shape (E,).
        weights: u, shape (E,).
        horizon: the number of rows of L; None: no end.
    """
    bands = len(coefficients)
    rest = np.full(len(rounds), bands) if horizon is None else horizon - rounds
    total = np.zeros(int(clients[-1]) + 1 if len(clients) else 0)
    for back in range(len(rounds)):
        first, second = slice(0, len(rounds) - back), slice(back, None)
        gap = rounds[second] - rounds[first]
        near = np.flatnonzero((clients[second] == clients[first]) & (gap < bands))
        if not len(near):
            break
        pairs, where = np.unique(
            np.stack([gap[near], np.minimum(bands, rest[near])]), axis=1, return_inverse=True
        )
        overlaps = np.array([coefficients[g:e] @ coefficients[: e - g] for g, e in pairs.T])
        products = weights[near] * weights[near + back] * overlaps[where.ravel()]
        both = 1 if back == 0 else 2
        total += both * np.bincount(clients[near], weights=products, minlength=len(total))
    return total
