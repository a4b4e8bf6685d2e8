"""Figures of how much each client counts: weights of updates, and the objective minimised."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedtide.plotting.style import (
    MARKERS,
    Floats,
    Styles,
    label_rounds,
    new_figure,
    place_legend,
    plain_logarithms,
    shorten,
    thin_out,
)
from fedtide.report.figures import ReportFigure
from fedtide.report.grouping import Groups
from fedtide.report.loading import LoadedRun
from fedtide.report.summary import client_influence, participation_key
from fedtide.report.weight_replay import history

_REFERENCE: dict[str, Any] = {
    "color": "0.4",
    "lw": 1,
    "ls": "--",
    "zorder": 0,
}  # where all clients count alike


def influence_figures(groups: Groups, styles: Styles) -> list[ReportFigure]:
    """Return figures of each client's influence, and of weights of updates by rate and over time.

    Methods whose weights do not tell how much clients count are left out.
    """
    groups = _keep_telling(groups)
    if not groups:
        return []
    figures = [
        ReportFigure(
            "objective",
            "Influence: whose objective was minimised",
            "A client's influence is the share of its updates, weights included, in all that moved "
            "the model: w_n in the Σ w_n F_n that was really minimised. On the dashed line every "
            "client has its share, 1 / N. Sorted for each seed, then averaged.",
            _draw_influence(groups, styles),
        )
    ]
    by_rate, (panel,) = new_figure(3.6)
    draw_weights(panel, groups, styles)
    place_legend(panel)
    figures.append(
        ReportFigure(
            "weights-rates",
            "Weight of an update against 1 / p_n",
            "Each dot is a client: the mean weight of its updates against 1 / p_n, where p_n is "
            "its participation rate. On the dashed line all clients count alike.",
            by_rate,
        )
    )
    over_time = _draw_weights_over_time(groups, styles)
    if over_time is not None:
        figures.append(
            ReportFigure(
                "weights-time",
                "Weights over time of a frequent, a median and a rare client",
                "Scaled so that a client counts 1 per round on average over all clients: a method "
                "that is unbiased for the mean over clients gives client n's update the weight "
                "1 / p_n, the dashed line. First seed of each method with the same participation; "
                "means over neighbouring rounds.",
                over_time,
            )
        )
    return figures


def _keep_telling(groups: Groups) -> Groups:
    """Return the methods that used updates and whose weights tell how much each client counts."""
    return {
        method: group
        for method, group in groups.items()
        if any(client_influence(run) is not None for run in group)
    }


def _draw_influence(groups: Groups, styles: Styles) -> Figure:
    figure, (panel,) = new_figure(3.2)
    for method, group in groups.items():
        found = [shares for run in group if (shares := client_influence(run)) is not None]
        if found:
            times = np.mean([np.sort(len(shares) * shares) for shares in found], axis=0)
            marker = "o" if len(times) == 1 else ""  # a single point has no line
            places, shown = thin_out(times)
            panel.plot(
                places + 1, shown, label=method, lw=1.6, marker=marker, ms=4, **styles[method]
            )
    panel.axhline(1, **_REFERENCE)
    panel.set_xlabel("clients, by influence")
    panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    panel.set_ylabel("times its share")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.25)
    place_legend(panel)
    return figure


def draw_weights(panel: Axes, groups: Groups, styles: Styles) -> None:
    """Draw the mean weight of each client's updates against 1 / p_n, for one seed of each method.

    The weights of a method are scaled so that a client counts 1 per round on average: a method
    that is unbiased for the mean over clients lies on the diagonal, whatever its server rate.
    Methods whose weights do not tell how much clients count are left out.
    """
    ends, groups = [], _keep_telling(groups)
    if not groups:
        text = "The weights of updates do not tell\nhow much clients count here"
        panel.text(0.5, 0.5, text, ha="center", va="center", transform=panel.transAxes)
    for method, group in groups.items():
        seen = group[0].clients.filter(pl.col("participation") > 0)
        if seen.is_empty():
            continue
        rates, mean = _rates(seen), seen["weight"].to_numpy()
        relative = mean / (rates * mean).mean()
        panel.scatter(
            1 / rates,
            relative,
            s=8,
            color=styles[method]["color"],
            marker=MARKERS[styles[method]["linestyle"]],
            label=method,
            alpha=0.6,
            rasterized=True,
        )
        ends += [float((1 / rates).min()), float((1 / rates).max())]
    if ends:
        panel.update_datalim([(end, end) for end in ends])
    plain_logarithms(panel.xaxis)
    plain_logarithms(panel.yaxis)
    if ends:  # the diagonal, over the whole panel: all rates may be equal
        panel.set_xlim(panel.get_xlim())
        panel.set_ylim(panel.get_ylim())
        panel.axline((1, 1), (10, 10), **_REFERENCE)
    panel.set_xlabel("1 / participation rate, in rounds")
    panel.set_ylabel("relative weight of an update")
    panel.grid(alpha=0.25)


def _draw_weights_over_time(groups: Groups, styles: Styles) -> Figure | None:
    key = participation_key(next(iter(groups.values()))[0])
    alike = {m: group[0] for m, group in groups.items() if participation_key(group[0]) == key}
    first = max(  # others may drop updates
        alike.values(), key=lambda run: run.clients["participation"].sum()
    )
    clients = _typical_clients(first)
    histories = {
        method: [found.select(client) for client in clients]
        for method, run in alike.items()
        if clients and (found := history(run)) is not None
    }
    if not histories:
        return None
    figure, panels = new_figure(2.9, len(clients), width=8.4)
    rates = _rates(first.clients)
    for i, (panel, client) in enumerate(zip(panels, clients, strict=True)):
        for method, selected in histories.items():
            rounds, weights = _average_neighbours(*selected[i])
            marker = "o" if len(rounds) < 20 else ""
            panel.plot(rounds, weights, label=method, lw=1.3, marker=marker, ms=3, **styles[method])
        panel.axhline(1 / rates[client], **_REFERENCE)
        name = shorten(str(first.clients["client"][client]))
        panel.set_title(f"client {name}, p = {rates[client]:.3g}")
        panel.set_xlim(0, first.ended)
        label_rounds(panel)
        panel.grid(alpha=0.25)
        plain_logarithms(panel.yaxis)
    panels[0].set_ylabel("weight of an update")
    place_legend(*panels)
    return figure


def _typical_clients(run: LoadedRun) -> list[int]:
    """Return a frequent, a median and a rare client among those used in three rounds or more.

    They are rows of the table of clients.
    """
    counts = run.clients["participation"].to_numpy() * run.ended
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= 3]
    places = sorted({0, len(order) // 2, len(order) - 1}) if len(order) else []
    return [int(order[place]) for place in places]


def _average_neighbours(rounds: NDArray[np.int64], values: Floats) -> tuple[Floats, Floats]:
    """Return the means of groups of neighbouring entries, at most 60 points."""
    parts = np.array_split(np.arange(len(rounds)), min(60, max(1, len(rounds))))
    parts = [part for part in parts if len(part)]
    return (
        np.array([rounds[part].mean() for part in parts]),
        np.array([values[part].mean() for part in parts]),
    )


def _rates(clients: pl.DataFrame) -> Floats:
    """Return p_n of these clients: exact if the participation defines it, else as observed."""
    rates: Floats = clients["rate" if "rate" in clients.columns else "participation"].to_numpy()
    return rates
