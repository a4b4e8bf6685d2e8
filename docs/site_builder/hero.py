"""The figure that explains the problem and the correction: who comes, what counts, what results.

`python -m site_builder.hero` writes it for the README, light and dark.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtide.algorithms import FedAU, FedAvg
from fedtide.plotting.saving import figure_svg
from fedtide.plotting.style import COLOURS, GREY, STYLE, Floats
from site_builder.figures import RATES, follow

CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.87]], dtype=torch.float64)
"""The optimum of each client, in the plane."""

TITLE = (
    "Three clients take part in 90, 30 and 10 percent of the rounds. With plain averaging the most "
    "frequent one counts most, and the model ends up near it; with FedAU all count the same, and "
    "the model ends up in the middle."
)

_ROUNDS, _SHOWN = 3000, 60
_CLIENTS = COLOURS[:3]
_CENTRED = {"textcoords": "offset points", "ha": "center"}
_THEMES = {"light": "#1f2328", "dark": "#e6edf3"}


def draw_hero() -> Figure:
    """Return the figure; text and axes are black."""
    presence, plain, left = follow(FedAvg(), CORNERS, _ROUNDS)
    _, corrected, right = follow(FedAU(), CORNERS, _ROUNDS)
    with mpl.rc_context({**STYLE, "font.size": 12, "axes.titlesize": 14}):
        figure = Figure(figsize=(12, 3.7))
        figure.subplots_adjust(left=0.02, right=0.99, bottom=0.17, top=0.86, wspace=0.1)
        comes, counts, becomes = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
        _draw_presence(comes, presence[:_SHOWN])
        _draw_shares(counts, {"plain averaging": plain, "FedAU": corrected})
        _draw_models(becomes, {"plain averaging": left, "FedAU": right})
    return figure


def _draw_presence(panel: Axes, presence: Floats) -> None:
    for n, colour in enumerate(_CLIENTS):
        rounds = np.flatnonzero(presence[:, n])
        panel.scatter(rounds, np.full(len(rounds), -n), s=90, marker="|", color=colour, lw=2.5)
        panel.text(0, -n + 0.28, f"client {'ABC'[n]}: {RATES[n]:.0%} of the rounds")
    panel.set(ylim=(-2.5, 0.7), xlabel="rounds", title="Who comes")
    panel.set_axis_off()
    panel.text(_SHOWN / 2, -2.55, "rounds →", ha="center", va="top")


def _draw_shares(panel: Axes, methods: dict[str, Floats]) -> None:
    for place, weights in enumerate(methods.values()):
        shares = weights.sum(0) / weights.sum()
        for n, share in enumerate(shares):
            panel.bar(place + (n - 1) * 0.27, share, width=0.24, color=_CLIENTS[n])
            panel.text(place + (n - 1) * 0.27, share + 0.015, f"{share:.0%}", ha="center")
    panel.axhline(1 / 3, color=GREY, ls="--", lw=1.5)
    panel.set_xticks(range(len(methods)), list(methods))
    panel.tick_params(length=0)
    panel.set(yticks=[], ylim=(0, 0.9), title="What each counts")
    panel.spines["left"].set_visible(False)


def _draw_models(panel: Axes, methods: dict[str, Floats]) -> None:
    """Draw where each method ends: the mean over the last third of its rounds."""
    corners = CORNERS.numpy()
    panel.plot(*np.vstack([corners, corners[:1]]).T, color=GREY, lw=1, zorder=0)
    for n, (x, y) in enumerate(corners):
        panel.scatter(x, y, s=150, color=_CLIENTS[n])
        panel.annotate(f"best for {'ABC'[n]}", (x, y), (0, -20 if y == 0 else 11), **_CENTRED)
    for (name, path), colour in zip(methods.items(), (COLOURS[4], COLOURS[3]), strict=True):
        end = path[-_ROUNDS // 3 :].mean(0)
        panel.scatter(*end, s=90, marker="X", color=colour, zorder=4)
        panel.annotate(name, end, (12, -4), textcoords="offset points")
    middle = {"s": 330, "facecolor": "none", "edgecolor": GREY, "lw": 1.5, "ls": "--"}
    panel.scatter(*corners.mean(0), **middle)
    panel.annotate("best for all", corners.mean(0), (0, 15), **_CENTRED)
    panel.set(xlim=(-0.25, 1.25), ylim=(-0.2, 1.0), title="What the model becomes")
    panel.set_axis_off()


def main() -> None:
    """Write the figure for the README, for a light and a dark page."""
    figure = draw_hero()
    for theme, colour in _THEMES.items():
        svg = figure_svg(figure, TITLE, "hero").replace("#ffffff", "none")
        for black in ("#000000", "#333333", "#555555"):
            svg = svg.replace(black, colour)
        svg = svg.replace("<svg ", f'<svg fill="{colour}" font-family="sans-serif" ', 1)
        file = Path(__file__).parents[1] / "images" / f"hero-{theme}.svg"
        file.write_text(svg.replace("inherit", "sans-serif"), encoding="utf-8")


if __name__ == "__main__":
    main()
