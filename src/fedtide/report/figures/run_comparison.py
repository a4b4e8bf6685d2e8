"""The picture of a comparison: how methods learn, who took part, and what each client counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedtide.plotting.style import COLOURS, plain_logarithms, write_figure
from fedtide.report.loading import FinishedRun, by_method

_RASTER_ROWS = 400  # clients in the raster; more are thinned out evenly
_RASTER_ROUNDS = 1200


def draw_comparison(runs: Sequence[FinishedRun], path: Path) -> None:
    """Draw the comparison of finished runs as PNG or PDF, by the suffix of `path`.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    write_figure(comparison_figure(runs), path)


def comparison_figure(runs: Sequence[FinishedRun]) -> Figure:
    """Return how finished runs learn, who took part in the first, and what each client counts."""
    groups = by_method(runs)
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    curves, raster, weights = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    draw_curves(curves, groups)
    draw_raster(raster, runs[0])
    draw_weights(weights, groups)
    return figure


def draw_curves(axes: Axes, groups: Mapping[str, Sequence[FinishedRun]]) -> None:
    """Draw the test accuracy (or the loss), mean ± one standard deviation over the seeds."""
    metric = "test_accuracy" if _all_have(groups, "test_accuracy") else "loss"
    lowest = []
    for colour, (method, group) in zip(_colours(groups), groups.items(), strict=True):
        rounds = group[0].metrics["round"].to_numpy()
        values = np.array([run.metrics[metric].to_numpy() for run in group])
        mean, std = values.mean(axis=0), values.std(axis=0)
        axes.plot(rounds, mean, color=colour, label=method, linewidth=1.6)
        axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
        lowest.append(np.quantile(mean, 0.15))
    axes.set_xlabel("round")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    seeds = max(len(group) for group in groups.values())
    over = f", mean ± std over {seeds} seeds" if seeds > 1 else ""
    if metric == "loss":
        plain_logarithms(axes.yaxis)
        axes.set_ylabel("loss, mean over clients")
        axes.set_title(f"Loss{over}")
    else:
        axes.set_ylim(max(0.0, min(lowest) - 0.02), 1.0)
        axes.set_ylabel("test accuracy")
        axes.set_title(f"Test accuracy{over}")


def draw_raster(axes: Axes, run: FinishedRun) -> None:
    """Draw who took part in which round, the rarest client at the bottom."""
    log = pl.read_parquet(run.folder.participation).filter(pl.col("stage") == "used")
    order = np.argsort(run.clients["participation"].to_numpy(), kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rounds = run.experiment["rounds"]
    shape = (min(len(order), _RASTER_ROWS), min(rounds, _RASTER_ROUNDS))
    image = np.zeros(shape)
    y = rank[log["client"].to_numpy()] * shape[0] // len(order)
    x = log["round"].to_numpy() * shape[1] // rounds
    np.add.at(image, (y, x), 1)
    axes.imshow(
        np.minimum(image, 1),
        aspect="auto",
        origin="lower",
        cmap="Greys",
        interpolation="nearest",
        extent=(0, rounds, 0, len(order)),
    )
    axes.set_xlabel("round")
    axes.set_ylabel("client, rarest first")
    axes.set_title(f"Who took part (seed {run.experiment['seed']})")


def draw_weights(axes: Axes, groups: Mapping[str, Sequence[FinishedRun]]) -> None:
    """Draw how much each client's update counted against 1 / (how often it took part).

    The weights of a method are scaled so that a client counts 1 on average: a method that is
    unbiased for the mean over clients then lies on the diagonal, whatever its server rate is.
    """
    low, high = np.inf, 0.0
    for colour, (method, group) in zip(_colours(groups), groups.items(), strict=True):
        clients = group[0].clients.filter(pl.col("participation") > 0)
        if clients.is_empty():
            continue
        rates = clients["rate" if "rate" in clients.columns else "participation"].to_numpy()
        counts = rates * clients["weight"].to_numpy()  # what each client counts per round
        weights = counts / counts.mean() / rates
        axes.scatter(1 / rates, weights, s=9, color=colour, label=method, alpha=0.7)
        low, high = min(low, (1 / rates).min()), max(high, (1 / rates).max())
    if low <= high:  # somebody took part
        axes.plot([low, high], [low, high], color="0.4", linewidth=1, linestyle="--", zorder=0)
        axes.legend(frameon=False)
    axes.set_xlabel("1 / participation rate $p_n$")
    for axis in (axes.xaxis, axes.yaxis):
        plain_logarithms(axis)
    axes.set_ylabel("relative weight of an update")
    axes.set_title("Weights; on the dashed line all count alike")
    axes.grid(alpha=0.25)


def _colours(groups: Mapping[str, object]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(groups))]


def _all_have(groups: Mapping[str, Sequence[FinishedRun]], metric: str) -> bool:
    return all(metric in run.metrics.columns for group in groups.values() for run in group)
