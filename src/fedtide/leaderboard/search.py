"""The result of a cell: settings by a two-stage search with a tuning seed, then the judged seeds.

Every method has the same budget of trials. The nine local rates γ and the five values of the
method's further number are in rising order; the first stage tries all pairs of every second value,
and the second stage the neighbours of the best pair on both axes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedtide.errors import error_prefix
from fedtide.leaderboard.lockstep import Run, train
from fedtide.leaderboard.problems import ClientTasks
from fedtide.leaderboard.spec import CellPlan
from fedtide.participation import Participants
from fedtide.population import Population
from fedtide.provenance import machine, versions

Pair = tuple[int, int]
"""The positions of γ and of the further number among their values."""


@dataclass(frozen=True)
class Origin:
    """The versions, seeds and machine with which the figures of a cell were computed.

    Args:
        version: of fedtide, PyTorch, NumPy and, in newer records, Python.
        seeds: of the judged figures, in their order.
        tuning_seed: of the trials.
        trainer: what trained the runs: "lockstep", see `fedtide.leaderboard.lockstep`.
        threads: of PyTorch.
        machine: the processor and its number of cores; None: not recorded.
        instructions: the instruction set of the processor that was used; None: not recorded.
    """

    version: str
    seeds: tuple[int, ...]
    tuning_seed: int
    trainer: str
    threads: int
    machine: str | None = None
    instructions: str | None = None

    @classmethod
    def present(cls, plan: CellPlan) -> Origin:
        """Return the origin of a cell that this process runs."""
        return cls(
            versions(["fedtide", "torch", "numpy", "python"]),
            plan.seeds,
            plan.tuning_seed,
            "lockstep",
            torch.get_num_threads(),
            machine(),
            torch.backends.cpu.get_cpu_capability(),
        )


@dataclass(frozen=True)
class CellResult:
    """The recorded result of a cell.

    Args:
        fingerprint: of the settings, see `CellPlan`.
        trials: the figures with the tuning seed, in the order in which they were tried; None: the
            run diverged.
        best: the chosen γ and further number.
        figures: of the judged seeds.
        seconds: of one core, for all runs.
        origin: what they were computed with.
        inputs: a hash of files and own code, see `CellPlan`; None: there are none, or they were
            not recorded.
    """

    fingerprint: str
    trials: tuple[float | None, ...]
    best: tuple[float, float]
    figures: tuple[float | None, ...]
    seconds: float
    origin: Origin
    inputs: str | None = None


def coarse_pairs(rates: int, values: int) -> list[Pair]:
    """Return the pairs of the first stage.

    >>> coarse_pairs(5, 3)
    [(1, 1), (3, 1)]
    """
    return [(i, j) for i in range(1, rates, 2) for j in range(1, values, 2)]


def refined_pairs(best: Pair) -> list[Pair]:
    """Return the pairs of the second stage.

    >>> refined_pairs((3, 1))
    [(2, 1), (4, 1), (3, 0), (3, 2)]
    """
    i, j = best
    return [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)]


def run_cell(plan: CellPlan) -> CellResult:
    """Tune a method and return its figures with the judged seeds.

    Raises:
        InvalidInputError: a method or pattern that cannot be run.
    """
    start, inputs = time.process_time(), plan.inputs
    rates, values = plan.task.lr, plan.tuning.tuned[1]
    with error_prefix("/".join(plan.place)):
        tuning = _draw(plan, plan.tuning_seed)
        pairs = coarse_pairs(len(rates), len(values))
        trials = _figures(plan, pairs, tuning, for_tuning=True)
        pairs += refined_pairs(pairs[_least(trials)])
        refined = _figures(plan, pairs[len(trials) :], tuning, for_tuning=True)
        trials = np.append(trials, refined)
        best = pairs[_least(trials)]
        drawn = (_draw(plan, seed) for seed in plan.seeds)
        judged = [_figures(plan, [best], one, for_tuning=False)[0] for one in drawn]
    return CellResult(
        plan.fingerprint,
        tuple(_plain(trial) for trial in trials),
        (rates[best[0]], values[best[1]]),
        tuple(_plain(figure) for figure in judged),
        round(time.process_time() - start, 1),
        Origin.present(plan),
        inputs,
    )


def tried_settings(plan: CellPlan, result: CellResult) -> list[tuple[float, float]]:
    """Return γ and the further number of each recorded trial, in the order of the trials.

    If several pairs of the first stage share the least recorded value, the second stage is taken to
    have tried the neighbours of one from which the chosen pair can be reached.
    """
    rates, values = plan.task.lr, plan.tuning.tuned[1]
    pairs = coarse_pairs(len(rates), len(values))
    first = [np.inf if trial is None else trial for trial in result.trials[: len(pairs)]]
    found: list[tuple[float, float]] = []
    for pair, value in zip(pairs, first, strict=True):
        if value == min(first) and result.best not in found:
            found = [(rates[i], values[j]) for i, j in pairs + refined_pairs(pair)]
    return found


def _least(figures: NDArray[np.float64]) -> int:
    return int(np.argmin(np.where(np.isfinite(figures), figures, np.inf)))


def _plain(figure: float) -> float | None:
    """Return a figure with six significant digits; None if the run diverged."""
    return float(f"{figure:.6g}") if np.isfinite(figure) else None


@dataclass(frozen=True)
class _Drawn:
    """A problem and participation, drawn with a seed."""

    tasks: ClientTasks
    population: Population
    rounds: Sequence[Participants]


def _draw(plan: CellPlan, seed: int) -> _Drawn:
    tasks = plan.task.draw(plan.clients, seed)
    schedule = plan.participation.schedule
    rates = schedule.known_rates(tasks.population, seed)
    population = replace(tasks.population, rates=rates)
    stream = schedule.start(population, seed)
    return _Drawn(tasks, population, [stream.round(t) for t in range(plan.rounds)])


def _figures(
    plan: CellPlan, pairs: Sequence[Pair], drawn: _Drawn, for_tuning: bool
) -> NDArray[np.float64]:
    """Return the mean figure of each pair over the evaluations in the last third."""
    rates, values = plan.task.lr, plan.tuning.tuned[1]
    settings = [(rates[i], values[j]) for i, j in pairs]
    runs = [Run(*plan.tuning.build(plan.participation, lr, value)) for lr, value in settings]
    models = train(runs, drawn.tasks, drawn.population, drawn.rounds, plan.steps)
    due = evaluation_rounds(plan.rounds, plan.every)
    with np.errstate(invalid="ignore", over="ignore"):
        found = [
            drawn.tasks.figures(torch.stack(outputs), for_tuning)
            for t, outputs in enumerate(models)
            if t in due
        ]
        return np.asarray(np.mean(found, axis=0))


def evaluation_rounds(rounds: int, every: int) -> range:
    """Return the rounds after which a model is evaluated, in the last third, the last included.

    >>> list(evaluation_rounds(rounds=30, every=3))
    [20, 23, 26, 29]
    """
    last = rounds - 1
    return range(last - (last - 2 * rounds // 3) // every * every, rounds, every)
