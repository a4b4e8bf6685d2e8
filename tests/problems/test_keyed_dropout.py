"""Dropout with keyed masks: the distribution of the masks, and what they depend on."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedtide.problems.models.keyed_dropout import DropoutMasks, KeyedFunctions

KEYS = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2))


def outputs_of(layers, x, key=KEYS[0]):
    """Return what each layer makes of x in one pass with this key, and whether any has dropped."""
    masks = DropoutMasks()
    masks.start_pass(key)
    with KeyedFunctions(masks):
        return [layer(x) for layer in layers], masks.used


@pytest.mark.parametrize(
    ("kind", "shape", "drawn"),
    [
        (nn.Dropout, (50, 400), (50, 400)),
        (nn.Dropout1d, (200, 40, 7), (200, 40, 1)),
        (nn.Dropout2d, (200, 40, 3, 3), (200, 40, 1, 1)),
        (nn.Dropout3d, (200, 40, 2, 2, 2), (200, 40, 1, 1, 1)),
        (nn.Dropout1d, (800, 9), (800, 1)),  # which they take for one sample without a batch
        (nn.Dropout3d, (800, 5, 2, 2), (800, 1, 1, 1)),
    ],
)
def test_dropout_keeps_with_probability_1_minus_p_and_rescales(kind, shape, drawn):
    # 2 tests at 1e-4 each: a fixed seed, and a false alarm in at most 2 of 10,000 seeds
    (first, both), _ = outputs_of([kind(0.3), kind(0.3)], torch.ones(shape))
    assert first.unique().tolist() == pytest.approx([0, 1 / 0.7])
    chosen = first[tuple(slice(0, n) for n in drawn)]
    assert torch.equal(first, chosen.expand(shape))
    kept = int((chosen > 0).sum())
    assert stats.binomtest(kept, chosen.numel(), 0.7).pvalue > 1e-4
    together = int(((chosen > 0) & (both[tuple(slice(0, n) for n in drawn)] > 0)).sum())
    assert stats.binomtest(together, chosen.numel(), 0.49).pvalue > 1e-4


def test_dropout_is_a_function_of_its_key_and_of_the_call():
    layer = nn.Dropout(0.5)
    (a, b), (a_again, _), (c, _) = (
        outputs_of([layer, layer], torch.ones(100), key)[0] for key in KEYS[[0, 0, 1]]
    )
    assert torch.equal(a, a_again)
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)
