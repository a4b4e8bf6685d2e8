"""What a sweep gives: one row per run, read from the run folders."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.simulation.run_folder import RunFolder
from fedtide.sweep.configurations import SweepRun
from fedtide.sweep.job import failure

RESULTS = "results.parquet"
"""The file of the results, in the folder of the sweep."""


def results(members: Iterable[SweepRun], out: Path) -> pl.DataFrame:
    """Return one row per run.

    `run` (its folder below `out`), what it is known by (`method`, the swept fields, `seed`),
    `status` (done, failed, unfinished), `error`, then of a run that is done `rounds`, the metrics
    of its last evaluation and `rounds_per_second`, and its `folder`.
    """
    rows = [row(member, out) for member in members]
    names = list(dict.fromkeys(name for one in rows for name in one))
    names.remove("folder")
    return pl.DataFrame(
        [_column(name, [one.get(name) for one in rows]) for name in [*names, "folder"]]
    )


def row(member: SweepRun, out: Path) -> dict[str, Any]:
    """Return the row of one run."""
    folder = RunFolder(out / member.path)
    start = {"run": member.path, **member.fields}
    note = failure(folder)
    if note is not None:
        start |= {"status": "failed", "error": note["sentence"]}
    elif not folder.finished:
        start |= {"status": "unfinished", "error": None}
    else:
        start |= {"status": "done", "error": None, **_last(folder)}
    return start | {"folder": str(folder.path)}


def _last(folder: RunFolder) -> dict[str, Any]:
    summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    timings = json.loads(folder.timings.read_text(encoding="utf-8"))
    metrics = {name: value for name, value in summary["metrics"].items() if name != "round"}
    speed = {"rounds_per_second": timings["rounds_per_second"]}
    return {"rounds": summary["rounds"], **metrics, **speed}


def _column(name: str, values: list[Any]) -> pl.Series:
    """Return a column; one that mixes words and numbers is all words."""
    if any(isinstance(value, str) for value in values):
        values = [None if value is None else str(value) for value in values]
    elif any(isinstance(value, float) for value in values):
        values = [None if value is None else float(value) for value in values]
    return pl.Series(name, values, strict=False)
