"""The small record that a run leaves behind, from which everything that people read is made."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError
from fedtide.papers.measures import Measure
from fedtide.papers.plan import PlannedRun
from fedtide.simulation.experiment import HOW, Experiment

_POINTS = 30  # of a thinned curve
_CURVES = ("loss", "train_accuracy", "test_accuracy", "mse")


@dataclass(frozen=True)
class Record:
    """What is kept of one run.

    Args:
        paper, scale, case, method, seed: which run of which experiment.
        measures: what is compared, by name; None where the run gives no such number.
        final: the metrics of the last evaluation.
        curve: `round` and a few metrics at some thirty evaluations.
        settings: every hyper-parameter.
        stopped: why the run ended before its last round; None: it did not.
        seconds: of training and evaluation.
        rounds: how many ended.
        version: of fedtide and PyTorch.
        machine: processor and cores.
    """

    paper: str
    scale: str
    case: str
    method: str
    seed: int
    measures: dict[str, float | None]
    final: dict[str, float | None]
    curve: dict[str, list[float | None]]
    settings: dict[str, Any]
    stopped: str | None
    seconds: float
    rounds: int
    version: str
    machine: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What tells runs apart."""
        return self.paper, self.scale, self.case, self.method, self.seed

    def fits(self, run: PlannedRun) -> bool:
        """Say whether the record is of a run with these very settings."""
        planned = json.loads(json.dumps(run.resolved))
        if self.settings == planned or run.compute is not None:
            return bool(self.settings == planned)
        try:
            mine = Experiment.from_dict(self.settings).to_dict()
        except InvalidInputError:
            return False
        return _what(mine) == _what(run.resolved)


def _what(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without those that say how to run, not what."""
    return {key: value for key, value in settings.items() if key not in ("name", *HOW)}


def record_of(
    run: PlannedRun,
    measures: Mapping[str, Measure],
    metrics: pl.DataFrame,
    seconds: float,
    stopped: str | None = None,
) -> Record:
    """Return the record of a run with these metrics, one row per evaluation."""
    last = metrics.row(-1, named=True) if len(metrics) else {}
    found = {name: None if stopped else measure.of(metrics) for name, measure in measures.items()}
    return Record(
        paper=run.paper,
        scale=run.scale,
        case=run.case,
        method=run.method,
        seed=run.seed,
        measures={name: _short(value, 8) for name, value in found.items()},
        final={name: _short(value) for name, value in last.items()},
        curve=_thinned(metrics, [measure.metric for measure in measures.values()]),
        settings=run.resolved,
        stopped=stopped,
        seconds=round(seconds, 1),
        rounds=int(last.get("round", 0)),
        version=f"fedtide {version('fedtide')}, PyTorch {torch.__version__.split('+')[0]}",
        machine=machine(),
    )


def _thinned(metrics: pl.DataFrame, wanted: Iterable[str]) -> dict[str, list[float | None]]:
    """Return about thirty rows of the metrics, the last among them."""
    names = [n for n in dict.fromkeys(["round", *_CURVES, *wanted]) if n in metrics.columns]
    if len(metrics) == 0:
        return {}
    rows = np.unique(np.linspace(0, len(metrics) - 1, min(_POINTS, len(metrics))).round())
    kept = metrics[rows.astype(int).tolist()]
    return {name: [_short(value) for value in kept[name].to_list()] for name in names}


def _short(value: Any, digits: int = 5) -> Any:
    """Return a number with so many significant digits; None for what JSON cannot say."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None


@cache
def machine() -> str:
    """Return the name of the processor and how many cores there are."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else name}, {os.cpu_count()} cores"


def write_record(record: Record, folder: Path) -> Path:
    """Write a record below `folder` and return its file.

    Raises:
        InvalidInputError: the folder cannot be written.
    """
    file = record_file(folder, record.key)
    make_folder(file.parent, field="records")
    write_text(file, _compact(asdict(record)))
    return file


def record_file(folder: Path, key: tuple[str, str, str, str, int]) -> Path:
    """Return where the record of a run lies."""
    paper, scale, case, method, seed = key
    return folder / paper / scale / case / f"{method}.{seed}.json"


def _compact(plain: dict[str, Any]) -> str:
    """Return JSON with one line for each field."""
    lines = (f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in plain.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load_record(file: Path) -> Record:
    """Return the record of a file.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return Record(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"records: {file} is no record of a run ({type(error).__name__}); remove it"
        ) from None


def load_records(folder: Path, paper: str | None = None) -> list[Record]:
    """Return all records below a folder, or those of one experiment."""
    below = folder if paper is None else folder / paper
    return [load_record(file) for file in sorted(below.glob("**/*.json"))]
