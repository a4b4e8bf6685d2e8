"""Sampling laws that privacy figures rest on, and whether a log contradicts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from fedtide.auditing.log.participation_log import Ints, ParticipationLog, find_gaps
from fedtide.auditing.statistics.distributions import chi2_sf, normal_two_sided
from fedtide.differential_privacy import Mechanism
from fedtide.errors import MissingExtraError
from fedtide.spec import AtLeast, Within, spec

_LEVEL = 0.01
"""The approximate probability that a law that was kept is called contradicted."""


@dataclass(frozen=True)
class LawCheck:
    """Whether a log agrees with a declared law; agreement is no proof of it.

    Args:
        contradictions: what contradicts it, one sentence each.
        p_value: the smallest p-value of the tests, corrected for their number; 0 if the law rules
            out what the log shows.
    """

    contradictions: tuple[str, ...]
    p_value: float


class SamplingLaw(ABC):
    """A declared law of who takes part in a round, independently of all other rounds."""

    @abstractmethod
    def check(self, log: ParticipationLog) -> LawCheck:
        """Return what in the log contradicts the law."""

    def declared_epsilon(self, mechanism: Mechanism, rounds: int) -> float | None:
        """Return the ε that the law promises for `rounds` rounds; None if no accountant gives it.

        It holds for observers of the models alone, who do not learn who took part, and counts every
        update with the largest weight.
        """
        return None


@spec
class PoissonSampling(SamplingLaw):
    """Every client takes part with probability q in every round, independently of everything.

    Three tests, each on both sides: participations of clients and sizes of cohorts vary as binomial
    numbers do (χ² with their exact variance), and a client's participation does not depend on the
    round before.

    Args:
        rate: q in (0, 1).

    Raises:
        InvalidInputError: a rate outside (0, 1).
    """

    rate: Annotated[float, Within(0, 1, "()")]

    def check(self, log: ParticipationLog) -> LawCheck:
        """Test the counts of clients, the cohort sizes and repetitions."""
        q, n, t = self.rate, log.size, log.length
        at_ends = int(log.cohorts[0] + log.cohorts[-1])
        repeats = _repetitions(log) - q * (2 * log.counts.sum() - at_ends) + n * (t - 1) * q**2
        p_values = {
            f"clients do not take part equally often, in {q:.3g} of the rounds": _test_binomial(
                log.counts, t, q
            ),
            f"cohorts do not vary as independent clients with rate {q:.3g} do": _test_binomial(
                log.cohorts, n, q
            ),
            "who takes part depends on the round before": normal_two_sided(
                repeats / np.sqrt(n * (t - 1)) / (q * (1 - q))
            ),
        }
        return _judge(p_values)

    def declared_epsilon(self, mechanism: Mechanism, rounds: int) -> float | None:
        """Return ε by dp-accounting's privacy loss distributions, for independent noise.

        Losses are rounded up to steps of 1e-3.
        """
        if len(mechanism.coefficients) > 1 or mechanism.noise_multiplier == 0:
            return None
        try:
            import dp_accounting
            from dp_accounting import pld
        except ImportError:
            raise MissingExtraError("privacy", "privacy") from None
        event = dp_accounting.PoissonSampledDpEvent(
            self.rate, dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
        )
        accountant = pld.PLDAccountant(value_discretization_interval=1e-3).compose(event, rounds)
        return float(accountant.get_epsilon(mechanism.delta))


@spec
class FixedSizeSampling(SamplingLaw):
    """M clients in every round, uniformly without replacement, independently of other rounds.

    Every cohort must have M clients. Two tests, each on both sides: the participations of clients
    vary as such sampling makes them (χ²), and consecutive cohorts overlap as independent ones do
    (hypergeometric).

    Args:
        size: M >= 1.

    Raises:
        InvalidInputError: a size below 1.
    """

    size: Annotated[int, AtLeast(1)]

    def check(self, log: ParticipationLog) -> LawCheck:
        """Check the cohort sizes; test the counts of clients and the overlaps."""
        n, t, m = log.size, log.length, self.size
        wrong = int((log.cohorts != m).sum())
        if wrong:
            low, high = int(log.cohorts.min()), int(log.cohorts.max())
            text = (
                f"in {wrong:,} of {t:,} rounds the number of clients is not {m}; it ranges from "
                f"{low} to {high}"
            )
            return LawCheck((text,), 0.0)
        if m == n:
            return LawCheck((), 1.0)
        q = m / n
        variance = q * (1 - q)
        spread = float(((log.counts - t * q) ** 2).sum()) / (t * variance) * (n - 1) / n
        overlap = m * variance * (n - m) / (n - 1) * (t - 1)
        p_values = {
            "clients do not take part equally often": _both_sides(chi2_sf(spread, n - 1)),
            "who takes part depends on the round before": normal_two_sided(
                (_repetitions(log) - (t - 1) * m * q) / np.sqrt(overlap)
            ),
        }
        return _judge(p_values)


SAMPLING_LAWS: dict[str, type[SamplingLaw]] = {
    "poisson": PoissonSampling,
    "fixed-size": FixedSizeSampling,
}
"""The laws by the `type` that names them in files."""


def _judge(p_values: dict[str, float]) -> LawCheck:
    """Return the check, with p-values multiplied by their number (Bonferroni)."""
    corrected = {text: min(1.0, len(p_values) * p) for text, p in p_values.items()}
    found = tuple(f"{text} (p = {p:.2g})" for text, p in corrected.items() if p < _LEVEL)
    return LawCheck(found, min(corrected.values()))


def _repetitions(log: ParticipationLog) -> int:
    """Return how often a client takes part in two consecutive rounds."""
    return sum(
        int(np.count_nonzero(find_gaps(log.rounds[entries], starts) == 1))
        for _, entries, starts in log.iter_client_chunks()
    )


def _test_binomial(numbers: Ints, trials: int, rate: float) -> float:
    """Return the p-value of Σ (x - mean)² / Var x for independent binomial numbers x.

    The sum has as many terms as its mean and, by the fourth moment of the binomial law, the
    variance terms · (2 + (1 - 6 q (1 - q)) / Var x); a multiple of χ² with both is compared.

    Args:
        numbers: x.
        trials: of each.
        rate: q.
    """
    variance = rate * (1 - rate)
    expected, terms = trials * variance, len(numbers)
    statistic = float(((numbers - trials * rate) ** 2).sum()) / expected
    spread = terms * (2 + (1 - 6 * variance) / expected)
    scale, freedom = spread / (2 * terms), 2 * terms**2 / spread
    return _both_sides(chi2_sf(statistic / scale, freedom))


def _both_sides(above: ArrayLike) -> float:
    return float(2 * np.minimum(above, 1 - np.asarray(above)))
