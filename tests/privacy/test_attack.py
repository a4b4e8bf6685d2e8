"""A membership attack by likelihood ratio: what it achieves stays below the stated ε."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tests.algorithms.references import algorithm_2

from fedtide.algorithms import ClientUpdates, Cohort, FedAU, FedAvg, RoundDriver
from fedtide.population import Population
from fedtide.privacy import Gaussian, MatrixFactorisation, make_private, spent

from .rounds import banded_root
from .test_spent import log_of

TRIALS, ROUNDS, CUTOFF, CLIP, LR = 200, 6, 3, 1.0, 0.5
TARGETS = (0.0, 10.0)
"""F_n(x) = (x - e_n)² / 2; the updates of client 1 are longer than the clipping norm."""
PRESENT = np.array([[True, t % 3 == 2] for t in range(ROUNDS)])
WEIGHTS = np.array([algorithm_2(row, CUTOFF)[:-1] * row for row in PRESENT.T]).T / 2
"""FedAU's ω / N by round and client, 0 for absent ones."""


def update(n: int, x: float, clip: float) -> float:
    """Return the clipped Δ_n of one local step from x."""
    return float(np.clip(LR * (TARGETS[n] - x), -clip, clip))


def is_long(n: int, x: float, clip: float) -> float:
    """Return 1 if Δ_n is longer than the norm, else 0."""
    return float(abs(LR * (TARGETS[n] - x)) > clip)


def transcript(mechanism, member: bool, seed: int) -> np.ndarray:
    """Return x_t and C_t of a run with the member, or with zeros in place of its updates."""
    private = make_private(FedAU(cutoff=CUTOFF), mechanism, seed)
    driver = RoundDriver(private, torch.zeros(1, dtype=torch.float64), Population(2))

    def train(instructions, cohort):
        x = float(instructions.model)
        rows = [[LR * (TARGETS[n] - x) * (member or n == 0)] for n in cohort.clients.tolist()]
        ones = torch.ones(len(rows))
        deltas = torch.tensor(rows, dtype=torch.float64)
        return ClientUpdates(cohort.clients, cohort.weights, deltas, LR, ones)

    released = [(0.0, CLIP)]
    for row in PRESENT:
        driver.run(Cohort.uniform(torch.from_numpy(np.flatnonzero(row))), LR, train)
        released.append((float(driver.state.model), driver.state.clip))
    return np.array(released)


def log_ratio(released: np.ndarray, mechanism, claimed: float) -> float:
    """Return log P(all released | member) / P(... | not), for an attacker who knows all but that.

    The noise is undone by C. That in the model has the claimed deviation, where C_t is 1.
    """
    C = banded_root(len(mechanism.coefficients), ROUNDS)
    before, steps = released[:-1], np.diff(released[:, 0])
    clips = before[:, 1]
    known = WEIGHTS[:, 0] * [update(0, *one) for one in before]
    hers = WEIGHTS[:, 1] * [update(1, *one) for one in before]
    pairs = [((steps - known) / clips, hers / clips, claimed)]
    if mechanism.quantile is not None:  # the steps of the norm tell more, in noise of their own
        counts = np.diff(np.log(released[:, 1])) / mechanism.clip_rate
        counts += WEIGHTS.sum(axis=1) * (1 - mechanism.quantile)
        known = WEIGHTS[:, 0] * [is_long(0, *one) for one in before]
        hers = WEIGHTS[:, 1] * [is_long(1, *one) for one in before]
        pairs.append((counts - known, hers, mechanism.count_noise * CUTOFF / 2))
    return sum(
        float(((C @ seen) * (C @ hers) - (C @ hers) ** 2 / 2).sum() / deviation**2)
        for seen, hers, deviation in pairs
    )


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
@pytest.mark.parametrize("count_noise", [None, 2.5])
def test_no_attack_proves_more_than_the_stated_epsilon(count_noise):
    """A correct program fails with probability 1e-4 + 2e-6 at most.

    With a quantile, the attacker sees the norms, too, and the member's updates are always longer.
    """
    pytest.importorskip("dp_accounting")
    z, delta = 2.0, 1e-3
    follows = {} if count_noise is None else {"quantile": 0.5, "clip_rate": 0.02}
    mechanism = MatrixFactorisation(
        CLIP, z, delta, min_separation=3, count_noise=count_noise, **follows
    )
    found = spent(log_of(PRESENT), mechanism, FedAU(cutoff=CUTOFF), horizon=ROUNDS)
    stated, loss = found.clients["epsilon"][1], found.losses[1]
    claimed = mechanism.noise_on_sum * CUTOFF * CLIP / 2
    scores = attacked(mechanism, claimed)
    assert proven_epsilon(scores, delta) <= stated
    # It is as strong as the stated loss μ² allows: N(-μ²/2, μ²) without the member, N(μ²/2, μ²).
    for sample, mean in zip(scores, (-loss / 2, loss / 2), strict=True):
        assert stats.kstest((sample - mean) / loss**0.5, "norm").pvalue > 1e-6
    # With the noise off, what is stated would be false, and the attack shows it.
    silent = replace(mechanism, noise_multiplier=0.0)
    assert proven_epsilon(attacked(silent, claimed), delta) > stated


def test_the_attack_finds_noise_that_is_an_eighth_of_what_was_claimed():
    pytest.importorskip("dp_accounting")
    draws = np.random.default_rng(0)
    stated = Gaussian(1.0, 2.0, 1e-3).epsilon(0.25)
    for deviation, found in ((2.0, False), (0.25, True)):
        scores = np.stack([draws.normal(0, deviation, 400), draws.normal(1, deviation, 400)])
        assert (proven_epsilon(scores, 1e-3) > stated) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_lie_on_a_grid_that_does_not_depend_on_the_updates(dtype):
    """Or their last digits would rule out updates (Mironov 2012), whatever ε is stated.

    Sums of numbers of one type and noise of that type are multiples of the distance between such
    numbers, which is larger where the update is larger.
    """
    size, sigma = 20_000, 5.0 * 1.0 / 5
    draws = torch.Generator().manual_seed(1)
    for scale in (0.0, 1e-3, 1.0):
        private = make_private(FedAvg(weights="all"), Gaussian(1.0, 5.0, 1e-5), seed=None)
        driver = RoundDriver(private, torch.zeros(size, dtype=dtype), Population(5))
        rows = scale * torch.randn(5, size, generator=draws, dtype=dtype) / math.sqrt(size)
        ids = torch.arange(5)
        driver.absorb(ClientUpdates(ids, torch.ones(5) / 5, rows, 0.1, torch.ones(5)))
        steps = driver.step(0.1).direction.double() / 2.0 ** (math.floor(math.log2(sigma)) - 20)
        assert torch.equal(steps, steps.round())
        assert (steps.abs().max() > 2**20) & ((steps % 2).mean().sub(0.5).abs() < 0.02)
