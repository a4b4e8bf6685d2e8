"""Dropout with keyed masks: the distribution of the masks, and what they depend on."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedtide.problems.models.keyed_dropout import replace_dropout

KEYS = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2))


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
    net, masks = replace_dropout(nn.Sequential(kind(0.3), kind(0.3)).train())
    masks.start_pass(KEYS[0])
    first, both = net[0](torch.ones(shape)), net[1](torch.ones(shape))
    assert first.unique().tolist() == pytest.approx([0, 1 / 0.7])
    chosen = first[tuple(slice(0, n) for n in drawn)]
    assert torch.equal(first, chosen.expand(shape))
    kept = int((chosen > 0).sum())
    assert stats.binomtest(kept, chosen.numel(), 0.7).pvalue > 1e-4
    together = int(((chosen > 0) & (both[tuple(slice(0, n) for n in drawn)] > 0)).sum())
    assert stats.binomtest(together, chosen.numel(), 0.49).pvalue > 1e-4


def test_dropout_is_a_function_of_its_key_and_of_the_call():
    net, masks = replace_dropout(nn.ModuleList([nn.Dropout(0.5)]))
    x = torch.ones(100)

    def twice(key):
        masks.start_pass(key)
        return net[0](x), net[0](x)

    (a, b), (a_again, _), (c, _) = twice(KEYS[0]), twice(KEYS[0]), twice(KEYS[1])
    assert torch.equal(a, a_again)
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_single_layer_of_probability_one_drops_everything():
    net, masks = replace_dropout(nn.Dropout(1.0))
    masks.start_pass(KEYS[0])
    assert not net(torch.ones(10)).any()


def test_networks_without_active_dropout_are_unchanged():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
    assert replace_dropout(net) == (net, None)


class Tripling(nn.Dropout):
    """A subclass that drops nothing."""

    def forward(self, x):
        return 3 * x


class Renamed(nn.Dropout):
    """A subclass that computes the same."""


def test_only_subclasses_that_drop_like_their_base_are_replaced():
    net, masks = replace_dropout(nn.Sequential(Tripling(0.5), Tripling(0.5)))
    assert masks is None
    assert net(torch.ones(2)).tolist() == [9, 9]
    net, masks = replace_dropout(nn.Sequential(Renamed(0.5)))
    assert masks is not None


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.Dropout1d, (60, 9)), (nn.Dropout1d, (6, 60, 9)), (nn.Dropout3d, (60, 5, 2, 2))],
)
def test_what_is_dropped_together_is_that_of_pytorch(kind, shape):
    torch.manual_seed(0)
    expected = kind(0.5)(torch.ones(shape))
    net, masks = replace_dropout(nn.Sequential(kind(0.5)))
    masks.start_pass(KEYS[0])
    found = net(torch.ones(shape))
    for dim in range(len(shape)):
        assert bool(found.std(dim).any()) == bool(expected.std(dim).any())
