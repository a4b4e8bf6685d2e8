"""The results of a sweep: one row per run, read from the run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run_folder import RunFolder, UnreadableFileError
from fedtide.sweep.grid import SweepRun, shown_value

RESULTS_FILE = "results.parquet"
"""The file of the results, in the sweep's folder."""


def read_results(runs: Sequence[SweepRun], out: Path) -> pl.DataFrame:
    """Return one row per run.

    Columns: `run` (its folder below `out`), the fields that identify it (`method`, the swept
    fields with the values in force, `seed`), `status` (done, failed, unfinished), `error`; then,
    for finished runs, `rounds`, the metrics of the last evaluation and `rounds_per_second`; and
    `folder`.
    """
    fields = list(dict.fromkeys(field for run in runs for field in run.fields if field != "seed"))
    rows = [_read_row(run, fields, out) for run in runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.remove("folder")
    return pl.DataFrame(
        [_column(name, [row.get(name) for row in rows]) for name in [*names, "folder"]]
    )


def _read_row(run: SweepRun, fields: Sequence[str], out: Path) -> dict[str, Any]:
    folder = RunFolder(out / run.path)
    missing = [field for field in fields if field not in run.fields]
    shown = {**run.fields, **_values_in_force(run.experiment, missing)}
    row = {"run": run.path, **{field: shown[field] for field in fields}}
    row["seed"] = run.experiment.seed
    failure = folder.read_failure(run.experiment.rounds)
    if failure is not None:
        row |= {"status": "failed", "error": failure.sentence}
    elif not folder.has_ended(run.experiment.rounds):
        row |= {"status": "unfinished", "error": None}
    else:
        row |= {"status": "done", "error": None, **_read_metrics(folder)}
    return row | {"folder": str(folder.path)}


def _values_in_force(experiment: Experiment, fields: Sequence[str]) -> dict[str, Any]:
    """Return what is shown for dotted fields; None for those that this experiment lacks."""
    if not fields:
        return {}
    try:
        plain = experiment.to_dict()
    except InvalidInputError:  # an object of the user's that a file cannot describe
        return dict.fromkeys(fields)
    return {field: shown_value(_look_up(plain, field)) for field in fields}


def _look_up(plain: Any, field: str) -> Any:
    """Return the value of a dotted field; None if there is none."""
    for key in field.split("."):
        plain = plain.get(key) if isinstance(plain, dict) else None
    return plain


def _read_metrics(folder: RunFolder) -> dict[str, Any]:
    summary = folder.read_json(folder.summary, ["rounds", "metrics"])
    timings = folder.read_json(folder.timings, ["rounds_per_second"])
    if not isinstance(summary["metrics"], dict):
        raise UnreadableFileError(folder.summary, "metrics is not a mapping")
    metrics = {name: value for name, value in summary["metrics"].items() if name != "round"}
    speed = {"rounds_per_second": timings["rounds_per_second"]}
    return {"rounds": summary["rounds"], **metrics, **speed}


def _column(name: str, values: list[Any]) -> pl.Series:
    """Return a column; numbers mixed with strings become strings, integers with floats, floats.

    A column without values has the type that it has in other sweeps, so that tables fit together.
    """
    if all(value is None for value in values):
        return pl.Series(name, values, pl.String if name == "error" else pl.Float64)
    for kind in (str, float):
        if any(isinstance(value, kind) for value in values):
            values = [None if value is None else kind(value) for value in values]
            break
    return pl.Series(name, values, strict=False)
