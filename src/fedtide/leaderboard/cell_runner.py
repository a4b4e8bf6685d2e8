"""Runs the cells that have no record yet, one after another or in several processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path

import torch

from fedtide.errors import Interrupted, InvalidInputError, RunFailedError, list_names
from fedtide.leaderboard.cell_record import Results, load_results, save_result
from fedtide.leaderboard.search import CellResult, run_cell
from fedtide.leaderboard.spec import FULL, CellPlan, Place
from fedtide.simulation.early_end import Failure
from fedtide.training.threads import single_threaded

OnCell = Callable[[CellPlan, CellResult | Failure, float], None]
"""Called with each cell that has ended, and the estimated seconds on one core that remain."""


def run_cells(
    cells: Sequence[CellPlan], folder: Path, workers: int = 1, on_cell: OnCell | None = None
) -> None:
    """Run the cells that have no record with their present settings, and record each as it ends.

    A cell that fails does not end the others, except for that of full participation: without it,
    no regret is known on its problem.

    Args:
        cells: of the leaderboard.
        folder: of the records.
        workers: how many processes run cells, each on one core.
        on_cell: is called with each cell that was run.

    Raises:
        InvalidInputError: a cell that cannot be run, a damaged record, or a lost process.
        RunFailedError: a cell failed with another exception, usually from the user's own code.
        Interrupted: the user interrupted; what has ended is recorded.
    """
    results = load_results(cells, folder)
    missing = [cell for cell in cells if cell.place not in results]
    failed: dict[Place, Failure] = {}
    for cell, outcome in _run(missing, workers):
        if isinstance(outcome, Failure):
            failed[cell.place] = outcome
            if cell.pattern == FULL:
                break
        else:
            save_result(cell, outcome, folder)
            results[cell.place] = outcome
        if on_cell is not None:
            left = (cell for cell in missing if cell.place not in {**results, **failed})
            on_cell(cell, outcome, estimate_seconds(left, results))
    if failed:
        _raise_first(failed)


def _raise_first(failed: Mapping[Place, Failure]) -> None:
    """Raise the error of the first cell that failed, with the names of all."""
    first, names = next(iter(failed.values())), ["/".join(place) for place in failed]
    sentence = (
        first.sentence if len(names) == 1 else f"{first.sentence} (failed: {list_names(names)})"
    )
    if first.trace:
        raise RunFailedError(f"{names[0]}: {sentence}", first.trace)
    raise InvalidInputError(sentence)


def estimate_seconds(missing: Iterable[CellPlan], results: Results) -> float:
    """Return the seconds that cells will take on one core, by the most similar recorded ones."""
    by_method: dict[tuple[str, str], list[float]] = {}
    by_problem: dict[str, list[float]] = {}
    for (problem, _, method), result in results.items():
        by_method.setdefault((problem, method), []).append(result.seconds)
        by_problem.setdefault(problem, []).append(result.seconds)
    total = 0.0
    for cell in missing:
        alike = by_method.get((cell.problem, cell.method)) or by_problem.get(cell.problem)
        total += sum(alike) / len(alike) if alike else cell.task.seconds
    return total


def _attempt(cell: CellPlan) -> CellResult | Failure:
    """Return the result of a cell, or why there is none: a user's class may raise anything."""
    try:
        return run_cell(cell)
    except Interrupted:
        raise
    except Exception as error:
        return Failure.of(error)


def _run(
    cells: Sequence[CellPlan], workers: int
) -> Iterator[tuple[CellPlan, CellResult | Failure]]:
    """Yield the cells with their results as they end."""
    if min(workers, len(cells)) <= 1:
        with single_threaded():  # the operations are too small to share
            for cell in cells:
                yield cell, _attempt(cell)
        return
    context, others = get_context("spawn"), set(active_children())
    with ProcessPoolExecutor(workers, context, _prepare_worker, (str(Path.cwd()),)) as pool:
        futures = {pool.submit(_attempt, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise InvalidInputError(
                "workers: a process was lost; repeat the command, with fewer workers if memory is "
                "short"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - others:  # a cell under way may take minutes
                worker.terminate()


def _prepare_worker(folder: str) -> None:
    """Use one thread, find the user's classes in the folder, and leave Ctrl-C to the parent."""
    sys.path.append(folder)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
