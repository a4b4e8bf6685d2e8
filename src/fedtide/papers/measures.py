"""What is read off a run to be compared with what was printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from fedtide.errors import InvalidInputError
from fedtide.validation import one_of

Take = Literal["last", "mean", "best", "first-below", "first-above", "worst-of-last"]


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Args:
        metric: a column of the run's metrics.
        title: for people; None: the metric.
        take: "last", the last evaluation; "mean", the mean of the evaluations in the last `rounds`
            rounds; "best", the best of all; "first-below" and "first-above", the first evaluated
            round in which the metric is at most, or at least, `target`; "worst-of-last", the
            evaluation that 90 % of the last tenth of the evaluations are no worse than.
        rounds: the length of the window of "mean".
        target: of "first-below" and "first-above".
        better: which way is better.
        percent: whether it is a share, to be shown in per cent.
        digits: behind the point, for people.

    Raises:
        InvalidInputError: an unknown word, or no window or target where one is needed.

    >>> metrics = pl.DataFrame({"round": [0, 10, 20], "loss": [3.0, 1.0, 0.5]})
    >>> Measure("loss", take="first-below", target=1.0).of(metrics)
    10.0
    """

    metric: str
    title: str | None = None
    take: Take = "last"
    rounds: int | None = None
    target: float | None = None
    better: Literal["lower", "higher"] = "lower"
    percent: bool = False
    digits: int = 2

    def __post_init__(self) -> None:
        one_of("take", self.take, Take)
        one_of("better", self.better, Literal["lower", "higher"])
        if self.take == "mean" and self.rounds is None:
            raise InvalidInputError(
                "rounds: missing; say over how many of the last rounds to take the mean"
            )
        if self.take.startswith("first") and self.target is None:
            raise InvalidInputError("target: missing; say what is to be reached")

    def of(self, metrics: pl.DataFrame) -> float | None:
        """Return the measure of a run with these metrics; None: never reached, or not there."""
        if self.metric not in metrics.columns:
            return None
        rounds, values = metrics["round"].to_numpy(), metrics[self.metric].to_numpy().astype(float)
        if self.take.startswith("first"):
            return self._first(rounds, values)
        if self.take == "mean":
            assert self.rounds is not None
            values = values[rounds > rounds[-1] - self.rounds]
        scale = 100.0 if self.percent else 1.0
        return scale * float(self._taken(values))

    def _taken(self, values: np.ndarray) -> float:
        best, worst = (np.max, 0.1) if self.better == "higher" else (np.min, 0.9)
        if self.take == "best":
            return float(best(values))
        if self.take == "worst-of-last":
            return float(np.quantile(values[-max(1, len(values) // 10) :], worst))
        return float(np.mean(values) if self.take == "mean" else values[-1])

    def _first(self, rounds: np.ndarray, values: np.ndarray) -> float | None:
        assert self.target is not None
        below = self.take == "first-below"
        reached = np.flatnonzero(values <= self.target if below else values >= self.target)
        return float(rounds[reached[0]]) if len(reached) else None

    def show(self, values: Sequence[float], std: float | None = None) -> str:
        """Return a mean for people, with its standard deviation if there is one."""
        mean = f"{np.mean(values):.{self.digits}f}"
        return mean if std is None else f"{mean} ± {std:.{self.digits}f}"
