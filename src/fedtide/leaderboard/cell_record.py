"""The records: a JSON file for each problem and pattern, with a line for each method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError
from fedtide.leaderboard.search import CellResult
from fedtide.leaderboard.spec import CellPlan, Place

Results = Mapping[Place, CellResult]
"""The results of the recorded cells, by their places."""


def load_results(cells: Iterable[CellPlan], folder: Path) -> dict[Place, CellResult]:
    """Return the recorded results of those of the cells that were run with their present settings.

    Raises:
        InvalidInputError: a file that is not a record.
    """
    files: dict[Path, dict[str, CellResult]] = {}
    results = {}
    for cell in cells:
        file = _file(folder, cell)
        if file not in files:
            files[file] = _read(file)
        result = files[file].get(cell.method)
        if result is not None and result.fingerprint == cell.fingerprint:
            results[cell.place] = result
    return results


def save_result(cell: CellPlan, result: CellResult, folder: Path) -> None:
    """Add the result of a cell to its file, or replace it.

    Raises:
        InvalidInputError: a file that is not a record, or that cannot be written.
    """
    file = _file(folder, cell)
    make_folder(file.parent, field="records")
    results = _read(file) | {cell.method: result}
    lines = (f"{json.dumps(name)}: {json.dumps(asdict(one))}" for name, one in results.items())
    write_text(file, "{\n" + ",\n".join(lines) + "\n}\n", field="records")


def _file(folder: Path, cell: CellPlan) -> Path:
    return folder / cell.problem / f"{cell.pattern}.json"


def _read(file: Path) -> dict[str, CellResult]:
    """Return the results in a file by method; none if there is no file."""
    if not file.exists():
        return {}
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        return {name: _result(entry) for name, entry in plain.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            f"records: {file} is not a record of the leaderboard ({type(error).__name__}); "
            "remove it, and its cells are run again"
        ) from None


def _result(plain: Mapping[str, Any]) -> CellResult:
    result = CellResult(**{**plain, **{k: tuple(plain[k]) for k in _TUPLES if k in plain}})
    for figure in (*result.trials, *result.figures):
        if not isinstance(figure, float | int | None):
            raise TypeError("a figure is not a number")
    return result


_TUPLES = ("trials", "best", "figures")
