"""Callbacks: objects that watch a run, and may end it early."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray
from torch import nn

from fedtide.errors import InvalidInputError, did_you_mean, quantify
from fedtide.metric_direction import lower_is_better
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from fedtide.simulation.metrics import declared_directions
from fedtide.validation import require_at_least, require_whole_number


class RunView:
    """What a callback sees of a run; `stop` ends the run.

    Args:
        run: the run.
        out: its folder; None in memory.

    Attributes:
        out: the run's folder; None in memory.
    """

    def __init__(self, run: Run, out: Path | None = None) -> None:
        self._run = run
        self.out = out
        self._metrics: list[dict[str, Any]] = []

    @property
    def experiment(self) -> Experiment:
        """The experiment that is run."""
        return self._run.experiment

    @property
    def round(self) -> int:
        """The number of completed rounds."""
        return self._run.ended

    @property
    def rounds(self) -> int:
        """The number of rounds that the experiment asks for."""
        return self._run.experiment.rounds

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dict per evaluation, oldest first, including those before an interruption.

        The list and its dicts are this callback's copies: changing them does not change the run.
        """
        rows = self._run.metrics
        self._metrics += map(dict, rows[len(self._metrics) :])  # a long run has very many
        return list(self._metrics)

    @property
    def model(self) -> NDArray[Any]:
        """A copy of the current model, or of what the algorithm recommends instead, (d,)."""
        model: NDArray[Any] = self._run.driver.output.detach().cpu().numpy().copy()
        return model

    def module(self) -> nn.Module:
        """Return the network with the current model in evaluation mode, as `Result.module` does.

        Raises:
            InvalidInputError: the problem has no network.
        """
        return self._run.task.module(self._run.driver.output, self._run.buffer_values)

    @property
    def clients(self) -> pl.DataFrame:
        """One row per client: participation so far, and the metrics of the last evaluation."""
        return self._run.clients_so_far()

    def lower_is_better(self, metric: str) -> bool:
        """Return whether a smaller value of a metric is better, as its problem or name says."""
        evaluation = self._run.evaluation
        declared = {} if evaluation is None else declared_directions(evaluation)
        return lower_is_better(metric, declared)

    def stop(self, reason: str) -> None:
        """End the run after the current round, or after the first one; it counts as finished.

        Args:
            reason: why, for the summary of the run.
        """
        self._run.stopped = reason


class Callback:
    """Watches a run; derive from this class and override the methods you need.

    The methods are called in the process that runs the experiment. With several seeds, one object
    sees one run after another. A resumed run calls `on_start` with the metrics so far; a run that
    has already finished is only read, so no method is called.

    >>> import fedtide as ft
    >>> class Print(ft.callbacks.Callback):
    ...     def on_evaluation(self, run):
    ...         print(run.round, round(run.metrics[-1]["loss"], 4))
    ...         if run.metrics[-1]["loss"] < 0.2:
    ...             run.stop("good enough")
    >>> result = ft.simulate(
    ...     problem=ft.problems.Quadratic(matrices=[[[1.0]], [[1.0]]], centers=[[1.0], [1.0]]),
    ...     participation=ft.participation.Full(),
    ...     algorithm=ft.algorithms.FedAvg(),
    ...     local=ft.LocalTraining(steps=1, lr=0.5),
    ...     rounds=20,
    ...     evaluation={"every": 1},
    ...     callbacks=[Print()],
    ... )
    0 0.5
    1 0.125
    >>> result.stopped
    'good enough'
    """

    def on_activity(self, activity: str) -> None:
        """Called when an activity in which no round ends begins or ends, also before `on_start`.

        Args:
            activity: such as "preparing the problem", "measuring trainers" or "compiling the local
                steps"; empty when it has ended.
        """

    def on_start(self, run: RunView) -> None:
        """Called before the first round in this process and before the first evaluation."""

    def on_evaluation(self, run: RunView) -> None:
        """Called after each evaluation; `run.metrics[-1]` holds its metrics."""

    def on_round_end(self, run: RunView) -> None:
        """Called after each round, and after its evaluation if one was due."""

    def on_end(self, run: RunView) -> None:
        """Called after the last round, when the results are complete and written."""

    def on_error(self, run: RunView, error: BaseException) -> None:
        """Called when the run is interrupted or fails; the error is raised again afterwards."""


def check_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple.

    Raises:
        InvalidInputError: something in the list is not a callback.
    """
    watchers = tuple(callbacks)
    for watcher in watchers:
        if not isinstance(watcher, Callback):
            raise InvalidInputError(
                f"callbacks: {watcher!r:.60} is not a callback; give objects of classes derived "
                "from ft.callbacks.Callback, in a list"
            )
    return watchers


@dataclass
class EarlyStopping(Callback):
    """Ends a run whose metric has stopped improving.

    It depends on the metrics alone, so a resumed run stops in the same round.

    Args:
        metric: a metric of the evaluations.
        patience: how many evaluations without improvement end the run, at least 1.
        min_delta: an improvement is a value that beats the best one before by more than this, at
            least 0.
        lower_is_better: whether a smaller value is better; None: as the problem says, or else as
            the name suggests (true for losses and errors).

    Raises:
        InvalidInputError: a value outside its range; during a run, the run has no such metric.
    """

    metric: str = "loss"
    patience: int = 5
    min_delta: float = 0.0
    lower_is_better: bool | None = None

    def __post_init__(self) -> None:
        require_whole_number("patience", self.patience)
        require_at_least("min_delta", self.min_delta, 0)

    def on_start(self, run: RunView) -> None:
        self._best, self._since, self._read = math.inf, 0, 0

    def on_evaluation(self, run: RunView) -> None:
        if self.metric not in run.metrics[-1]:
            names = [name for name in run.metrics[-1] if name != "round"]
            raise InvalidInputError(
                f"metric: the run has no {self.metric!r}; {did_you_mean(self.metric, names)}"
            )
        known = self.lower_is_better
        lower = run.lower_is_better(self.metric) if known is None else known
        rows = run.metrics
        for row in rows[self._read :]:
            value = row[self.metric]
            value = math.inf if value is None or math.isnan(value) else value if lower else -value
            self._since += 1
            if value < self._best - self.min_delta:
                self._best, self._since = value, 0
        self._read = len(rows)
        if self._since >= self.patience:
            run.stop(f"{self.metric} did not improve in {quantify(self.patience, 'evaluation')}")
