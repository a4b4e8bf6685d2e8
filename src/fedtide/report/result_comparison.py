"""`ft.compare`: results in memory and run folders side by side, as a table and a figure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from rich.console import Console

from fedtide.errors import InvalidInputError
from fedtide.report.comparison import compare_problems, print_comparison
from fedtide.report.figures.run_comparison import comparison_figure
from fedtide.report.loading import LoadedRun, find_repeats, load_runs
from fedtide.report.table_file import write_table
from fedtide.simulation import Result, Results
from fedtide.simulation.run_folder import RunFolder
from fedtide.spec import without_addresses
from fedtide.validation import expand_home

_logger = getLogger("fedtide")

Comparable = Result | Results | str | Path
"""What can be compared: results, or folders with runs."""

_DEFAULT_NAME = "run"
_WIDTH = 120  # of the table as text, in characters


class Comparison:
    """Runs side by side: one row per method, mean ± standard deviation over its seeds.

    Each problem has its own table and its own row of panels, because losses and accuracies of
    different problems are not comparable.

    Args:
        runs: the runs.
    """

    def __init__(self, runs: Iterable[LoadedRun]) -> None:
        self._runs = list(runs)

    @property
    def frame(self) -> pl.DataFrame:
        """One row per method: `method`, `seeds`, then the mean and `_std` of each column.

        If the runs are of several problems, the first column is the `problem`.
        """
        return compare_problems(self._runs)

    def plot(self) -> Figure:
        """Return a figure of the learning curves, the participation, and the clients' weights."""
        return comparison_figure(self._runs)

    def write_table(self, file: str | Path) -> Path:
        """Write the table, as `fedtide compare --table` does, and return its path.

        Args:
            file: a .md or .tex file (LaTeX with the package booktabs) with what is printed, or a
                .csv file with `frame`; ~ is the home folder.

        Raises:
            InvalidInputError: another suffix, or the file cannot be written.
        """
        file = expand_home(file)
        write_table(self._runs, file)
        return file

    def __repr__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False)
        with console.capture() as captured:
            print_comparison(self._runs, console)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def compare(*runs: Comparable, **labelled: Comparable) -> Comparison:
    """Compare runs as `fedtide compare` does, including results in memory.

    If runs have the same experiment and seed, only the first is shown, and a warning names the
    others (logger "fedtide").

    Args:
        runs: results, results of several seeds, or folders with runs; a method is called by the
            name of its experiment, or else by its type.
        labelled: the same, with the name of the method as keyword.

    Raises:
        InvalidInputError: there is nothing to compare, an argument is neither a result nor a
            folder, or a folder has no run.

    >>> import fedtide as ft
    >>> problem = ft.problems.Quadratic(matrices=[[[1.0]], [[1.0]]], centers=[[0.0], [1.0]])
    >>> results = [
    ...     ft.simulate(
    ...         problem=problem,
    ...         participation=ft.participation.Bernoulli(rates=[0.9, 0.2]),
    ...         algorithm=algorithm,
    ...         local=ft.LocalTraining(steps=1, lr=0.5),
    ...         rounds=4,
    ...         seeds=[1, 2],
    ...         trainer="reference",
    ...     )
    ...     for algorithm in (ft.algorithms.FedAvg(), ft.algorithms.FedAU())
    ... ]
    >>> ft.compare(*results).frame.select("method", "seeds").rows()
    [('fedavg', 2), ('fedau', 2)]
    """
    given = [(None, one) for one in runs] + list(labelled.items())
    loaded = [(label, run) for label, one in given for run in _load(one)]
    if not loaded:
        raise InvalidInputError("runs: nothing to compare; give results or folders of runs")
    found = [
        replace(run, experiment={**run.experiment, "name": label or _name(run.experiment)})
        for label, run in loaded
    ]
    if repeats := find_repeats(found):
        listed = [f"{run.experiment['name']}, seed {run.experiment['seed']}" for run in repeats]
        _logger.warning(
            "compare: left out, because an earlier run has the same experiment and seed: %s",
            "; ".join(listed),
        )
    return Comparison(found)


def _load(one: Comparable) -> Iterator[LoadedRun]:
    """Yield the runs of one argument."""
    if isinstance(one, Result):
        yield _from_result(one)
    elif isinstance(one, Results):
        yield from map(_from_result, one)
    elif isinstance(one, str | Path):
        yield from load_runs([one])
    else:
        raise InvalidInputError(
            f"runs: {one!r:.60} is not a result; give results of ft.simulate or folders of runs"
        )


def _from_result(result: Result) -> LoadedRun:
    return LoadedRun(
        folder=RunFolder(result.out or "memory"),
        experiment=dict(result.plain),
        metrics=result.metrics,
        clients=result.clients,
        rounds_per_second=result.timings["rounds_per_second"],
        ended=int(result.metrics["round"][-1]),
        participation=result.participation,
        given=result.experiment.algorithm,
        dimension=len(result.model),
    )


def _name(plain: Mapping[str, Any]) -> str:
    """Return the name of an experiment, or that of its method if it has none of its own."""
    name, algorithm = plain["name"], plain["algorithm"]
    if name != _DEFAULT_NAME:
        return str(name)
    method = algorithm.get("type", name) if isinstance(algorithm, Mapping) else algorithm
    return without_addresses(str(method))
