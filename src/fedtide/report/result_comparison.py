"""`ft.compare`: results in memory and run folders side by side, as a table and a figure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from logging import getLogger
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure
from rich.console import Console

from fedtide.errors import InvalidInputError
from fedtide.report.comparison import compare_conditions
from fedtide.report.figures.run_comparison import comparison_figure
from fedtide.report.grouping import arrange
from fedtide.report.loading import LoadedRun, find_repeats, load_runs
from fedtide.report.table_file import write_table
from fedtide.report.verdict import print_comparison
from fedtide.simulation import Result, Results
from fedtide.simulation.run_folder import RunFolder
from fedtide.simulation.run_labels import label_method
from fedtide.validation import expand_home

_logger = getLogger("fedtide")

Comparable = Result | Results | str | Path
"""What can be compared: results, or folders with runs."""

_WIDTH = 120  # of the table as text, in characters


class Comparison:
    """Runs side by side: one row per method, mean ± standard deviation over its seeds.

    Each condition, such as a problem or a participation, has its own table and row of panels.

    Args:
        runs: the runs.
    """

    def __init__(self, runs: Iterable[LoadedRun]) -> None:
        self._conditions = arrange(runs)

    @property
    def frame(self) -> pl.DataFrame:
        """One row per method: `method`, `seeds`, then the mean and `_std` of each column.

        If there are several conditions, the first column is the `condition`.
        """
        return compare_conditions(self._conditions)

    def plot(self) -> Figure:
        """Return a figure of the learning curves, the participation, and the clients' weights."""
        return comparison_figure(self._conditions)

    def write_table(self, file: str | Path) -> Path:
        """Write the table, as `fedtide compare --table` does, and return its path.

        Args:
            file: a .md or .tex file (LaTeX with the package booktabs) with what is printed, or a
                .csv file with `frame`; ~ is the home folder.

        Raises:
            InvalidInputError: another suffix, or the file cannot be written.
        """
        file = expand_home(file)
        write_table(self._conditions, file)
        return file

    def __repr__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False)
        with console.capture() as captured:
            print_comparison(self._conditions, console)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def compare(*runs: Comparable, **labelled: Comparable) -> Comparison:
    """Compare runs as `fedtide compare` does, including results in memory.

    If runs have the same experiment and seed, only the first is shown, and a warning names the
    others (logger "fedtide").

    Args:
        runs: results, results of several seeds, or folders with runs; a method is called by the
            type of its algorithm and the fields that differ.
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
    given = [*(("", one) for one in runs), *labelled.items()]
    found = [
        replace(run, name=name)
        for number, (name, one) in enumerate(given, start=1)
        for run in _load(one, f"argument {number}")
    ]
    if not found:
        raise InvalidInputError("runs: nothing to compare; give results or folders of runs")
    if repeats := find_repeats(found):
        methods = [label_method(run.experiment) for run in repeats]
        seeds = [run.experiment["seed"] for run in repeats]
        _logger.warning(
            "compare: left out, because an earlier run has the same experiment and seed: %s",
            "; ".join(f"{m}, seed {s}" for m, s in zip(methods, seeds, strict=True)),
        )
    return Comparison(found)


def _load(one: Comparable, where: str) -> Iterator[LoadedRun]:
    """Yield the runs of one argument; `where` stands for the folder of those in memory."""
    if isinstance(one, Result):
        yield load_result(one, where)
    elif isinstance(one, Results):
        for result in one:
            yield load_result(result, where)
    elif isinstance(one, str | Path):
        yield from load_runs([one])
    else:
        raise InvalidInputError(
            f"runs: {one!r:.60} is not a result; give results of ft.simulate or folders of runs"
        )


def load_result(result: Result, where: str) -> LoadedRun:
    """Return a result as a run to compare; `where` stands for its folder if it has none."""
    return LoadedRun(
        folder=RunFolder(result.out or where),
        experiment=dict(result.plain),
        metrics=result.metrics,
        clients=result.clients,
        rounds_per_second=result.timings["rounds_per_second"],
        ended=int(result.metrics["round"][-1]),
        participation=result.participation,
        given=result.experiment.algorithm,
        dimension=len(result.model),
    )
