"""Curves of a metric over the rounds: the mean over the seeds, with a band."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes

from fedtide.metric_direction import is_share
from fedtide.plotting.style import Floats, label_rounds, percentages, plain_logarithms


def draw_curve(
    panel: Axes,
    tables: Sequence[pl.DataFrame],
    metric: str,
    label: str,
    style: Mapping[str, Any],
    share: float = 0.0,
) -> None:
    """Draw a metric over the rounds in which all seeds were evaluated: mean ± standard deviation.

    The band of positive values, which may have a logarithmic axis, ends at the lowest of them.

    Args:
        panel: where to draw.
        tables: the evaluations of each seed, with the columns `round` and `metric`.
        metric: its name.
        label: in the legend.
        style: colour and line style.
        share: the fraction of the evaluations to smooth over.
    """
    rounds = [table["round"].to_numpy() for table in tables]
    common = reduce(np.intersect1d, rounds)
    curves = [smooth(table[metric].cast(pl.Float64).to_numpy(), share) for table in tables]
    values = np.array([v[np.isin(r, common)] for v, r in zip(curves, rounds, strict=True)])
    finite = values[np.isfinite(values)]
    with np.errstate(invalid="ignore", over="ignore"):  # a loss may be infinite
        mean, std = values.mean(axis=0), values.std(axis=0, ddof=int(len(tables) > 1))
        low = mean - std
        if (finite > 0).all():
            low = np.maximum(low, finite.min(initial=np.inf))
        panel.fill_between(common, low, mean + std, color=style["color"], alpha=0.15, lw=0)
    marker = "o" if np.isfinite(mean).sum() == 1 else ""  # a single point has no line
    panel.plot(common, mean, label=label, lw=1.6, marker=marker, ms=3.5, **style)
    label_rounds(panel)
    panel.grid(alpha=0.25)


def scale_values(panels: Iterable[Axes], metric: str, is_lower: bool) -> None:
    """Show shares in per cent, and positive values that are better when lower on a log axis.

    Args:
        panels: with the curves.
        metric: its name.
        is_lower: whether a smaller value is better.
    """
    panels = list(panels)
    lines = [np.asarray(line.get_ydata()) for panel in panels for line in panel.get_lines()]
    values = np.concatenate(lines)
    values = values[np.isfinite(values)]
    for panel in panels:
        if is_share(metric) and ((values >= 0) & (values <= 1)).all():
            percentages(panel.yaxis)
        elif is_lower and (values > 0).all():
            plain_logarithms(panel.yaxis)


def smooth(values: Floats, share: float) -> Floats:
    """Return the moving average over a share of the entries, which is how the papers smooth curves.

    >>> smooth(np.array([0.0, 3.0, 6.0, 9.0]), 0.5)
    array([0. , 1.5, 4.5, 7.5])
    """
    width = max(1, round(share * len(values)))
    ends = range(1, len(values) + 1)
    # window by window, so that a diverged loss spoils only the windows that contain it
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array([values[max(0, end - width) : end].mean() for end in ends])
