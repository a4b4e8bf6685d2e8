"""The figures of the audit page, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.output.sentences import describe_weighting
from fedtide.auditing.recommend.findings import Findings
from fedtide.errors import printable
from fedtide.plotting.raster import draw_raster
from fedtide.plotting.saving import figure_svg
from fedtide.plotting.style import (
    COLOURS,
    GREY,
    new_figure,
    place_legend,
    plain_logarithms,
    shorten,
)

_BLUE, _GREEN, _ORANGE = COLOURS[0], COLOURS[2], COLOURS[4]
_INK = "#333333"
_PART = 1 << 23
"""Entries of a log drawn at a time."""
_MAX_POINTS = 300
"""Maximum clients in a line plot, evenly spaced over all."""
_MAX_LAGS = 2000
_MAX_BARS = 40
_WIDE_NUMBER = 1e5
"""Labels of numbers from here on are so wide that only a few fit on an axis."""
_LEAST_OF_TOLERANCE = 1e-3
"""Windows below this share of the tolerance are drawn at it; strict turns have windows of 0."""


def draw_figures(audit: Findings) -> dict[str, str]:
    """Return the SVG of each figure by name.

    "pattern" is empty without an autocorrelation, "stages" if the log has no stage but "used".
    """
    return {
        "raster": draw_participation(audit),
        "rates": draw_rates(audit),
        "influence": draw_group_influence(audit) if audit.groups else draw_influence(audit),
        "history": draw_history(audit),
        "stages": draw_stages(audit),
        "pattern": draw_autocorrelation(audit),
        "windows": draw_windows(audit),
    }


def draw_participation(audit: Findings) -> str:
    """Draw participation by round (horizontal) and client (vertical, by descending rate)."""
    log = audit.log
    figure, axes = _new_figure(height=2.8)
    draw_raster(axes, _entries(log), log.counts, log.first_round, log.length)
    return figure_svg(figure, "Participation by round and client", "raster")


def _entries(log: ParticipationLog) -> Iterator[tuple[Ints, Ints]]:
    """Yield the log's clients with their rounds, in parts that bound the memory for large logs."""
    for low in range(0, len(log.clients), _PART):
        entries = np.arange(low, min(low + _PART, len(log.clients)))
        rounds = np.searchsorted(log.starts, entries, side="right") - 1
        clients = log.clients[entries].astype(np.int64)
        yield clients, (log.first_round + rounds).astype(np.int64)


def draw_rates(audit: Findings) -> str:
    """Draw every client's rate with its interval, in ascending order."""
    rates = audit.rates
    order = np.argsort(rates.estimate, kind="stable")
    rank, chosen = _sample_ranks(len(order))
    order = order[chosen]
    figure, axes = _new_figure()
    low, high = rates.low[order], rates.high[order]
    line = _marker(len(rank))
    if len(rank) == 1:
        axes.vlines(rank, low, high, color=_BLUE, alpha=0.25, linewidth=4, label="95% interval")
    else:
        axes.fill_between(
            rank, low, high, color=_BLUE, alpha=0.25, linewidth=0, label="95% interval"
        )
    axes.plot(rank, rates.estimate[order], line, color=_BLUE, linewidth=1.5, label="rate")
    axes.set_xlabel("clients, by rate")
    axes.set_ylabel("share of the rounds")
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    _use_whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    place_legend(axes)
    return figure_svg(figure, "Participation rates of the clients with 95% intervals", "rates")


def draw_influence(audit: Findings) -> str:
    """Draw the influence of each client relative to its share, in ascending order."""
    ratios = np.sort(audit.objectives.ratios[audit.objectives.wanted > 0])
    rank, chosen = _sample_ranks(len(ratios))
    ratios = ratios[chosen]
    figure, axes = _new_figure()
    width = rank[1] - rank[0] if len(rank) > 1 else 1.0
    edges = np.append(rank - width / 2, rank[-1:] + width / 2)  # every client has a bar
    for bars, colour in ((np.maximum(ratios, 1), _ORANGE), (np.minimum(ratios, 1), _BLUE)):
        ends = np.append(bars, bars[-1:])
        axes.fill_between(edges, ends, 1, color=colour, alpha=0.6, linewidth=0, step="post")
    axes.axhline(1, color=_INK, linewidth=1)
    axes.set_xlabel("clients, by influence")
    axes.set_ylabel("times its share")
    _use_whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    return figure_svg(figure, "Influence of each client relative to its share", "influence")


def draw_group_influence(audit: Findings) -> str:
    """Draw the influence of each group of the first grouping relative to its share."""
    groups = audit.groups[0]
    with_share = np.flatnonzero(groups.wanted > 0)
    order = with_share[np.argsort(groups.ratios[with_share])][-_MAX_BARS:]
    wanted = groups.wanted[order]
    ratios, places = groups.ratios[order], np.arange(len(order))
    errors = np.abs(np.stack([groups.low[order] / wanted, groups.high[order] / wanted]) - ratios)
    figure, axes = _new_figure(height=max(1.8, 0.3 * len(order) + 0.8))
    colours = [_ORANGE if ratio > 1 else _BLUE for ratio in ratios]
    axes.barh(places, ratios, color=colours, alpha=0.8)
    axes.errorbar(ratios, places, xerr=errors, fmt="none", ecolor=_INK, capsize=3)
    axes.set_yticks(places, [shorten(printable(groups.names[g])) for g in order], parse_math=False)
    axes.axvline(1, color=_INK, linewidth=1)
    axes.set_xlabel("times its share")
    return figure_svg(figure, "Influence of each group relative to its share", "influence")


def draw_history(audit: Findings) -> str:
    """Draw the L1 skew of windows over time, and what chance alone would give."""
    recent = audit.objectives.recent
    assert recent is not None
    ends = audit.log.first_round + recent.ends - 1
    figure, axes = _new_figure(height=2.2)
    axes.plot(ends, recent.skews, "o-", color=_BLUE, markersize=3, linewidth=1.4, label="windows")
    axes.plot(ends, recent.chance, color=GREY, linewidth=1, linestyle="--", label="by chance")
    whole = audit.objectives.in_force.l1_skew
    axes.axhline(whole, color=_ORANGE, linewidth=1, linestyle=":", label="whole log")
    axes.set_xlabel("last round of the window")
    axes.set_ylabel("L1 skew")
    axes.set_ylim(bottom=0)
    _use_whole_numbers(axes.xaxis)
    place_legend(axes)
    return figure_svg(figure, "L1 skew of windows over time", "history")


def draw_stages(audit: Findings) -> str:
    """Draw the L1 skew after each stage with its interval."""
    selection, availability = audit.selection, audit.availability
    if selection is None:
        return ""
    stages = [
        ("available", None if availability is None else availability.objective),
        ("selected", selection.objective),
        ("used", audit.objectives.in_force if selection.weighted else audit.objectives.plain),
    ]
    known = [(name, objective) for name, objective in stages if objective is not None]
    labels = [f"the {name} clients" for name, _ in known]
    places = np.arange(len(labels))[::-1]
    figure, axes = _new_figure(height=0.3 * len(labels) + 0.8)
    for place, (_, objective) in zip(places, known, strict=True):
        low, high = objective.interval
        axes.plot([low, high], [place, place], color=_BLUE, linewidth=2)
        skew = objective.l1_skew if np.isnan(low) else objective.skew.corrected
        axes.plot(skew, place, "o", color=_BLUE, markersize=5)
    axes.set_yticks(places, labels)
    axes.set_xlim(left=0)
    weighting = describe_weighting(audit, selection.weighted)
    axes.set_xlabel(f"L1 skew, {weighting}" if weighting else "L1 skew")
    return figure_svg(figure, "L1 skew after each stage", "stages")


def draw_autocorrelation(audit: Findings) -> str:
    """Draw the pooled autocorrelation against the lag, with the range of chance."""
    correlation, period = audit.pattern.correlation, audit.pattern.period
    if correlation is None:
        return ""
    wanted = max(60, 3 * period if period else 0, len(correlation.significant))
    last = max(2, min(correlation.length // 2, wanted))
    lags = np.arange(1, last, -(-(last - 1) // _MAX_LAGS))
    noise = 2 * correlation.standard_error(lags)
    figure, axes = _new_figure()
    axes.fill_between(lags, -noise, noise, color=GREY, alpha=0.25, linewidth=0, label="chance")
    axes.plot(lags, correlation.values[lags], color=_BLUE, linewidth=1.4, label="autocorrelation")
    if period:
        for multiple in range(period, int(lags[-1]) + 1, period):
            axes.axvline(multiple, color=_ORANGE, linewidth=1, linestyle=":")
    axes.set_xlabel("lag in rounds")
    axes.set_ylabel("autocorrelation")
    place_legend(axes)
    return figure_svg(figure, "Autocorrelation of participation against the lag", "pattern")


def draw_windows(audit: Findings) -> str:
    """Draw the irregularity of windows against their length."""
    regularity = audit.regularity
    figure, axes = _new_figure()
    target = regularity.floor + regularity.tolerance
    shown = np.maximum(regularity.values, _LEAST_OF_TOLERANCE * target)
    line = _marker(len(shown))
    axes.plot(
        regularity.periods, shown, line, color=_BLUE, linewidth=1.5, label="mean over the windows"
    )
    axes.axhline(target, color=_ORANGE, linewidth=1, linestyle="--", label="tolerance")
    if regularity.period:
        axes.axvline(regularity.period, color=_GREEN, linewidth=1)
        place, coordinates = (regularity.period, 1.0), ("data", "axes fraction")
        axes.annotate(
            f"P = {regularity.period}",
            place,
            (0, 2),
            xycoords=coordinates,
            textcoords="offset points",
            ha="center",
            color=_INK,
        )  # above the panel, where no line crosses it
    for axis in (axes.xaxis, axes.yaxis):
        plain_logarithms(axis)
    if len(regularity.periods) == 1:  # a single window: no ticks at fractions of a round
        axes.set_xticks(regularity.periods)
    axes.set_xlabel("window P, in rounds")
    axes.set_ylabel("irregularity N Σ (q̄ − a)²")
    place_legend(axes)
    return figure_svg(figure, "Irregularity of windows against their length", "windows")


def _sample_ranks(count: int) -> tuple[Floats, Ints]:
    """Return ranks 1..count, at most 300 and evenly spaced, and the matching indices."""
    chosen = np.linspace(0, count - 1, min(_MAX_POINTS, count)).astype(np.int64)
    return np.linspace(1, count, len(chosen)), chosen


def _marker(count: int) -> str:
    """Return the format of a line: a single point needs a marker to be seen."""
    return "o" if count == 1 else "-"


def _use_whole_numbers(axis: Axis) -> None:
    low, high = axis.get_view_interval()
    if np.floor(high) - np.ceil(low) < 1:  # one value: ticks at fractions would read the same
        axis.set_major_locator(mpl.ticker.FixedLocator([round((low + high) / 2)]))
    else:
        bins: Literal["auto"] | int = "auto" if abs(high) < _WIDE_NUMBER else 5
        axis.set_major_locator(mpl.ticker.MaxNLocator(bins, integer=True))
    axis.set_major_formatter("{x:,.0f}")


def _new_figure(height: float = 2.6) -> tuple[Figure, Axes]:
    figure, panels = new_figure(height, width=5.0)
    return figure, panels[0]
