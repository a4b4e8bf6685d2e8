"""The heat map of the leaderboard: methods from top to bottom, patterns from left to right."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from fedtide.leaderboard.standings import Standings
from fedtide.plotting.style import new_figure

_RANGE = (0.3, 60.0)  # of the regrets that the colours tell apart, in %
_LIGHT = 5.0  # above this regret, cells are so dark that white text is easier to read


def draw_heat_map(standings: Standings) -> Figure:
    """Return the figure: a panel for each problem of which cells were run."""
    board = standings.board
    problems = standings.begun
    height = 0.9 + (0.22 * len(board.methods) + 1.3) * max(1, len(problems))
    figure, panels = new_figure(height, 1, 9.5, [1.0], max(1, len(problems)))
    for panel, problem in zip(panels, problems, strict=False):
        _draw_panel(panel, standings, problem)
    return figure


def _draw_panel(panel: Axes, standings: Standings, problem: str) -> None:
    board = standings.board
    methods, patterns = list(board.methods), list(board.patterns)
    shades = np.full((len(methods), len(patterns)), np.nan)
    for i, method in enumerate(methods):
        for j, pattern in enumerate(patterns):
            regret = standings.regret(problem, pattern, method)
            if board.lacks(pattern, method):
                text, dark = "–", False
            elif regret is None:
                text, dark = "", False
            elif regret.diverged:
                shades[i, j], text, dark = _RANGE[1], "×", True
            else:
                shades[i, j] = np.clip(regret.mean, *_RANGE)
                text, dark = _short(regret.mean), regret.mean > _LIGHT
            panel.text(
                j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
    panel.imshow(shades, cmap="cividis_r", norm=LogNorm(*_RANGE), aspect="auto")
    panel.set_xticks(range(len(patterns)), patterns, rotation=40, ha="right", fontsize=8)
    panel.set_yticks(range(len(methods)), methods, fontsize=8)
    task = board.problems[problem]
    panel.set_title(f"{task.title}: regret ({task.measure})", fontsize="medium")
    panel.tick_params(length=0)


def _short(value: float) -> str:
    """Return a number in at most four characters where it is below 1000.

    >>> _short(0.123), _short(-0.04), _short(12.3), _short(2345)
    ('0.1', '0', '12', '2345')
    """
    return (
        f"{value:.0f}"
        if abs(value) >= 9.95
        else f"{value:.1f}".replace("-0.0", "0").replace("0.0", "0")
    )
