"""Words drawn from keys: exact integer arithmetic, and the distribution of the draws."""

import numpy as np
import torch
from scipy import stats

from fedtide.problems.device_random import WORDS, mix, words

KEYS = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (6, 5)))


def python_mix(word):
    for shift, multiplier in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        word ^= word >> shift
        word = word * multiplier % 2**32
    return word ^ (word >> 15)


def test_mix_equals_arithmetic_on_unbounded_integers():
    given = np.random.default_rng(1).integers(2**32, size=1000)
    assert mix(torch.from_numpy(given)).tolist() == [python_mix(int(word)) for word in given]


def test_words_are_uniform_and_uncorrelated():
    # 4 tests at 1e-4 each: a fixed seed, and a false alarm in 4 of 10,000 seeds
    drawn = words(KEYS.flatten()[:, None], 2, torch.arange(20_000)).double() / WORDS
    assert stats.kstest(drawn.flatten().numpy(), "uniform").pvalue > 1e-4
    for first, second in (
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn[:-1], drawn[1:]),
        (drawn, words(KEYS.flatten()[:, None], 3, torch.arange(20_000)).double()),
    ):
        assert stats.pearsonr(first.flatten(), second.flatten()).pvalue > 1e-4
