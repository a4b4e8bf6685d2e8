"""The result of a cell: settings by a two-stage search with a tuning seed, then the judged seeds.

Every method has the same budget of trials. The nine local rates γ and the five values of the
method's further number are in rising order; the first stage tries all pairs of every second value,
and the second stage the neighbours of the best pair on both axes. Each trial is an ordinary run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from joblib.externals.loky import ProcessPoolExecutor

from fedtide.errors import error_prefix
from fedtide.leaderboard.spec import Cell, Place
from fedtide.provenance import machine, versions
from fedtide.simulation import simulate
from fedtide.simulation.divergence import DivergenceError
from fedtide.spec import session
from fedtide.sweep.records import Records
from fedtide.training.threads import single_threaded

Pair = tuple[int, int]
"""The positions of γ and of the further number among their values."""

OnCell = Callable[[Cell, "CellRecord", float], None]
"""Called with each cell that has ended, and the estimated seconds on one core that remain."""


@dataclass(frozen=True)
class CellRecord:
    """The recorded result of a cell.

    Args:
        problem, pattern, method: the cell.
        fingerprint: of the settings, see `Cell`.
        trials: the figures with the tuning seed, in the order in which they were tried; None: the
            run diverged.
        best: the chosen γ and further number.
        figures: of the judged seeds.
        seconds: of one core, for all runs.
        version: of fedtide, PyTorch, NumPy and, in newer records, Python.
        seeds: of the judged figures, in their order.
        tuning_seed: of the trials.
        trainer: what trained the runs; "lockstep": a trainer of earlier versions.
        threads: of PyTorch.
        machine: the processor and its number of cores; None: not recorded.
        instructions: the instruction set of the processor that was used; None: not recorded.
        inputs: a hash of files and own code, see `Cell`; None: there are none.
    """

    problem: str
    pattern: str
    method: str
    fingerprint: str
    trials: list[float | None]
    best: list[float]
    figures: list[float | None]
    seconds: float
    version: str
    seeds: list[int]
    tuning_seed: int
    trainer: str
    threads: int
    machine: str | None = None
    instructions: str | None = None
    inputs: str | None = None

    @property
    def place(self) -> Place:
        """Where the cell is in the table."""
        return self.problem, self.pattern, self.method


Results = Mapping[Place, CellRecord]
"""The results of the recorded cells, by their places."""


def records_in(file: Path) -> Records[CellRecord]:
    """Return the records in a Parquet file."""
    return Records(file, CellRecord, ("problem", "pattern", "method"))


def load_results(cells: Iterable[Cell], file: Path) -> dict[Place, CellRecord]:
    """Return the recorded results of the cells that were run with their present settings.

    Results with recorded inputs must match the present files and user code, too.

    Raises:
        InvalidInputError: the file does not hold records of cells.
    """
    recorded = {record.place: record for record in records_in(file).read()}
    return {
        cell.place: record
        for cell in cells
        if (record := recorded.get(cell.place)) is not None
        and record.fingerprint == cell.fingerprint
        and (record.inputs is None or record.inputs == cell.inputs)
    }


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


def run_cell(cell: Cell) -> CellRecord:
    """Tune a method and return its figures with the judged seeds.

    Raises:
        InvalidInputError: a method or pattern that cannot be run.
    """
    start, inputs, board, task = time.process_time(), cell.inputs, cell.board, cell.task
    rates, values = task.lr, cell.tuned[1]

    def figure(pair: Pair, seed: int, metric: str) -> float | None:
        return _figure(cell, rates[pair[0]], values[pair[1]], seed, metric)

    with error_prefix("/".join(cell.place)), session(), single_threaded():
        pairs = coarse_pairs(len(rates), len(values))
        trials = [figure(pair, board.tuning_seed, task.tuned_on) for pair in pairs]
        refined = refined_pairs(pairs[_least(trials)])
        trials += [figure(pair, board.tuning_seed, task.tuned_on) for pair in refined]
        best = [*pairs, *refined][_least(trials)]
        judged = [figure(best, seed, task.judged_on) for seed in board.seeds]
    return CellRecord(
        *cell.place,
        fingerprint=cell.fingerprint,
        trials=trials,
        best=[rates[best[0]], values[best[1]]],
        figures=judged,
        seconds=round(time.process_time() - start, 1),
        version=versions(["fedtide", "torch", "numpy", "python"]),
        seeds=list(board.seeds),
        tuning_seed=board.tuning_seed,
        trainer="stacked",
        threads=1,
        machine=machine(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        inputs=inputs,
    )


def _figure(cell: Cell, lr: float, value: float, seed: int, metric: str) -> float | None:
    """Return the mean of a metric over the evaluations in the last third; None if it diverges."""
    try:
        metrics = simulate(**cell.experiment(lr, value, seed), progress=False).metrics
    except DivergenceError:
        return None
    late = metrics.filter(pl.col("round") > 2 * cell.board.rounds / 3)[metric].to_numpy()
    mean = float(late.mean())
    return float(f"{mean:.6g}") if np.isfinite(mean) else None


def _least(figures: Sequence[float | None]) -> int:
    return int(np.argmin([np.inf if figure is None else figure for figure in figures]))


def tried_settings(cell: Cell, result: CellRecord) -> list[list[float]]:
    """Return γ and the further number of each recorded trial, in the order of the trials.

    If several pairs of the first stage share the least recorded value, the second stage is taken to
    have tried the neighbours of one from which the chosen pair can be reached.
    """
    rates, values = cell.task.lr, cell.tuned[1]
    pairs = coarse_pairs(len(rates), len(values))
    first = [np.inf if trial is None else trial for trial in result.trials[: len(pairs)]]
    found: list[list[float]] = []
    for pair, value in zip(pairs, first, strict=True):
        if value == min(first) and result.best not in found:
            found = [[rates[i], values[j]] for i, j in pairs + refined_pairs(pair)]
    return found


def run_cells(
    cells: Sequence[Cell], file: Path, workers: int = 1, on_cell: OnCell | None = None
) -> None:
    """Run the cells that have no record with their present settings, and record each as it ends.

    Args:
        cells: of the leaderboard.
        file: of the records.
        workers: how many processes run cells, each on one core.
        on_cell: is called with each cell that was run.

    Raises:
        InvalidInputError: a cell that cannot be run, or a file without records.
        Interrupted: the user interrupted; what has ended is recorded.
    """
    results = load_results(cells, file)
    missing = {cell.place: cell for cell in cells if cell.place not in results}
    for record in _run_in_processes([*missing.values()], workers):
        records_in(file).add([record])
        results[record.place] = record
        cell = missing.pop(record.place)
        if on_cell is not None:
            on_cell(cell, record, estimate_seconds(missing.values(), results))


def _run_in_processes(cells: Collection[Cell], workers: int) -> Iterator[CellRecord]:
    """Yield the record of each cell when it has ended; one worker is this process."""
    if min(workers, len(cells)) <= 1:
        yield from map(run_cell, cells)
        return
    pool = ProcessPoolExecutor(min(workers, len(cells)), env={"OMP_NUM_THREADS": "1"})
    try:
        for ended in as_completed([pool.submit(run_cell, cell) for cell in cells]):
            yield ended.result()
    finally:
        pool.shutdown(kill_workers=True)


def estimate_seconds(missing: Iterable[Cell], results: Results) -> float:
    """Return the seconds that cells will take on one core, by the most similar recorded ones."""
    total = 0.0
    for cell in missing:
        alike = [r for r in results.values() if r.problem == cell.problem]
        alike = [r for r in alike if r.method == cell.method] or alike
        total += sum(r.seconds for r in alike) / len(alike) if alike else cell.task.seconds
    return total
