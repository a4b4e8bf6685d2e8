"""Correlated noise against jax-privacy 2.0.0 (Apache-2.0), in its `matrix_factorization.toeplitz`.

Its figures, in float64 with jax 0.10.2, for the first b of `optimal_max_error_strategy_coefs`,
divided by their norm, over n rounds.
"""

import numpy as np
import pytest
import torch

from fedtide.algorithms import FedAvg
from fedtide.differential_privacy import noise_source, private_sum
from fedtide.privacy import MatrixFactorisation

from .rounds import drive


@pytest.mark.parametrize(
    ("bands", "n", "apart", "participations", "expected"),
    [
        (4, 12, 2, 3, 4.427821522309711),
        (4, 12, 1, 2, 3.0813648293963247),
        (4, 12, 4, 3, 3.0),
        (8, 60, 4, 3, 4.272220445500148),
        (8, 60, 1, 2, 3.2339503607747866),
        (8, 60, 8, 8, 7.866095911080341),
        (8, 60, 11, 6, 5.909606716980661),
        (32, 150, 16, 3, 4.02917543035612),
        (32, 150, 1, 2, 3.407753124154342),
        (32, 150, 35, 5, 4.826656342434626),
    ],
)
def test_a_client_loses_the_squared_sensitivity_of_jax_privacy(
    bands, n, apart, participations, expected
):
    """By its `minsep_sensitivity_squared`: also closer than the bands, and cut off by the end."""
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=bands)
    rounds = apart * np.arange(participations)
    loss = mechanism.loss(rounds, np.ones(participations), horizon=n)
    assert loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("bands", "n", "half_way", "at_the_end", "mean"),
    [
        (1, 12, 7.0, 12.0, 6.5),
        (4, 12, 3.323567345738411, 4.850125251120517, 3.147462052909532),
        (8, 60, 7.137825022998214, 12.183497245377403, 7.047079046531262),
        (32, 150, 7.27386072457441, 11.249730100513942, 7.24313114947572),
    ],
)
def test_the_noise_in_the_model_has_the_variance_of_jax_privacy(
    monkeypatch, bands, n, half_way, at_the_end, mean
):
    """By its `per_query_error`. The t-th fresh noise is the t-th unit vector, so that the squared
    norm of the model is the variance that independent noise would give it."""
    monkeypatch.setattr(
        private_sum, "standard_normals", lambda size, t, _: torch.eye(size).double()[t]
    )
    monkeypatch.setattr(noise_source, "_GRID_BITS", 45)  # as good as without rounding
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=bands)
    nobody = np.zeros((n, 1), dtype=bool)
    _, moved = drive(FedAvg(weights="all"), mechanism, nobody, lambda t, ids: np.zeros((0, n)), n)
    variances = (moved.cumsum(axis=0) ** 2).sum(axis=1)
    found = variances[n // 2], variances[-1], variances.mean()
    assert found == pytest.approx((half_way, at_the_end, mean), rel=1e-9)
