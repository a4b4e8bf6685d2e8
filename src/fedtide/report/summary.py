"""Quantities derived from finished runs: targets reached, influence, bins by participation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.metric_direction import is_share
from fedtide.report.grouping import Groups
from fedtide.report.loading import LoadedRun
from fedtide.student_interval import t_margin

Floats = NDArray[np.float64]


def lower_is_better(groups: Groups, metric: str) -> bool:
    """Return whether a smaller value of a metric is better, as recorded by these runs."""
    first = next(iter(groups.values()))[0]
    return first.lower_is_better(metric)


def own_test_metrics(names: Iterable[str]) -> list[str]:
    """Return the problem's own test metrics, or the test loss if there is no other test metric.

    Recalls of single classes are left out.

    >>> own_test_metrics(["loss", "test_loss", "test_mae"]), own_test_metrics(["loss", "test_loss"])
    (['test_mae'], ['test_loss'])
    """
    names = list(dict.fromkeys(names))
    own = [name for name in names if re.fullmatch(r"test_(?!(accuracy|loss)$|recall_).+", name)]
    has_other = own or "test_accuracy" in names or "test_loss" not in names
    return own if has_other else ["test_loss"]


def headline_metric(groups: Groups) -> str:
    """Return the metric of default targets, and of verdicts without metrics of single clients.

    It is the test accuracy if all runs have it, the test loss if that is their only test metric,
    and otherwise the training loss.
    """
    runs = [run for group in groups.values() for run in group]
    if all("test_accuracy" in run.metrics.columns for run in runs):
        return "test_accuracy"
    is_only_loss = all(own_test_metrics(run.metrics.columns) == ["test_loss"] for run in runs)
    return "test_loss" if is_only_loss else "loss"


def worst_tenth_metric(groups: Groups) -> str:
    """Return the headline metric of the worst tenth of the clients, or else for all of them."""
    metric = headline_metric(groups)
    runs = [run for group in groups.values() for run in group]
    for worst in (f"client_{metric}_worst_tenth", f"client_class_weighted_{metric}_worst_tenth"):
        if metric != "loss" and all(worst in run.metrics.columns for run in runs):
            return worst
    return metric


def spell_metric(metric: str) -> str:
    """Return a metric in words.

    >>> spell_metric("client_class_weighted_test_accuracy_worst_tenth")
    'test accuracy of the worst tenth of clients'
    """
    name = re.sub("^client_(?:class_weighted_)?(.+)_worst_tenth$", r"\1", metric).replace("_", " ")
    return name if "worst_tenth" not in metric else f"{name} of the worst tenth of clients"


def count_seeds(groups: Groups) -> str:
    """Return the number of seeds per method as text, such as "5 seeds" or "1 to 5 seeds"."""
    fewest, most = (pick(map(len, groups.values())) for pick in (min, max))
    numbers = f"{fewest} to {most}" if fewest < most else f"{most}"
    return f"{numbers} seed{'s' if most > 1 else ''}"


def last_values(groups: Groups, metric: str) -> dict[str, dict[int, float]]:
    """Return the last value of a metric by seed, for the methods whose runs all have it."""
    found = {
        method: {run.experiment["seed"]: run.final_value(metric) for run in group}
        for method, group in groups.items()
    }
    return {
        method: {seed: value for seed, value in values.items() if value is not None}
        for method, values in found.items()
        if None not in values.values()
    }


def has_diverged(values: Mapping[int, float]) -> bool:
    """Return whether any run ended with a value that is not finite."""
    return not np.isfinite(list(values.values())).all()


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation, which is 0 for one value; NaN for none.

    Values of diverged runs may be infinite, or have infinite squares.
    """
    if not values:
        return float("nan"), float("nan")
    with np.errstate(over="ignore", invalid="ignore"):
        std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return float(np.mean(values)), std


Estimate = tuple[float, float]
"""A mean over seeds, and half the length of its 95 % t interval: 0 for one seed, NaN for none."""


@dataclass(frozen=True)
class TargetRow:
    """What it takes a method to reach a target.

    Args:
        method: its name.
        reached: how many of its runs reach the target.
        runs: how many runs it has.
        rounds, updates: over the runs that reach it.
        hours: of simulated time; None if rounds have no duration.
        exchanged: the bytes that clients receive and send for these updates, at 4 bytes per number;
            None if they are not known.
    """

    method: str
    reached: int
    runs: int
    rounds: Estimate
    updates: Estimate
    hours: Estimate | None
    exchanged: Estimate | None


@dataclass(frozen=True)
class Target:
    """A level of a metric, and what it takes each method to reach it.

    Args:
        metric: its name.
        level: reached from below, or from above if lower is better; NaN if all methods diverged.
        rows: one for each method; empty if there is no level.
    """

    metric: str
    level: float
    rows: list[TargetRow]


def measure_target(groups: Groups, wanted: str | None = None) -> Target:
    """Return the rounds, updates, hours and bytes that each method needs to reach a level.

    Args:
        groups: the runs of each method.
        wanted: METRIC=LEVEL; None: the level of the headline metric that all methods reach, leaving
            out methods with a diverged run.

    Raises:
        InvalidInputError: not METRIC=LEVEL, or some run lacks the metric.
    """
    if wanted:
        metric, level = _parse_target(groups, wanted)
    else:
        metric = headline_metric(groups)
        ends = [v for v in last_values(groups, metric).values() if not has_diverged(v)]
        if not ends:
            return Target(metric, float("nan"), [])
        means = [mean_and_std([*values.values()])[0] for values in ends]
        level = max(means) if lower_is_better(groups, metric) else min(means)
    rows = [_target_row(method, group, metric, level) for method, group in groups.items()]
    return Target(metric, level, rows)


def _parse_target(groups: Groups, wanted: str) -> tuple[str, float]:
    metric, _, level = wanted.partition("=")
    for run in (run for group in groups.values() for run in group):
        known = [name for name in run.metrics.columns if name != "round"]
        if metric not in known:
            names = did_you_mean(metric, known)
            raise InvalidInputError(f"target: {run.folder.path} has no metric {metric!r}; {names}")
    try:
        value = float(level)
    except ValueError:
        raise InvalidInputError(
            f"target: {wanted!r} is not METRIC=LEVEL; write {metric}=0.9"
        ) from None
    if not np.isfinite(value):
        raise InvalidInputError(f"target: {level} is not a finite number; write {metric}=0.9")
    if is_share(metric) and not 0 <= value <= 1:
        hint = f"{value / 100:g}" if 1 < value <= 100 else "0.9"
        raise InvalidInputError(
            f"target: {metric} is a share from 0 to 1, not {level}; write {metric}={hint}"
        )
    return metric, value


def _target_row(method: str, group: Sequence[LoadedRun], metric: str, level: float) -> TargetRow:
    reached = [
        (run, row) for run in group if (row := _first_evaluation(run, metric, level)) is not None
    ]
    updates = [float(run.cohort_sizes[: row["round"]].sum()) for run, row in reached]
    is_timed = all("hours" in run.metrics.columns for run in group)
    sizes = {run.update_bytes for run in group}
    size = sizes.pop() if len(sizes) == 1 else None
    return TargetRow(
        method,
        len(reached),
        len(group),
        _estimate([row["round"] for _, row in reached]),
        _estimate(updates),
        _estimate([row["hours"] for _, row in reached]) if is_timed else None,
        None if size is None else _estimate([size * number for number in updates]),
    )


def _estimate(values: Sequence[float]) -> Estimate:
    margin = float(t_margin(np.array(values))) if len(values) > 1 else 0.0
    return mean_and_std(values)[0], margin if values else float("nan")


def _first_evaluation(run: LoadedRun, metric: str, level: float) -> dict[str, Any] | None:
    """Return the metrics of the first evaluation that reaches the level."""
    values = run.metrics[metric].to_numpy()
    reached = np.flatnonzero(values <= level if run.lower_is_better(metric) else values >= level)
    return run.metrics.row(int(reached[0]), named=True) if len(reached) else None


def client_influence(run: LoadedRun) -> Floats | None:
    """Return each client's share in all that moved the model, shape (N,), summing to 1.

    This is w_n in Σ w_n F_n, the objective that the run really minimised: Σ_t a_t^n normalised over
    n, where a_t^n is the factor with which client n's update entered the step of round t. Return
    None if no update was used, or if weights do not tell how much clients count
    (`Traits.uses_absent_clients`).
    """
    if not run.weights_tell_influence:
        return None
    weights = run.clients["weight"].fill_nan(0.0)
    counted: Floats = (run.clients["participation"] * weights).to_numpy()
    total = float(counted.sum())
    shares: Floats = counted / max(total, 1e-300)
    return shares if total > 0 else None


def l1_skew(run: LoadedRun) -> float | None:
    """Return Σ |w_n − 1/N|: 0 if all clients count alike, at most 2.

    The goal is 1/N for every objective, because weights of an objective scale the losses, not the
    weights of the updates.
    """
    shares = client_influence(run)
    return None if shares is None else float(np.abs(shares - 1 / len(shares)).sum())


def client_metric(run: LoadedRun) -> str | None:
    """Return the column of the clients' table that best tells how well the model serves each.

    Columns measured on test samples come first, and metrics before losses.
    """
    columns = run.clients.columns
    own = [column for column in columns if column.startswith("test_") and column != "test_loss"]
    for column in ("test_accuracy", "class_weighted_test_accuracy", *own, "test_loss"):
        if column in columns:
            return column
    return next((column for column in ("accuracy", "loss") if column in columns), None)


def bin_by_rate(run: LoadedRun, column: str, bins: int) -> tuple[Floats, Floats]:
    """Return the mean rate and the mean of a column in groups of similar participation rate.

    Clients without a value (NaN) are left out.
    """
    table = run.clients.select("participation", column).fill_nan(None).drop_nulls()
    table = table.sort("participation")
    parts = np.array_split(np.arange(len(table)), min(bins, len(table)))
    means = [table[part.tolist()].mean().row(0) for part in parts]
    return np.array([rate for rate, _ in means]), np.array([value for _, value in means])


def participation_key(run: LoadedRun) -> str:
    """Return a text that is equal for two runs with the same participants in every round."""
    keys = ("participation", "selection", "dropout", "timing", "seed", "rounds")
    return str([run.ended, *(run.experiment.get(key) for key in keys)])


def unique_participation(groups: Groups) -> list[tuple[str, LoadedRun]]:
    """Return one run per distinct participation, with the names of the methods that share it.

    A method that drops updates uses fewer of the same participants, so its participation is
    distinct, too.
    """
    found: dict[str, tuple[list[str], LoadedRun]] = {}
    for method, group in groups.items():
        key = f"{participation_key(group[0])} {group[0].cohort_sizes.sum()}"
        found.setdefault(key, ([], group[0]))[0].append(method)
    return [("; ".join(methods), run) for methods, run in found.values()]
