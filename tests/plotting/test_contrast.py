"""Text is easy to read on its ground: the contrast of WCAG 2 is at least 4.5 (level AA)."""

import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import LogNorm, to_rgb

from fedtide import html_page
from fedtide.leaderboard.heat_map import _LIGHT, _RANGE
from fedtide.plotting.style import STYLE


def luminance(colour):
    """Return the relative luminance, by the formula of WCAG 2."""
    share = np.array(to_rgb(colour))
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_of_the_heat_map_are_easy_to_read():
    colours, norm = mpl.colormaps["cividis_r"], LogNorm(*_RANGE)
    for regret in np.geomspace(*_RANGE, 200):
        text = "white" if regret > _LIGHT else "black"
        assert contrast(text, colours(norm(regret))[:3]) >= 4.5


@pytest.mark.parametrize("key", ["axes.labelcolor", "xtick.color", "ytick.color"])
def test_labels_of_figures_are_easy_to_read(key):
    assert contrast(STYLE[key], "white") >= 4.5


def test_text_of_pages_is_easy_to_read():
    colours = dict(re.findall(r"--(\w+): (#\w+);", html_page.STYLE))
    for text in ("ink", "soft", "accent"):
        for ground in ("paper", "tile"):
            assert contrast(colours[text], colours[ground]) >= 4.5
