"""Further columns for the metrics of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from safetensors.numpy import load_file

from fedtide.papers.plan import PlannedRun
from fedtide.simulation.run_folder import RunFolder


def on_a_line(metrics: pl.DataFrame, run: PlannedRun, folder: RunFolder) -> pl.DataFrame:
    """Add `excess`, f(x) − f*, and `x`, the model, which is known at the end only.

    For clients (x − e_n)² in one dimension, f being their mean: f* is the variance of the e_n.
    """
    centers = np.asarray(run.settings["problem"]["centers"], dtype=float)
    (model,) = load_file(folder.model).values()
    at_end = [None] * (len(metrics) - 1) + [float(model.item())]
    return metrics.with_columns(
        excess=pl.col("loss") - float(centers.var()), x=pl.Series(at_end, dtype=pl.Float64)
    )


DERIVED: dict[str, Callable[[pl.DataFrame, PlannedRun, RunFolder], pl.DataFrame]] = {
    "line": on_a_line
}
"""What `derive` may name."""
