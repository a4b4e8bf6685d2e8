"""Augmentations against literal loops, Pillow and colorsys, and the distribution of their draws."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from fedtide.errors import InvalidInputError
from fedtide.problems import Classification, Iid
from fedtide.problems.augmentation import (
    COLOURS,
    augment,
    check_augmentations,
    flip,
    jitter,
    pad_crop,
)
from fedtide.problems.datasets.catalogue import standardisation
from fedtide.problems.device_random import WORDS, words

KEYS = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (6, 5)))
ALWAYS, NEVER = 0, WORDS - 1
HALF = 1 << 16


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


def test_pad_crop_and_flip_of_each_sample_equal_a_literal_loop():
    x = torch.randn(6, 5, 4, 2, 7, 9, generator=torch.Generator().manual_seed(0))
    result = augment(x, ["pad-crop", "flip"], KEYS)
    for step, client, sample in np.ndindex(6, 5, 4):
        place = torch.tensor(sample)
        first, second = (int(words(KEYS[step, client], 2**16 + n, place)) for n in (0, 1))
        top, left = divmod(first * 81 // 2**32, 9)
        expected = literal_pad_crop(x[step, client, sample].numpy(), top, left)
        if second < 2**31:
            expected = expected[:, :, ::-1]
        assert np.array_equal(result[step, client, sample], expected)


def test_all_windows_are_equally_likely_and_half_are_mirrored():
    # 2 tests at 1e-4 each: a fixed seed, and a false alarm in at most 2 of 10,000 seeds
    count = 20_000
    x = torch.zeros(count, 1, 9, 9)
    x[:, :, 4, 4] = 1
    drawn = words(KEYS[0, 0], 7, torch.arange(count))
    # the single bright pixel moves to one of 81 positions
    places = pad_crop(x, drawn).flatten(1).argmax(1)
    assert stats.chisquare(np.bincount(places, minlength=81)).pvalue > 1e-4
    x[:, :, 0, 0] = 2
    mirrored = int((flip(x, drawn)[:, 0, 0, 8] == 2).sum())
    assert stats.binomtest(mirrored, count, 0.5).pvalue > 1e-4


def images(count, channels=3, height=12, width=9):
    """Return noise and, like photographs, images with few distinct values."""
    rng = np.random.default_rng(4)
    noise = rng.integers(256, size=(count, channels, height, width))
    ramp = np.add.outer(np.arange(height), np.arange(width)) * 3 + rng.integers(200, size=(4, 1, 1))
    noise[: count // 2] = ramp[:channels].clip(max=255)
    noise[0] = 77
    return torch.from_numpy(noise)


def by_pillow(name, pixels):
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy().astype(np.uint8))
    changed = {
        "sharpen": lambda: ImageEnhance.Sharpness(image).enhance(2.0),
        "posterize": lambda: ImageOps.posterize(image, 2),
        "equalize": lambda: ImageOps.equalize(image),
    }[name]()
    return torch.from_numpy(np.asarray(changed).copy()).permute(2, 0, 1).long()


@pytest.mark.parametrize("name", ["sharpen", "posterize", "equalize"])
def test_sharpen_posterize_and_equalize_equal_pillow(name):
    given = images(20)
    result = COLOURS[name](given, torch.full((20,), ALWAYS))
    for before, after in zip(given, result, strict=True):
        assert torch.equal(after, by_pillow(name, before))
    assert torch.equal(COLOURS[name](given, torch.full((20,), NEVER)), given)


def test_jitter_of_brightness_equals_pillow():
    given = images(20, channels=1)
    for part in (0, 20_000, 40_001, HALF - 1):
        result = jitter(given, torch.full((20,), part))
        factor = 0.95 + 0.1 * part / (HALF - 1)
        for before, after in zip(given, result, strict=True):
            image = Image.fromarray(before[0].numpy().astype(np.uint8))
            expected = np.asarray(ImageEnhance.Brightness(image).enhance(factor))
            # a product that is an integer up to rounding may be truncated either way
            assert np.abs(after[0].numpy() - expected.astype(int)).max() <= 1
            assert np.mean(after[0].numpy() != expected) < 0.02


@pytest.mark.parametrize("turn", [-0.05, 0.031])
def test_jitter_of_hue_equals_colorsys(turn):
    given = images(6)
    high = round((turn / 0.05 + 1) / 2 * (HALF - 1))
    turn = 0.05 * (2 * high / (HALF - 1) - 1)
    middle = (HALF - 1) // 2  # a scale of almost 1
    result = jitter(given, torch.full((6,), high * HALF + middle + 1))
    away = 0
    for before, after in zip(
        given.movedim(1, -1).reshape(-1, 3), result.movedim(1, -1).reshape(-1, 3), strict=True
    ):
        hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255).tolist())
        turned = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
        expected = [int(channel * 255.999) for channel in turned]
        assert max(abs(a - b) for a, b in zip(after.tolist(), expected, strict=True)) <= 1
        away += after.tolist() != expected
    assert away < 0.02 * 6 * 12 * 9


def test_half_of_the_images_are_changed_and_jitter_is_uniform():
    # 5 tests at 1e-4 each: a fixed seed, and a false alarm in at most 5 of 10,000 seeds
    count = 20_000
    drawn = words(KEYS[0, 0], 5, torch.arange(count))
    given = torch.full((count, 1, 3, 3), 100)
    given[:, :, 1, 1] = 110
    for name in ("sharpen", "posterize"):
        changed = (COLOURS[name](given, drawn) != given).flatten(1).any(1)
        assert stats.binomtest(int(changed.sum()), count, 0.5).pvalue > 1e-4
    low, high = (part.double() / HALF for part in (drawn % HALF, drawn // HALF))
    assert stats.kstest(low.numpy(), "uniform").pvalue > 1e-4
    assert stats.kstest(high.numpy(), "uniform").pvalue > 1e-4
    assert stats.pearsonr(low, high).pvalue > 1e-4


def test_pixels_survive_standardisation_and_padding_is_the_mean_colour():
    pixels = images(2 * 3 * 4, height=8, width=8)
    mean, std = (0.49, 0.48, 0.44), (0.2, 0.19, 0.2)
    for dtype in (torch.float32, torch.float64):
        standard = standardisation(mean, std, torch.device("cpu"), dtype)
        assert torch.equal(standard.pixels(standard.apply(pixels)), pixels)
        x = standard.apply(pixels).view(2, 3, 4, 3, 8, 8)
        result = augment(x, ["posterize", "pad-crop"], KEYS[:2, :3], standard)
        padding = (result == 0).all(dim=3)  # zeros after standardisation, not the colour black
        assert padding.any()


def test_each_augmentation_has_its_own_draw():
    pixels = images(2 * 3 * 4, height=8, width=8)
    standard = standardisation((0.5,), (0.5,), torch.device("cpu"), torch.float32)
    x = standard.apply(pixels).view(2, 3, 4, 3, 8, 8)
    names = ["sharpen", "jitter", "posterize", "equalize"]
    result = standard.pixels(augment(x, names, KEYS[:2, :3], standard))
    for step, client, sample in np.ndindex(2, 3, 4):
        one = pixels.view(2, 3, 4, 3, 8, 8)[step, client, sample][None]
        for number, name in enumerate(names):
            draw = words(KEYS[step, client], 2**16 + number, torch.tensor([sample]))
            one = COLOURS[name](one, draw)
        assert torch.equal(result[step, client, sample], one[0])


def test_unknown_or_misplaced_augmentations_are_refused():
    with pytest.raises(InvalidInputError, match=r"^augment: 'equalize'.*; list it before 'flip'"):
        check_augmentations(["jitter", "flip", "equalize", "pad-crop"])
    with pytest.raises(InvalidInputError, match=r"^augment: .*'equalise'; did you mean 'equalize'"):
        check_augmentations(["equalise"])
    problem = Classification("digits", Iid(), 10, augment=["posterize"])
    with pytest.raises(InvalidInputError, match=r"^augment: .*pixels.*; leave out"):
        problem.prepare(seed=0, device=torch.device("cpu"), dtype=torch.float32)
