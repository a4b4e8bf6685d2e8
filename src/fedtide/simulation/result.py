"""What a run returns: tables, the model, a summary and a figure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from fedtide.errors import InvalidInputError, did_you_mean, quantify
from fedtide.metric_direction import lower_is_better
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run_labels import label_method
from fedtide.summary_text import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run.

    Args:
        model: the model after the last round, or what the algorithm recommends instead, (d,).
        metrics: one row per evaluation: `round` (the number of completed rounds), with `timing`
            `hours` (the simulated time), the problem's metrics, and the spread of each client
            metric.
        participation: the log: round, client, stage, weight, and with `timing` started and time.
        clients: one row per client: samples, participation, mean weight and last metrics.
        state: the algorithm's final state.
        trainer: the trainer that was used, and why.
        timings: seconds spent, and rounds per second.
        experiment: what was run.
        plain: the same as plain data, from when the run started: data and networks, which may have
            been changed since, are described by hashes. labels stand for what has no import
            path.
        buffers: the running statistics of the network, (d_b,), or (N, d_b) if every client keeps
            its own; None if it has none.
        iterates: x_0, ..., x_T, shape (rounds + 1, d); None unless `record_iterates` is set.
        out: the run folder; None for a run in memory.
        stopped: why a callback ended the run before its last round; empty otherwise.
        network: the trained network, for `module`; None: the problem has none.
        classes: the class names, in the order of the network's outputs; None: the target is not
            text.
        held_out: the rows of `Supervised.train`, counted from 0, that `test` as a share has set
            aside; None: it is not a share.
    """

    model: NDArray[Any]
    metrics: pl.DataFrame
    participation: pl.DataFrame
    clients: pl.DataFrame
    state: Any
    trainer: str
    timings: dict[str, float]
    experiment: Experiment
    plain: Mapping[str, Any]
    buffers: NDArray[Any] | None = None
    iterates: NDArray[Any] | None = None
    out: Path | None = None
    stopped: str = ""
    network: nn.Module | None = None
    classes: tuple[str, ...] | None = None
    held_out: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        last = _last_metrics(self.metrics)
        shown = [name for name in ("test_accuracy", "loss") if name in last] or list(last)[:2]
        values = ", ".join(f"{name} {last[name]:.4g}" for name in shown)
        return f"Result({label_method(self.plain)}, {self._rounds()}: {values})"

    def summary(self) -> Summary:
        """Return the method, rounds, last metrics, speed and trainer as a short text."""
        lines = [f"{label_method(self.plain)}, seed {self.experiment.seed}, {self._rounds()}"]
        if self.stopped:
            lines.append(f"stopped early: {self.stopped}")
        last = _last_metrics(self.metrics)
        width = max(map(len, last), default=0)
        lines += [f"  {name:<{width}}  {value:.4g}" for name, value in last.items()]
        lines.append(f"{self.timings['rounds_per_second']:,.4g} rounds/s, trainer {self.trainer}")
        return Summary("\n".join(lines))

    def plot(self, metric: str | None = None) -> Figure:
        """Return a figure of a metric over the rounds.

        Args:
            metric: a column of `metrics`; None: test accuracy, or else the loss.

        Raises:
            InvalidInputError: the run has no such metric.
        """
        return _plot([self], metric)

    def module(self, model: NDArray[np.floating] | None = None) -> nn.Module:
        """Return the trained network in evaluation mode.

        If every client keeps its own buffers, the network has their mean. It takes the inputs of
        training: columns of numbers as they were given, and pixels standardised as (x / 255 - mean)
        / std, where mean and std are 0.5 unless `Supervised.normalise` says otherwise (each data
        set of `Classification` has its own).

        Args:
            model: the parameters of another model of this run, shape (d,), such as `model` of a
                callback's view or a row of `iterates`; None: those of this result.

        Raises:
            InvalidInputError: the problem has no network, or it has another number of parameters.
        """
        if model is not None and np.shape(model) != self.model.shape:
            raise InvalidInputError(
                f"model: it has shape {np.shape(model)}, and that of this run {self.model.shape}; "
                "give a model of this run"
            )
        if self.network is None:
            raise InvalidInputError("problem: it has no network; use the model vector itself")
        network = copy.deepcopy(self.network)
        if model is not None:
            trained = [p for p in network.parameters() if p.requires_grad]
            x = torch.as_tensor(model).to(trained[0], copy=True)
            nn.utils.vector_to_parameters(x, trained)
        return network

    def _rounds(self) -> str:
        """Return the number of rounds as text, such as "40 of 100 rounds" if stopped early."""
        rounds = quantify(self.experiment.rounds, "round")
        return f"{int(self.metrics['round'][-1]):,} of {rounds}" if self.stopped else rounds


class Results(Sequence[Result]):
    """The results of one experiment under several seeds: a sequence of one `Result` per seed.

    Args:
        runs: the result of each seed, in order.
    """

    def __init__(self, runs: Sequence[Result]) -> None:
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | Sequence[Result]:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._runs)

    def __repr__(self) -> str:
        return "Results(" + ", ".join(self.summary().splitlines()[:1]) + ")"

    @property
    def seeds(self) -> list[int]:
        """The seed of each result."""
        return [run.experiment.seed for run in self]

    @property
    def metrics(self) -> pl.DataFrame:
        """One row per seed and evaluation: `seed`, then the columns of `Result.metrics`."""
        tables = [
            run.metrics.select(pl.lit(seed, pl.Int64).alias("seed"), pl.all())
            for seed, run in self._by_seed()
        ]
        return pl.concat(tables, how="diagonal_relaxed")

    def summary(self) -> Summary:
        """Return the mean and standard deviation of the last metrics over the seeds, as a text.

        If only some seeds have a metric, such as balanced accuracy, the text says how many.
        """
        lines = [f"{label_method(self[0].plain)}, seeds {', '.join(map(str, self.seeds))}"]
        stopped = [(seed, run.stopped) for seed, run in self._by_seed() if run.stopped]
        lines += [f"seed {seed} stopped early: {reason}" for seed, reason in stopped]
        last = [_last_metrics(run.metrics) for run in self]
        names = dict.fromkeys(name for one in last for name in one)
        width = max(map(len, names), default=0)
        for name in names:
            values = np.array([one[name] for one in last if name in one])
            some = "" if len(values) == len(last) else f"  ({len(values)} of {len(last)} seeds)"
            with np.errstate(over="ignore", invalid="ignore"):  # a loss may be infinite
                std = values.std(ddof=1) if len(values) > 1 else np.nan
                spread = f" ± {std:.2g}" if np.isfinite(std) else ""
                lines.append(f"  {name:<{width}}  {values.mean():.4g}{spread}{some}")
        return Summary("\n".join(lines))

    def plot(self, metric: str | None = None) -> Figure:
        """Return a figure of a metric over the rounds: mean ± standard deviation over the seeds.

        Seeds without the metric are left out.

        Args:
            metric: a column of `metrics`; None: test accuracy, or else the loss.

        Raises:
            InvalidInputError: no run has such a metric.
        """
        return _plot(self, metric)

    def _by_seed(self) -> Iterator[tuple[int, Result]]:
        return zip(self.seeds, self, strict=True)


def _last_metrics(metrics: pl.DataFrame) -> Mapping[str, float]:
    """Return the last value of each metric; of the clients' metrics, only the worst tenth."""
    last = metrics.row(-1, named=True)
    return {
        name: value
        for name, value in last.items()
        if name != "round"
        and value is not None
        and (not name.startswith("client_") or name.endswith("_worst_tenth"))
    }


def _plot(runs: Sequence[Result], metric: str | None) -> Figure:
    """Draw a metric of runs that differ in the seed; several are drawn as a mean with a band."""
    from fedtide.plotting.curves import draw_curve, scale_values
    from fedtide.plotting.style import method_styles, new_figure

    known = [n for n in dict.fromkeys(n for r in runs for n in r.metrics.columns) if n != "round"]
    if metric is None:
        metric = "test_accuracy" if "test_accuracy" in known else known[0]
    if metric not in known:
        raise InvalidInputError(f"metric: the run has no {metric!r}; {did_you_mean(metric, known)}")
    tables = [run.metrics for run in runs if metric in run.metrics.columns]
    label = label_method(runs[0].plain)
    figure, (panel,) = new_figure(3.2)
    draw_curve(panel, tables, metric, label, method_styles([label])[label])
    scale_values([panel], metric, lower_is_better(metric))
    seeds = f": mean ± standard deviation over {len(tables)} seeds" if len(tables) > 1 else ""
    panel.set_title(f"{label}{seeds}")
    panel.set_ylabel(metric.replace("_", " "))
    return figure
