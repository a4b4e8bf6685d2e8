"""The numbers that are read off a run to compare them with published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from safetensors.numpy import load_file

Take = Literal["last", "mean", "best", "first-below", "first-above", "worst-of-last", "spread"]
Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Args:
        metric: a column of the run's metrics.
        title: its name in tables; None: the metric.
        take: "last", the last evaluation; "mean", the mean of the evaluations in the last `rounds`
            rounds; "best", the best of all; "first-below" and "first-above", the first evaluated
            round in which the metric is at most, or at least, `target`; "worst-of-last", the value
            that 90 % of the last tenth of the evaluations reach or beat; "spread", the standard
            deviation of the evaluations in the last `rounds` rounds.
        rounds: the window of "mean" and "spread".
        target: the threshold of "first-below" and "first-above".
        better: whether lower or higher values are better.
        percent: whether the metric is a share that is shown in per cent.
        digits: decimals in tables.
        diverged: the number with which a run that diverged counts in comparisons, where the paper
            counts it so, as the accuracy of guessing; None: such a run has no number.

    >>> metrics = pl.DataFrame({"round": [0, 10, 20], "loss": [3.0, 1.0, 0.5]})
    >>> Measure("loss", take="first-below", target=1.0).read(metrics)
    10.0
    """

    metric: str
    title: str | None = None
    take: Take = "last"
    rounds: int | None = None
    target: float | None = None
    better: Better = "lower"
    percent: bool = False
    digits: int = 2
    diverged: float | None = None

    @property
    def scale(self) -> float:
        """What the metric is multiplied by."""
        return 100.0 if self.percent else 1.0

    def read(self, metrics: pl.DataFrame) -> float | None:
        """Return the measure of a run; None: the target was never reached, or no such metric."""
        if self.metric not in metrics.columns:
            return None
        rounds, values = metrics["round"].to_numpy(), metrics[self.metric].to_numpy().astype(float)
        if self.take.startswith("first"):
            return self._first_round(rounds, values)
        if self.take in ("mean", "spread"):
            assert self.rounds is not None
            values = values[rounds > rounds[-1] - self.rounds]
        return self.scale * float(self._reduce(values))

    def _reduce(self, values: np.ndarray) -> float:
        best, worst = (np.max, 0.1) if self.better == "higher" else (np.min, 0.9)
        if self.take == "best":
            return float(best(values))
        if self.take == "worst-of-last":
            return float(np.quantile(values[-max(1, len(values) // 10) :], worst))
        if self.take == "spread":
            return float(np.std(values))
        return float(np.mean(values) if self.take == "mean" else values[-1])

    def _first_round(self, rounds: np.ndarray, values: np.ndarray) -> float | None:
        assert self.target is not None
        below = self.take == "first-below"
        reached = np.flatnonzero(values <= self.target if below else values >= self.target)
        return float(rounds[reached[0]]) if len(reached) else None

    def format(self, values: Sequence[float], std: float | None = None) -> str:
        """Return the mean of `values` as text, with its standard deviation if there is one."""
        mean = f"{np.mean(values):z.{self.digits}f}"
        return mean if std is None else f"{mean} ± {std:.{self.digits}f}"


def add_excess_and_model(
    metrics: pl.DataFrame, settings: Mapping[str, Any], model_file: Path
) -> pl.DataFrame:
    """Add `excess`, f(x) − f*, and `x`, the final model in the last row.

    For clients (x − e_n)² in one dimension and f their mean, f* is the variance of the e_n.
    """
    centers = np.asarray(settings["problem"]["centers"], dtype=float)
    (model,) = load_file(model_file).values()
    at_end = [None] * (len(metrics) - 1) + [float(model.item())]
    return metrics.with_columns(
        excess=pl.col("loss") - float(centers.var()), x=pl.Series(at_end, dtype=pl.Float64)
    )


DERIVED_METRICS: dict[str, Callable[[pl.DataFrame, Mapping[str, Any], Path], pl.DataFrame]] = {
    "one-dimensional": add_excess_and_model
}
"""The functions that `derive` may name: from metrics, settings and model file to metrics."""
