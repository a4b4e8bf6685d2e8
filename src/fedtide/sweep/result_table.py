"""The results of a sweep: one row per run, read from the run folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.errors import InvalidInputError
from fedtide.simulation.run_folder import RunFolder
from fedtide.sweep.configurations import SweepRun
from fedtide.sweep.job import read_failure

RESULTS_FILE = "results.parquet"
"""The file of the results, in the sweep's folder."""


def read_results(runs: Iterable[SweepRun], out: Path) -> pl.DataFrame:
    """Return one row per run.

    Columns: `run` (its folder below `out`), the fields that identify it (`method`, the swept
    fields, `seed`), `status` (done, failed, unfinished), `error`; then, for finished runs,
    `rounds`, the metrics of the last evaluation and `rounds_per_second`; and `folder`.
    """
    rows = [_read_row(run, out) for run in runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.remove("folder")
    return pl.DataFrame(
        [_column(name, [row.get(name) for row in rows]) for name in [*names, "folder"]]
    )


def _read_row(run: SweepRun, out: Path) -> dict[str, Any]:
    folder = RunFolder(out / run.path)
    row = {"run": run.path, **run.fields}
    note = read_failure(folder)
    if note is not None:
        row |= {"status": "failed", "error": note["sentence"]}
    elif not folder.finished:
        row |= {"status": "unfinished", "error": None}
    else:
        row |= {"status": "done", "error": None, **_read_metrics(folder)}
    return row | {"folder": str(folder.path)}


def _read_metrics(folder: RunFolder) -> dict[str, Any]:
    summary, timings = map(folder.read_json, (folder.summary, folder.timings))
    try:
        metrics = {name: value for name, value in summary["metrics"].items() if name != "round"}
        speed = {"rounds_per_second": timings["rounds_per_second"]}
        return {"rounds": summary["rounds"], **metrics, **speed}
    except (KeyError, AttributeError):
        raise InvalidInputError(
            f"out: {folder.summary} lacks a result; start again in another folder"
        ) from None


def _column(name: str, values: list[Any]) -> pl.Series:
    """Return a column; numbers mixed with strings become strings, integers with floats floats."""
    for kind in (str, float):
        if any(isinstance(value, kind) for value in values):
            values = [None if value is None else kind(value) for value in values]
            break
    return pl.Series(name, values, strict=False)
