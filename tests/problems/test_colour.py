"""Changes of colours against Pillow, against Python's colorsys, and the laws of their draws."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from fedtide.errors import InvalidInputError
from fedtide.problems import Classification, Iid
from fedtide.problems.augmentation import augmented, check_augmentations
from fedtide.problems.colour import COLOURS, jitter
from fedtide.problems.datasets.catalogue import Dataset
from fedtide.problems.device_random import WORDS, words

KEYS = torch.from_numpy(np.random.default_rng(3).integers(-(2**63), 2**63 - 1, (2, 3)))
ALWAYS, NEVER = 0, WORDS - 1
HALF = 1 << 16


def images(count, channels=3, height=12, width=9):
    """Photographs differ from noise in that they have few values: some of both."""
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
def test_as_pillow_does(name):
    given = images(20)
    result = COLOURS[name](given, torch.full((20,), ALWAYS))
    for before, after in zip(given, result, strict=True):
        assert torch.equal(after, by_pillow(name, before))
    assert torch.equal(COLOURS[name](given, torch.full((20,), NEVER)), given)


def test_brightness_as_pillow_does():
    given = images(20, channels=1)
    for part in (0, 20_000, 40_001, HALF - 1):
        result = jitter(given, torch.full((20,), part))
        factor = 0.95 + 0.1 * part / (HALF - 1)
        for before, after in zip(given, result, strict=True):
            image = Image.fromarray(before[0].numpy().astype(np.uint8))
            expected = np.asarray(ImageEnhance.Brightness(image).enhance(factor))
            # a product that is a whole number but for rounding may fall to either side
            assert np.abs(after[0].numpy() - expected.astype(int)).max() <= 1
            assert np.mean(after[0].numpy() != expected) < 0.02


@pytest.mark.parametrize("turn", [-0.05, 0.0, 0.031, 0.05])
def test_hue_as_colorsys_does(turn):
    given = images(6)
    high = round((turn / 0.05 + 1) / 2 * (HALF - 1))
    turn = 0.05 * (2 * high / (HALF - 1) - 1)
    middle = (HALF - 1) // 2  # scales by all but one
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


def test_half_are_changed_and_jitter_is_uniform():
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


def test_pixels_survive_standardisation_and_colours_come_before_the_margin():
    pixels = images(2 * 3 * 4, height=8, width=8)
    data = Dataset(None, None, 10, (0.49, 0.48, 0.44), (0.2, 0.19, 0.2))
    for dtype in (torch.float32, torch.float64):
        standard = data.standard(torch.device("cpu"), dtype)
        assert torch.equal(standard.pixels(standard.apply(pixels)), pixels)
        x = standard.apply(pixels).view(2, 3, 4, 3, 8, 8)
        result = augmented(x, ["posterize", "pad-crop"], KEYS, standard)
        margin = (result == 0).all(dim=3)  # zeros after standardisation, not the colour black
        assert margin.any()


def test_each_augmentation_has_its_own_draw():
    pixels = images(2 * 3 * 4, height=8, width=8)
    standard = Dataset(None, None, 10).standard(torch.device("cpu"), torch.float32)
    x = standard.apply(pixels).view(2, 3, 4, 3, 8, 8)
    names = ["sharpen", "jitter", "posterize", "equalize"]
    result = standard.pixels(augmented(x, names, KEYS, standard))
    for step, client, sample in np.ndindex(2, 3, 4):
        one = pixels.view(2, 3, 4, 3, 8, 8)[step, client, sample][None]
        for number, name in enumerate(names):
            draw = words(KEYS[step, client], 2**16 + number, torch.tensor([sample]))
            one = COLOURS[name](one, draw)
        assert torch.equal(result[step, client, sample], one[0])


def test_bad_lists():
    with pytest.raises(
        InvalidInputError, match="augment: 'equalize' changes colours; list it before 'flip'"
    ):
        check_augmentations(["jitter", "flip", "equalize", "pad-crop"])
    with pytest.raises(
        InvalidInputError, match="augment: unknown 'equalise'; did you mean 'equalize'"
    ):
        check_augmentations(["equalise"])
    problem = Classification("digits", Iid(), 10, augment=["posterize"])
    with pytest.raises(InvalidInputError, match=r"augment: the images have no pixels of 0\.\.255"):
        problem.prepare(seed=0, device=torch.device("cpu"), dtype=torch.float32)
