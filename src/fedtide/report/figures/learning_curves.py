"""Figures of what is learnt: metrics over the rounds, and metrics of the clients."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtide.metric_direction import is_share
from fedtide.plotting.curves import draw_curve, scale_values
from fedtide.plotting.style import (
    Floats,
    Styles,
    new_figure,
    percentages,
    place_legend,
    plain_logarithms,
    thin_out,
)
from fedtide.report.figures import ReportFigure
from fedtide.report.grouping import Conditions, Groups
from fedtide.report.loading import LoadedRun
from fedtide.report.summary import (
    bin_by_rate,
    client_metric,
    count_seeds,
    headline_metric,
    lower_is_better,
    own_test_metrics,
    spell_metric,
)

_NAMES = {"test_accuracy": "test accuracy", "loss": "training loss, mean over clients"}
_BINS = 10
"""The largest number of groups of clients with similar participation rates."""
_COLUMNS = 3  # of panels
_RARELY = (
    " Groups with less than half a participation per client are drawn at half a participation, as "
    "the axis has no 0."
)
_FITTED = (
    " The clients have no test samples of their own: both are measured on the samples used for "
    "fine-tuning, so the gain includes fitting."
)


def learning_figures(groups: Groups, styles: Styles, share: float) -> list[ReportFigure]:
    """Return learning curves of the loss and of the test metrics that all runs have.

    Args:
        groups: the runs of each method.
        styles: of the methods.
        share: the fraction of the evaluations to smooth over.
    """
    runs = [run for group in groups.values() for run in group]
    wanted = ("test_accuracy", *own_test_metrics(runs[0].metrics.columns), "loss")
    found = []
    for metric in wanted:
        if all(metric in run.metrics.columns for run in runs):
            figure, (panel,) = new_figure(3.2)
            draw_curves(panel, groups, metric, styles, share)
            scale_values([panel], metric, lower_is_better(groups, metric))
            place_legend(panel)
            title, caption = _capitalise(_name(metric)), _describe_curves(groups, share)
            found.append(ReportFigure(f"curves-{metric}", title, caption, figure))
    return found


def condition_figures(conditions: Conditions, styles: Styles, share: float) -> list[ReportFigure]:
    """Return the learning curves under all conditions side by side; none if there is only one.

    The panels share their axes if all runs are of one problem.
    """
    if len(conditions) == 1:
        return []
    listed = [group for groups in conditions.values() for group in groups.values()]
    every = {str(number): group for number, group in enumerate(listed)}
    metric, count = headline_metric(every), len(conditions)
    is_alike = len({str(group[0].experiment["problem"]) for group in listed}) == 1
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure, panels = new_figure(2.6 * rows, columns, 3.4 * columns, rows=rows, share=is_alike)
    for number, (panel, (name, groups)) in enumerate(zip(panels, conditions.items(), strict=False)):
        draw_curves(panel, groups, metric, styles, share)
        panel.set_title(textwrap.fill(name, 42))
        panel.tick_params(labelbottom=number >= count - columns or not is_alike)
        panel.set_xlabel("round" if number >= count - columns else "")
        panel.set_ylabel("" if number % columns else _name(metric))
    for panel in panels[count:]:
        panel.remove()
    scale_values(panels[:count], metric, lower_is_better(every, metric))
    place_legend(*panels[:count])
    title = f"{_capitalise(_name(metric))} under each condition"
    return [ReportFigure("conditions", title, _describe_curves(every, share), figure)]


def _describe_curves(groups: Groups, share: float) -> str:
    is_single = max(map(len, groups.values())) == 1
    seeds = "One seed" if is_single else f"Mean ± one standard deviation over {count_seeds(groups)}"
    smoothed = f" Smoothed over {100 * share:.3g}% of the evaluations, as in the papers."
    return f"{seeds}.{smoothed if share else ''}"


def _name(metric: str) -> str:
    return _NAMES.get(metric, spell_metric(metric))


def _capitalise(text: str) -> str:
    """Return the text with its first letter in upper case; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def draw_curves(
    panel: Axes, groups: Groups, metric: str, styles: Styles, share: float = 0.0
) -> None:
    """Draw a metric of each method over the rounds, mean ± one standard deviation over the seeds.

    Args:
        panel: where to draw.
        groups: the runs of each method.
        metric: its name.
        styles: of the methods.
        share: the fraction of the evaluations to smooth over.
    """
    for method, group in groups.items():
        draw_curve(panel, [run.metrics for run in group], metric, method, styles[method], share)
    panel.set_ylabel(_name(metric))


def client_figures(groups: Groups, styles: Styles) -> list[ReportFigure]:
    """Return figures of a client metric by participation rate, and of its distribution.

    Methods are left out if a run has no value of the metric because it diverged.
    """
    columns = {client_metric(run) for group in groups.values() for run in group}
    if len(columns) != 1 or None in columns:
        return []
    column = str(columns.pop())
    groups = {
        method: group
        for method, group in groups.items()
        if all(len(_client_values(run, column)) for run in group)
    }
    if not groups:
        return []
    name = f"client {column.replace('_', ' ').replace('class weighted', 'class-weighted')}"
    slope, order = (
        ("rises", "at most") if lower_is_better(groups, column) else ("falls", "no better than")
    )
    figures = [
        ReportFigure(
            "clients-rates",
            f"{_capitalise(name)} by participation rate",
            f"Clients in at most {_BINS} groups of similar participation rate: the mean of each "
            f"group, averaged over the seeds. Rare clients do worse where the curve {slope} to the "
            f"left.{_RARELY if _has_absent_clients(groups) else ''}",
            _draw(groups, styles, column, _curve_by_rate, "participation rate", name),
        ),
        ReportFigure(
            "clients-spread",
            f"{_capitalise(name)}, distribution over the clients",
            f"The share of clients that are {order} this; sorted for each seed, then averaged.",
            _draw(groups, styles, column, _distribution, name, "share of clients"),
        ),
    ]
    runs = [run for group in groups.values() for run in group]
    if all(f"personalised_{column}" in run.clients.columns for run in runs):
        figures.append(_personalised_figure(groups, styles, column, name))
    return figures


def _has_absent_clients(groups: Groups) -> bool:
    runs = [run for group in groups.values() for run in group]
    return any((run.clients["participation"] == 0).any() for run in runs)


def _personalised_figure(groups: Groups, styles: Styles, column: str, name: str) -> ReportFigure:
    """Return a figure of clients' gains from fine-tuning the final model, by participation rate."""
    sign = -1 if lower_is_better(groups, column) else 1
    gain = sign * (pl.col(f"personalised_{column}") - pl.col(column))
    gained = {
        method: [replace(run, clients=run.clients.with_columns(gain=gain)) for run in group]
        for method, group in groups.items()
    }
    figure = _draw(gained, styles, "gain", _curve_by_rate, "participation rate", f"gain in {name}")
    is_tested = column.startswith(("test_", "class_weighted_test_"))
    figure.axes[0].axhline(0, color="0.4", lw=1, ls="--", zorder=0)
    return ReportFigure(
        "clients-personalised",
        f"Gain in {name} from fine-tuning, by participation rate",
        "How much better the final model serves the clients after each has fine-tuned it on its "
        "own samples. Above the dashed line clients gain from their own data, below it the shared "
        f"model serves them better.{'' if is_tested else _FITTED}",
        figure,
    )


_Curve = Callable[[Sequence[LoadedRun], str], tuple[Floats, Floats]]


def _draw(groups: Groups, styles: Styles, column: str, curve: _Curve, x: str, y: str) -> Figure:
    figure, (panel,) = new_figure(3.0)
    look: dict[str, Any] = {"marker": "o", "ms": 3.5}
    if curve is _distribution:
        look = {"drawstyle": "steps-post"}
    for method, group in groups.items():
        panel.plot(*curve(group, column), label=method, lw=1.5, **look, **styles[method])
    if curve is _distribution:
        percentages(panel.yaxis)
    else:
        plain_logarithms(panel.xaxis)
    if is_share(column):
        percentages(panel.xaxis if curve is _distribution else panel.yaxis)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(alpha=0.25)
    place_legend(panel)
    return figure


def _curve_by_rate(group: Sequence[LoadedRun], column: str) -> tuple[Floats, Floats]:
    bins = min(_BINS, *(len(_client_values(run, column)) for run in group))
    found = [bin_by_rate(run, column, bins) for run in group]
    least = [0.5 / run.ended for run in group]  # in place of rate 0 on a logarithmic axis
    rates = [np.maximum(x, low) for (x, _), low in zip(found, least, strict=True)]
    values = np.mean([y for _, y in found], axis=0)
    # clients of equal rate form one group, because their order is arbitrary
    distinct, group_of = np.unique(np.mean(rates, axis=0).round(12), return_inverse=True)
    return distinct, np.bincount(group_of, values) / np.bincount(group_of)


def _client_values(run: LoadedRun, column: str) -> pl.Series:
    """Return a column of the clients' table without the clients that have no value."""
    return run.clients[column].fill_nan(None).drop_nulls()


def _distribution(group: Sequence[LoadedRun], column: str) -> tuple[Floats, Floats]:
    """Return values, and for each the share of the clients that are at most that; starts with 0."""
    ordered = [np.sort(_client_values(run, column)) for run in group]
    steps = max(map(len, ordered))
    k = np.arange(1, steps + 1)
    # The (k / steps)-quantile: the smallest value that at least this share does not exceed.
    values = np.mean([one[-(-k * len(one) // steps) - 1] for one in ordered], axis=0)
    chosen, thin = thin_out(values)
    return np.append(thin[:1], thin), np.append(0.0, (chosen + 1) / steps)
