"""The figures of what clients count: their weights, and the objective that was minimised."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedtide.plotting.style import (
    Floats,
    Picture,
    axes,
    legend,
    over_rounds,
    plain_logarithms,
    styles,
    thinned,
)
from fedtide.report.loading import FinishedRun
from fedtide.report.summary import Groups, influence, settings
from fedtide.report.weight_replay import history


def weights(groups: Groups) -> list[Picture]:
    """Return the weights of three clients over time, and of all against 1 / p_n."""
    caption = (
        "Scaled so that a client counts 1 in a round on average over all clients: a method that is "
        "unbiased for the mean over clients gives the update of client n the weight 1 / p_n, the "
        "dashed line. First seed of each method that saw the same clients; means over neighbouring "
        "rounds."
    )
    over_time = _weights_over_time(groups)
    against = (
        "Each dot is a client: the mean weight of its updates against 1 / p_n, its participation "
        "rate. On the dashed line all clients count alike."
    )
    pictures = [
        Picture("weights-rates", "Weight of an update against 1 / p_n", against, _weights(groups))
    ]
    if over_time is not None:
        title = "Weights over time of a frequent, a middling and a rare client"
        pictures.append(Picture("weights-time", title, caption, over_time))
    return pictures


def _weights_over_time(groups: Groups) -> Figure | None:
    first = next(iter(groups.values()))[0]
    clients = _three(first)
    found = {
        method: history(group[0])
        for method, group in groups.items()
        if settings(group[0]) == settings(first)
    }
    if not clients or all(one is None for one in found.values()):
        return None
    figure, panels = axes(2.9, len(clients), width=8.4)
    looks = styles(groups)
    rates = _rates(first.clients)
    for panel, client in zip(panels, clients, strict=True):
        for method, one in found.items():
            if one is None:
                continue
            rounds, counted = one.select(client)
            at, mean = _neighbours(rounds, counted)
            panel.plot(
                at,
                mean,
                label=method,
                lw=1.3,
                marker="o" if len(at) < 20 else "",
                ms=3,
                **looks[method],
            )
        panel.axhline(1 / rates[client], color="0.4", lw=1, ls="--", zorder=0)
        panel.set_title(f"client {client}, p = {rates[client]:.3g}")
        panel.set_xlim(0, int(first.experiment["rounds"]))
        over_rounds(panel)
        panel.grid(alpha=0.25)
        plain_logarithms(panel.yaxis)
    panels[0].set_ylabel("weight of an update")
    legend(panels[0], 99)
    return figure


def _three(run: FinishedRun) -> list[int]:
    """Return a frequent, a middling and a rare client of those that came three times or more."""
    counts = run.clients["participation"].to_numpy() * int(run.experiment["rounds"])
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= 3]
    places = sorted({0, len(order) // 2, len(order) - 1}) if len(order) else []
    return [int(order[place]) for place in places]


def _neighbours(rounds: NDArray[np.int64], values: Floats) -> tuple[Floats, Floats]:
    """Return the means of neighbouring entries, so that at most some tens of points are left."""
    parts = np.array_split(np.arange(len(rounds)), min(60, max(1, len(rounds))))
    parts = [part for part in parts if len(part)]
    return (
        np.array([rounds[part].mean() for part in parts]),
        np.array([values[part].mean() for part in parts]),
    )


def _rates(clients: pl.DataFrame) -> Floats:
    """Return p_n of these clients: as the participation has it, or as it was seen."""
    rates: Floats = clients["rate" if "rate" in clients.columns else "participation"].to_numpy()
    return rates


def _weights(groups: Groups) -> Figure:
    figure, (panel,) = axes(3.6)
    ends = []
    for (method, group), style in zip(groups.items(), styles(groups).values(), strict=True):
        came = group[0].clients.filter(pl.col("participation") > 0)
        if came.is_empty():
            continue
        rates, mean = _rates(came), came["weight"].to_numpy()
        relative = mean / (rates * mean).mean()
        panel.scatter(
            1 / rates, relative, s=8, color=style["color"], label=method, alpha=0.6, rasterized=True
        )
        ends += [float((1 / rates).min()), float((1 / rates).max())]
    if ends:
        panel.plot([min(ends), max(ends)], [min(ends), max(ends)], color="0.4", lw=1, ls="--")
    plain_logarithms(panel.xaxis)
    plain_logarithms(panel.yaxis)
    panel.set_xlabel("1 / participation rate, in rounds")
    panel.set_ylabel("relative weight of an update")
    panel.grid(alpha=0.25)
    legend(panel, len(groups))
    return figure


def objective(groups: Groups) -> Picture:
    """Return how many times its share each client counts in the objective really minimised."""
    figure, (panel,) = axes(3.2)
    for (method, group), style in zip(groups.items(), styles(groups).values(), strict=True):
        found = [shares for run in group if (shares := influence(run)) is not None]
        if found:
            times = np.mean([np.sort(len(shares) * shares) for shares in found], axis=0)
            panel.plot(*thinned(times), label=method, lw=1.6, **style)
    panel.axhline(1, color="0.4", lw=1, ls="--", zorder=0)
    panel.set_xlabel("clients, by influence")
    panel.set_ylabel("times its share")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.25)
    legend(panel, len(groups))
    caption = (
        "A client's influence is the share of its updates in all that moved the model, weights "
        "included: w_n in the Σ w_n F_n that was really minimised. On the dashed line every client "
        "has its share, 1 / N. Sorted for each seed, then averaged."
    )
    return Picture("objective", "Whose objective was minimised", caption, figure)
