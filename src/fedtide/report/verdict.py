"""Which method does best, how clearly, and which diverged: below each table of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console

from fedtide.metric_direction import is_share
from fedtide.report.comparison import comparison_table, format_mean
from fedtide.report.grouping import Conditions, Groups
from fedtide.report.summary import (
    Floats,
    has_diverged,
    last_values,
    lower_is_better,
    mean_and_std,
    spell_metric,
    worst_tenth_metric,
)
from fedtide.student_interval import t_margin

_FEWEST = 3
"""Seeds that tell methods apart: with two, a chance that both differ alike would decide."""


def print_comparison(conditions: Conditions, console: Console) -> None:
    """Print a table and the verdict for each condition, under its name if there are several."""
    for number, (name, groups) in enumerate(conditions.items()):
        if len(conditions) > 1:
            console.print("\n" * (number > 0) + name, markup=False)
        console.print(comparison_table(groups))
        if len(groups) > 1:
            console.print(verdict(groups), markup=False, highlight=False, soft_wrap=True)


def verdict(groups: Groups) -> str:
    """Say in a sentence or two which method does best, how clearly, and which diverged.

    Methods are compared by the worst tenth of the clients where runs have it, and otherwise by the
    headline metric.
    """
    metric = worst_tenth_metric(groups)
    ends = last_values(groups, metric)
    if not ends:
        return f"No method has a {spell_metric(metric)}."
    finite = {method: values for method, values in ends.items() if not has_diverged(values)}
    diverged = [
        f"{method} ({np.sum(~np.isfinite([*values.values()]))} of {len(values)} seeds)"
        for method, values in ends.items()
        if method not in finite
    ]
    sentences = [_rank(finite, metric, lower_is_better(groups, metric))] if finite else []
    sentences += [f"Diverged: {_enumerate(diverged)}."] if diverged else []
    return " ".join(sentences)


def _rank(ends: Mapping[str, Mapping[int, float]], metric: str, is_lower: bool) -> str:
    """Return which method does best and how clearly, given the last values by seed.

    A method is clearly worse if the confidence interval of its mean gap to the best one is above 0.
    The level is 1 − 0.05 / m for m other methods, so that the truly best method is among those
    named with a probability of 95 %.
    """
    means = {method: mean_and_std([*values.values()])[0] for method, values in ends.items()}
    best, *others = sorted(ends, key=lambda method: means[method] * (1 if is_lower else -1))
    text = f"{best} ends with the best {spell_metric(metric)}: "
    text += f"{_format_level(metric, ends[best])}."
    if not others:
        return text
    gaps = {method: _gaps(ends[method], ends[best], is_lower) for method in others}
    if max(map(len, gaps.values())) < _FEWEST:
        return f"{text} Fewer than three common seeds cannot tell whether that is more than chance."
    level = 1 - 0.05 / len(others)
    near = [method for method in others if not _is_above_zero(gaps[method], level)]
    if near:
        return f"{text} Not clearly worse, compared seed by seed: {_enumerate(near)}."
    return f"{text} The worst is {others[-1]} with {_format_level(metric, ends[others[-1]])}."


def _gaps(values: Mapping[int, float], best: Mapping[int, float], is_lower: bool) -> Floats:
    """Return how much worse values are than those of the best method, for each common seed."""
    seeds = [seed for seed in values if seed in best]
    gaps = np.array([values[seed] - best[seed] for seed in seeds], dtype=float)
    return gaps if is_lower else -gaps


def _is_above_zero(gaps: Floats, level: float) -> bool:
    """Return whether the whole confidence interval of the mean gap is; false for few seeds."""
    with np.errstate(over="ignore", invalid="ignore"):
        return len(gaps) >= _FEWEST and bool(gaps.mean() > t_margin(gaps, level))


def _enumerate(names: Sequence[str]) -> str:
    """Return up to four names, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return "; ".join(names[:4]) + more


def _format_level(metric: str, values: Mapping[int, float]) -> str:
    """Return the mean and the standard deviation of a metric, a share as a percentage."""
    scale, unit, digits = (100, " %", 1) if is_share(metric) else (1, "", 4)
    mean, std = mean_and_std([scale * value for value in values.values()])
    return format_mean(mean, std if len(values) > 1 else None, digits) + unit
