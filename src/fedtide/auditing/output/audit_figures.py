"""The figures of the page, as SVG that stands in the text."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedtide.auditing.api import Audit

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8a8f98"
_RASTER = (200, 400)
"""Rows and columns of the raster at most; each cell is the mean of what falls into it."""
_SHADES = 24
_POINTS = 300
"""Clients that are drawn in a line, evenly spread over all."""

_STYLE: dict[Any, Any] = {
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#333",
    "xtick.color": "#555",
    "ytick.color": "#555",
    "svg.fonttype": "none",
    "svg.hashsalt": "fedtide",
    "font.family": "sans-serif",
}


def raster(audit: Audit) -> str:
    """Draw who took part when: clients by rate, rounds from left to right."""
    log = audit.log
    order = np.argsort(-log.counts, kind="stable")
    rows, columns = min(_RASTER[0], log.size), min(_RASTER[1], log.length)
    place = np.empty(log.size, dtype=np.int64)
    place[order] = np.arange(log.size) * rows // log.size
    image = np.zeros(rows * columns)
    for low in range(0, len(log.clients), 1 << 23):
        part = slice(low, min(low + (1 << 23), len(log.clients)))
        rounds = np.searchsorted(log.starts, np.arange(part.start, part.stop), side="right") - 1
        cell = place[log.clients[part]] * columns + rounds * columns // log.length
        image += np.bincount(cell, minlength=rows * columns)
    area = np.outer(
        np.bincount(place, minlength=rows),
        np.bincount(np.arange(log.length) * columns // log.length, minlength=columns),
    )
    figure, axes = _new(height=2.8)
    shown = image.reshape(rows, columns) / area
    top = max(float(np.quantile(shown[shown > 0], 0.98)), 1e-9) if shown.any() else 1.0
    shades = np.minimum(np.rint(shown / top * _SHADES), _SHADES)  # few, so that it packs well
    extent = (log.first, log.first + log.length, log.size, 0.0)
    look: dict[str, Any] = {"cmap": "Blues", "vmin": 0, "vmax": _SHADES}
    axes.imshow(shades, aspect="auto", extent=extent, interpolation="nearest", **look)
    axes.set_xlabel("round")
    axes.set_ylabel("clients, by rate")
    _whole(axes.xaxis, axes.yaxis)
    return _svg(figure, "Who took part in which round")


def rates(audit: Audit) -> str:
    """Draw every client's rate with its interval, in rising order."""
    found = audit.rates
    order = np.argsort(found.estimate, kind="stable")
    if len(order) > _POINTS:
        order = order[np.linspace(0, len(order) - 1, _POINTS).astype(int)]
    place = np.linspace(1, audit.log.size, len(order))
    figure, axes = _new()
    low, high = found.low[order], found.high[order]
    axes.fill_between(place, low, high, color=BLUE, alpha=0.25, linewidth=0, label="95% interval")
    axes.plot(place, found.estimate[order], color=BLUE, linewidth=1.5, label="rate")
    axes.set_xlabel("clients, by rate")
    axes.set_ylabel("rounds taken part in")
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    _whole(axes.xaxis)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return _svg(figure, "Participation rates of the clients with intervals")


def shares(audit: Audit) -> str:
    """Draw how many times its share each client, or each group, counts."""
    if audit.groups:
        group = audit.groups[0]
        order = np.argsort(group.ratios)[-40:]
        figure, axes = _new(height=max(1.8, 0.3 * len(order) + 0.8))
        wanted = np.maximum(group.wanted[order], 1e-300)
        ratios = group.ratios[order]
        colours = [ORANGE if ratio > 1 else BLUE for ratio in ratios]
        axes.barh(np.arange(len(order)), ratios, color=colours, alpha=0.8)
        ends = np.abs(np.stack([group.low[order] / wanted, group.high[order] / wanted]) - ratios)
        axes.errorbar(
            ratios, np.arange(len(order)), xerr=ends, fmt="none", ecolor="#333", capsize=3
        )
        axes.set_yticks(np.arange(len(order)), [_short(group.names[g]) for g in order])
        axes.axvline(1, color="#333", linewidth=1)
        axes.set_xlabel("times its share")
        return _svg(figure, f"How many times its share each {group.grouping} counts")
    ratios = np.sort(audit.objectives.plain.weights / np.maximum(audit.objectives.wanted, 1e-300))
    chosen = np.linspace(0, len(ratios) - 1, min(_POINTS, len(ratios))).astype(int)
    place = np.linspace(1, len(ratios), len(chosen))
    figure, axes = _new()
    shown = ratios[chosen]
    axes.fill_between(
        place, shown, 1, where=(shown >= 1).tolist(), color=ORANGE, alpha=0.6, step="mid"
    )
    axes.fill_between(
        place, shown, 1, where=(shown <= 1).tolist(), color=BLUE, alpha=0.6, step="mid"
    )
    axes.axhline(1, color="#333", linewidth=1)
    axes.set_xlabel("clients, by weight")
    _whole(axes.xaxis)
    axes.set_ylabel("times its share")
    axes.set_ylim(bottom=0)
    return _svg(figure, "How many times its share each client counts")


def pattern(audit: Audit) -> str:
    """Draw the pooled autocorrelation against the lag, with the noise around 0."""
    correlation = audit.pattern.correlation
    if correlation is None:
        return ""
    period = audit.pattern.period
    most = min(
        correlation.length // 2, max(60, 3 * period if period else 0, len(correlation.short))
    )
    lags = _thinned(np.arange(1, max(2, most)))
    figure, axes = _new()
    noise = 2 * correlation.noise(lags)
    axes.fill_between(lags, -noise, noise, color=GREY, alpha=0.25, linewidth=0, label="chance")
    axes.plot(lags, correlation.values[lags], color=BLUE, linewidth=1.4, label="correlation")
    if period:
        for multiple in range(period, int(lags[-1]) + 1, period):
            axes.axvline(multiple, color=ORANGE, linewidth=1, linestyle=":")
    axes.set_xlabel("rounds apart")
    axes.set_ylabel("correlation")
    axes.legend(frameon=False)
    return _svg(figure, "Correlation of a client's participation in rounds apart")


def window(audit: Audit) -> str:
    """Draw the irregularity of windows against their length."""
    found = audit.regularity
    figure, axes = _new()
    axes.plot(
        found.periods, np.maximum(found.values, 1e-9), color=BLUE, label="mean of the windows"
    )
    axes.plot(found.periods, np.maximum(found.worst, 1e-9), color=GREY, linewidth=1, label="worst")
    target = found.floor + found.tolerance
    axes.axhline(target, color=ORANGE, linewidth=1, linestyle="--", label="near enough")
    if found.period:
        axes.axvline(found.period, color=GREEN, linewidth=1)
        axes.annotate(f" P = {found.period}", (found.period, target), color=GREEN, va="bottom")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.set_xlabel("window P, in rounds")
    axes.set_ylabel("N Σ (q̄ − a)²")
    axes.legend(frameon=False, loc="lower left")
    return _svg(figure, "Irregularity of windows against their length")


def _thinned(lags: NDArray[np.int64]) -> NDArray[np.int64]:
    return lags if len(lags) <= 2000 else lags[:: -(-len(lags) // 2000)]


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _whole(*axes: Axis) -> None:
    """Label axes that count with whole numbers."""
    for axis in axes:
        axis.set_major_locator(mpl.ticker.MaxNLocator("auto", integer=True))
        axis.set_major_formatter("{x:,.0f}")


def _new(height: float = 2.6) -> tuple[Figure, Axes]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.0, height), layout="constrained")
        return figure, figure.subplots()


def _svg(figure: Figure, title: str) -> str:
    """Return the figure as SVG that fills its column, with a title for those who do not see it."""
    text = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{title}"', svg, count=1
    )
    prefix = re.sub(r"\W", "", title)[:24]  # ids must differ between the figures of a page
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return svg.replace("DejaVu Sans", "inherit")
