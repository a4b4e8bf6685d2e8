"""The figures of a report: how methods learn, who takes part, and what each client counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

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
from fedtide.report.figures.client_influence import objective, weights
from fedtide.report.figures.participation_raster import presence
from fedtide.report.loading import FinishedRun
from fedtide.report.summary import Groups, by_rate, client_metric, lower_is_better, smoothed

_NAMES = {"test_accuracy": "test accuracy", "loss": "training loss, mean over clients"}


def learning(groups: Groups, smooth: float) -> list[Picture]:
    """Return the learning curves of what all runs have: test accuracy and loss."""
    runs = [run for group in groups.values() for run in group]
    shown = [m for m in ("test_accuracy", "loss") if all(m in r.metrics.columns for r in runs)]
    seeds = max(len(group) for group in groups.values())
    band = f"Mean over {seeds} seeds; the bands are one standard deviation wide on either side."
    caption = (band if seeds > 1 else "One seed.") + (
        f" Smoothed over {smooth:.0%} of the evaluations, as in the papers." if smooth else ""
    )
    return [
        Picture(
            f"curves-{metric}",
            _NAMES[metric].capitalize(),
            caption,
            _curves(groups, metric, smooth),
        )
        for metric in shown
    ]


def _curves(groups: Groups, metric: str, smooth: float) -> Figure:
    figure, (panel,) = axes(3.2)
    lows, ends = [], []
    for (_, group), style in zip(groups.items(), styles(groups).values(), strict=True):
        values = np.array([_values(run, metric, smooth) for run in group])
        rounds = group[0].metrics["round"].to_numpy()
        mean, std = values.mean(axis=0), values.std(axis=0, ddof=1 if len(group) > 1 else 0)
        panel.fill_between(rounds, mean - std, mean + std, color=style["color"], alpha=0.15, lw=0)
        lows.append(float(np.nanquantile(mean, 0.15)))
        ends.append(float(np.nanmin(mean)))
    for (method, group), style in zip(groups.items(), styles(groups).values(), strict=True):
        mean = np.mean([_values(run, metric, smooth) for run in group], axis=0)
        panel.plot(group[0].metrics["round"].to_numpy(), mean, label=method, lw=1.6, **style)
    over_rounds(panel)
    panel.set_ylabel(_NAMES[metric])
    panel.grid(alpha=0.25)
    if lower_is_better(metric):
        plain_logarithms(panel.yaxis)
        panel.set_ylim(bottom=0.7 * max(min(ends), 1e-12))  # a band may reach below 0
    else:
        panel.set_ylim(max(0.0, min(lows) - 0.02), min(1.0, panel.get_ylim()[1]))
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(panel, len(groups))
    return figure


def _values(run: FinishedRun, metric: str, smooth: float) -> Floats:
    values: Floats = run.metrics[metric].to_numpy().astype(np.float64)
    return smoothed(values, smooth) if smooth else values


def clients(groups: Groups) -> list[Picture]:
    """Return how clients fare by how often they take part, and the spread over all of them."""
    columns = {client_metric(run) for group in groups.values() for run in group}
    if len(columns) != 1 or None in columns:
        return []
    column = str(columns.pop())
    name = f"{column.replace('_', ' ')} of the client"
    by_presence = (
        "Clients in ten groups of like participation rate: the mean of each group, averaged over "
        "the seeds. A falling curve to the left means that rare clients fare worse."
    )
    spread = "The share of clients that fare no better than this; sorted for each seed, averaged."
    return [
        Picture(
            "clients-rates",
            "How clients fare by how often they take part",
            by_presence
            if not lower_is_better(column)
            else by_presence.replace("falling", "rising"),
            _drawn(groups, column, _by_rate, "participation rate", name),
        ),
        Picture(
            "clients-spread",
            "How clients fare, all of them",
            spread.replace("no better than", "at most") if lower_is_better(column) else spread,
            _drawn(groups, column, _spread, name, "share of clients"),
        ),
    ]


_Curve = Callable[[Sequence[FinishedRun], str], tuple[Floats, Floats]]


def _drawn(groups: Groups, column: str, curve: _Curve, x: str, y: str) -> Figure:
    figure, (panel,) = axes(3.0)
    for (method, group), style in zip(groups.items(), styles(groups).values(), strict=True):
        marker = "o" if curve is _by_rate else None
        panel.plot(*curve(group, column), label=method, lw=1.5, marker=marker, ms=3.5, **style)
    if curve is _by_rate:
        plain_logarithms(panel.xaxis)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(alpha=0.25)
    legend(panel, len(groups))
    return figure


def _by_rate(group: Sequence[FinishedRun], column: str) -> tuple[Floats, Floats]:
    found = [by_rate(run, column) for run in group]
    rates = np.mean(
        [
            np.maximum(x, 0.5 / run.experiment["rounds"])
            for (x, _), run in zip(found, group, strict=True)
        ],
        axis=0,
    )
    return rates, np.mean([y for _, y in found], axis=0)


def _spread(group: Sequence[FinishedRun], column: str) -> tuple[Floats, Floats]:
    values = np.mean([np.sort(run.clients[column].to_numpy()) for run in group], axis=0)
    _, thin = thinned(values)
    return thin, np.linspace(0, 1, len(thin))


def pictures(groups: Groups, smooth: float = 0.0) -> dict[str, list[Picture]]:
    """Return all figures of a report on these methods, by its parts."""
    return {
        "learning": learning(groups, smooth),
        "presence": presence(groups),
        "weights": [objective(groups), *weights(groups)],
        "clients": clients(groups),
    }
