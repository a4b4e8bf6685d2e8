"""The records: a JSON file for each problem and pattern, with a line for each method.

The `Origin` of the cells of a file is mostly the same. It is stored once, under `common`; under
`cells`, a method has only the fields that differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fedtide.atomic_io import write_text
from fedtide.errors import InvalidInputError
from fedtide.leaderboard.search import CellResult, Origin
from fedtide.leaderboard.spec import CellPlan, Place
from fedtide.locking import lock_folder

Results = Mapping[Place, CellResult]
"""The results of the recorded cells, by their places."""


def load_results(cells: Iterable[CellPlan], folder: Path) -> dict[Place, CellResult]:
    """Return the recorded results of the cells that were run with their present settings.

    Results with recorded inputs must match the present files and user code, too.

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
        if result is None or result.fingerprint != cell.fingerprint:
            continue
        if result.inputs is None or result.inputs == cell.inputs:
            results[cell.place] = result
    return results


def save_result(cell: CellPlan, result: CellResult, folder: Path) -> None:
    """Add the result of a cell to its file, or replace it.

    Raises:
        InvalidInputError: a file that is not a record, or that cannot be written.
    """
    file = _file(folder, cell)
    with lock_folder(file.parent, "records", "repeat the command", patience=60):
        write_results(file, _read(file) | {cell.method: result})


def write_results(file: Path, results: Mapping[str, CellResult]) -> None:
    """Write the results of a file's methods, with the most frequent origin under `common`.

    Raises:
        InvalidInputError: a file that cannot be written.
    """
    origins = [asdict(result.origin) for result in results.values()]
    common = {
        name: Counter(origin[name] for origin in origins).most_common(1)[0][0]
        for name in (field.name for field in fields(Origin))
    }
    lines = []
    for method, result in results.items():
        plain = asdict(result)
        origin = plain.pop("origin")
        if result.inputs is None:
            del plain["inputs"]
        plain |= {name: value for name, value in origin.items() if value != common[name]}
        lines.append(f"{json.dumps(method)}: {json.dumps(plain)}")
    cells = ",\n".join(lines)
    text = f'{{\n"common": {json.dumps(common)},\n"cells": {{\n{cells}\n}}\n}}\n'
    write_text(file, text, field="records")


def _file(folder: Path, cell: CellPlan) -> Path:
    return folder / cell.problem / f"{cell.pattern}.json"


def _read(file: Path) -> dict[str, CellResult]:
    """Return the results in a file by method; none if there is no file."""
    if not file.exists():
        return {}
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        cells = plain["cells"].items()
        return {method: _result({**plain["common"], **entry}) for method, entry in cells}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidInputError(
            f"records: {file} is not a record of the leaderboard ({type(error).__name__}); "
            "remove it, and its cells are run again"
        ) from None


def _result(plain: Mapping[str, Any]) -> CellResult:
    values: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in plain.items()
    }
    origin = Origin(**{field.name: values.pop(field.name) for field in fields(Origin)})
    result = CellResult(**values, origin=origin)
    for figure in (*result.trials, *result.figures):
        if not isinstance(figure, float | int | None):
            raise TypeError("a figure is not a number")
    return result
