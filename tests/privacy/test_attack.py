"""A membership attack by likelihood ratio: what it achieves stays below the stated ε."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedtide.algorithms import ClientUpdates, Cohort, FedAU, RoundDriver
from fedtide.population import Population
from fedtide.privacy import Gaussian, MatrixFactorisation, make_private, spent

from .rounds import banded_root, omega
from .test_spent import log_of

TRIALS, ROUNDS, CUTOFF, CLIP, LR = 200, 6, 3, 1.0, 0.5
TARGETS = (0.0, 10.0)
"""F_n(x) = (x - e_n)² / 2; the updates of client 1 are longer than the clipping norm."""
PRESENT = np.array([[True, t % 3 == 2] for t in range(ROUNDS)])
WEIGHTS = np.array([omega(PRESENT[:, n], CUTOFF) * PRESENT[:, n] for n in range(2)]).T / 2
"""FedAU's ω / N by round and client, 0 for absent ones."""


def update(n: int, x: float) -> float:
    """Return the clipped Δ_n of one local step from x."""
    return float(np.clip(LR * (TARGETS[n] - x), -CLIP, CLIP))


def transcript(mechanism, member: bool, seed: int) -> np.ndarray:
    """Return x_0, ..., x_T of a run with the member, or with zeros in place of its updates."""
    private = make_private(FedAU(cutoff=CUTOFF), mechanism, seed)
    driver = RoundDriver(private, torch.zeros(1, dtype=torch.float64), Population(2))

    def train(instructions, cohort):
        x = float(instructions.model)
        rows = [[LR * (TARGETS[n] - x) * (member or n == 0)] for n in cohort.clients.tolist()]
        ones = torch.ones(len(rows))
        deltas = torch.tensor(rows, dtype=torch.float64)
        return ClientUpdates(cohort.clients, cohort.weights, deltas, LR, ones)

    models = [0.0]
    for row in PRESENT:
        driver.run(Cohort.uniform(torch.from_numpy(np.flatnonzero(row))), LR, train)
        models.append(float(driver.state.model))
    return np.array(models)


def log_ratio(models: np.ndarray, mechanism, claimed: float) -> float:
    """Return log P(models | member) / P(models | not), for an attacker who knows all but that.

    The noise is undone by C, and has the claimed deviation.
    """
    C = banded_root(len(mechanism.coefficients), ROUNDS)
    starts, steps = models[:-1], np.diff(models)
    known = WEIGHTS[:, 0] * [update(0, x) for x in starts]
    hers = C @ (WEIGHTS[:, 1] * [update(1, x) for x in starts])
    seen = C @ (steps - known)
    return float((seen * hers - hers**2 / 2).sum() / claimed**2)


def attacked(mechanism, claimed) -> np.ndarray:
    """Return the log ratios of runs without and with the member, (2, TRIALS)."""
    distinct = TRIALS if mechanism.noise_multiplier else 1  # without noise all runs are alike
    scores = [
        [
            log_ratio(transcript(mechanism, member, 1000 * member + i), mechanism, claimed)
            for i in range(distinct)
        ]
        for member in (False, True)
    ]
    return np.repeat(scores, TRIALS // distinct, axis=1)


def proven_epsilon(scores: np.ndarray, delta: float, error: float = 1e-4) -> float:
    """Return an ε below which the mechanism is not (ε, δ)-private, but for an error probability.

    The best threshold is found on one half of the runs; on the other half, the rates have
    Clopper-Pearson bounds. Either world may be the one that is guessed.
    """
    first, second = scores[:, ::2], scores[:, 1::2]
    n, best = second.shape[1], 0.0

    def bound(sample, threshold, above):
        none, member = ((one > threshold) == above for one in sample)
        hits, alarms = (member, none) if above else (none, member)
        power = stats.beta.ppf(error / 4, hits.sum(), n - hits.sum() + 1) if hits.any() else 0.0
        false = stats.beta.ppf(1 - error / 4, alarms.sum() + 1, n - alarms.sum())
        return math.log(max(power - delta, 1e-12) / false)

    for above in (True, False):
        threshold = max(np.unique(first), key=lambda t, a=above: bound(first, t, a))
        best = max(best, bound(second, threshold, above))
    return best


@pytest.mark.statistical
def test_no_attack_proves_more_than_the_stated_epsilon():
    """A correct program fails with probability 1e-4 + 2e-6 at most."""
    pytest.importorskip("dp_accounting")
    z, delta = 2.0, 1e-3
    mechanism = MatrixFactorisation(CLIP, z, delta, min_separation=3)
    found = spent(log_of(PRESENT), mechanism, FedAU(cutoff=CUTOFF), horizon=ROUNDS)
    stated, loss = found.clients["epsilon"][1], found.losses[1]
    claimed = z * CUTOFF * CLIP / 2
    scores = attacked(mechanism, claimed)
    assert proven_epsilon(scores, delta) <= stated
    # It is as strong as the stated loss μ² allows: N(-μ²/2, μ²) without the member, N(μ²/2, μ²).
    for sample, mean in zip(scores, (-loss / 2, loss / 2), strict=True):
        assert stats.kstest((sample - mean) / loss**0.5, "norm").pvalue > 1e-6
    # With the noise off, what is stated would be false, and the attack shows it.
    silent = MatrixFactorisation(CLIP, 0.0, delta, min_separation=3)
    assert proven_epsilon(attacked(silent, claimed), delta) > stated


def test_the_attack_finds_noise_that_is_an_eighth_of_what_was_claimed():
    pytest.importorskip("dp_accounting")
    draws = np.random.default_rng(0)
    stated = Gaussian(1.0, 2.0, 1e-3).epsilon(0.25)
    for deviation, found in ((2.0, False), (0.25, True)):
        scores = np.stack([draws.normal(0, deviation, 400), draws.normal(1, deviation, 400)])
        assert (proven_epsilon(scores, 1e-3) > stated) == found
