"""Keyed draws, dropout and augmentation: literal references, and the laws of the draws."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedtide.problems.augmentation import augmented, flip, pad_crop
from fedtide.problems.device_random import WORDS, mix, words
from fedtide.problems.models.keyed_dropout import Masks, key_dropout

KEYS = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (6, 5)))


def python_mix(word):
    for shift, multiplier in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        word ^= word >> shift
        word = word * multiplier % 2**32
    return word ^ (word >> 15)


def test_mix_is_the_arithmetic_of_unbounded_integers():
    given = np.random.default_rng(1).integers(2**32, size=1000)
    assert mix(torch.from_numpy(given)).tolist() == [python_mix(int(word)) for word in given]


def test_words_are_uniform_and_unrelated():
    # 4 tests at 1e-4 each: a fixed seed, and a false alarm in 4 of 10,000 seeds
    drawn = words(KEYS.flatten()[:, None], 2, torch.arange(20_000)).double() / WORDS
    assert stats.kstest(drawn.flatten().numpy(), "uniform").pvalue > 1e-4
    for first, second in (
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn[:-1], drawn[1:]),
        (drawn, words(KEYS.flatten()[:, None], 3, torch.arange(20_000)).double()),
    ):
        assert stats.pearsonr(first.flatten(), second.flatten()).pvalue > 1e-4


def test_words_take_vmap_and_compile_to_the_same_numbers():
    def draw(key):
        return words(key, 1, torch.arange(50))

    one_by_one = torch.stack([draw(key) for key in KEYS[0]])
    assert torch.equal(torch.func.vmap(draw)(KEYS[0]), one_by_one)


def dropout_net(kind):
    net, masks = key_dropout(nn.Sequential(kind(0.3), kind(0.3)).train())
    return net, masks


@pytest.mark.parametrize(
    ("kind", "shape", "drawn"),
    [
        (nn.Dropout, (50, 400), (50, 400)),
        (nn.Dropout1d, (200, 40, 7), (200, 40, 1)),
        (nn.Dropout2d, (200, 40, 3, 3), (200, 40, 1, 1)),
        (nn.Dropout3d, (200, 40, 2, 2, 2), (200, 40, 1, 1, 1)),
    ],
)
def test_dropout_keeps_with_probability_and_rescales(kind, shape, drawn):
    net, masks = dropout_net(kind)
    masks.begin(KEYS[0, 0])
    first, both = net[0](torch.ones(shape)), net[1](torch.ones(shape))
    assert first.unique().tolist() == pytest.approx([0, 1 / 0.7])
    chosen = first[tuple(slice(0, n) for n in drawn)]
    assert torch.equal(first, chosen.expand(shape))
    kept = int((chosen > 0).sum())
    assert stats.binomtest(kept, chosen.numel(), 0.7).pvalue > 1e-4
    together = int(((chosen > 0) & (both[tuple(slice(0, n) for n in drawn)] > 0)).sum())
    assert stats.binomtest(together, chosen.numel(), 0.49).pvalue > 1e-4


def test_dropout_is_a_function_of_its_key_and_of_the_call():
    net, masks = key_dropout(nn.ModuleList([nn.Dropout(0.5)]))
    x = torch.ones(100)

    def twice(key):
        masks.begin(key)
        return net[0](x), net[0](x)

    (a, b), (a_again, _), (c, _) = twice(KEYS[0, 0]), twice(KEYS[0, 0]), twice(KEYS[0, 1])
    assert torch.equal(a, a_again)
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_lone_dropout_layer_and_one_of_probability_one():
    net, masks = key_dropout(nn.Dropout(1.0))
    masks.begin(KEYS[0, 0])
    assert not net(torch.ones(10)).any()


def test_nothing_is_keyed_without_dropout():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
    assert key_dropout(net) == (net, None)
    assert isinstance(Masks(), Masks)


def literal_pad_crop(image, top, left):
    channels, height, width = image.shape
    out = np.zeros_like(image)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                row, column = i + top - 4, j + left - 4
                if 0 <= row < height and 0 <= column < width:
                    out[c, i, j] = image[c, row, column]
    return out


def test_augmentation_of_each_sample_by_hand():
    x = torch.randn(6, 5, 4, 2, 7, 9, generator=torch.Generator().manual_seed(0))
    result = augmented(x, ["pad-crop", "flip"], KEYS)
    for step, client, sample in np.ndindex(6, 5, 4):
        place = torch.tensor(sample)
        first, second = (int(words(KEYS[step, client], 2**16 + n, place)) for n in (0, 1))
        top, left = divmod(first * 81 // 2**32, 9)
        expected = literal_pad_crop(x[step, client, sample].numpy(), top, left)
        if second < 2**31:
            expected = expected[:, :, ::-1]
        assert np.array_equal(result[step, client, sample], expected)


def test_all_windows_are_equally_likely_and_half_are_mirrored():
    count = 20_000
    x = torch.zeros(count, 1, 9, 9)
    x[:, :, 4, 4] = 1
    drawn = words(KEYS[0, 0], 7, torch.arange(count))
    # the one bright pixel moves to one of 81 places
    places = pad_crop(x, drawn).flatten(1).argmax(1)
    assert stats.chisquare(np.bincount(places, minlength=81)).pvalue > 1e-4
    x[:, :, 0, 0] = 2
    mirrored = int((flip(x, drawn)[:, 0, 0, 8] == 2).sum())
    assert stats.binomtest(mirrored, count, 0.5).pvalue > 1e-4
