"""The small record of a run, the source of every published table and figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedtide.errors import InvalidInputError
from fedtide.papers.measures import Measure
from fedtide.papers.plan import PlannedRun, RunKey, fingerprint
from fedtide.provenance import machine, versions
from fedtide.sweep.records import Records

_PAPERS = "[0-9][0-9][0-9].parquet"  # one file for each paper; others are no records of papers
_POINTS = 30  # of a thinned curve
_CURVES = ("loss", "train_accuracy", "test_accuracy", "mse")


@dataclass(frozen=True)
class Record:
    """The record of one run.

    Args:
        paper, scale, case, method, seed: the run and its experiment.
        measures: the compared numbers by name; None where the run gives no number.
        final: the metrics of the last evaluation.
        curve: `round` and a few metrics at about thirty evaluations.
        settings: every hyper-parameter.
        stopped: why the run ended before its last round; None: it ended regularly.
        seconds: the time of training and evaluation.
        rounds: the completed rounds.
        version: the versions of fedtide and PyTorch.
        machine: the processor, which also decides the last bits, and its number of cores.
        execution: what else decides the last bits: the trainer, the threads of one run, the
            instruction set of the processor, and the GPU if it trained on one; under "earlier" the
            same of earlier parts of the run that were computed elsewhere.
        shared_from: the run of another experiment, case or method with the same settings that was
            run instead of this one; None: this one was run.
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
    execution: dict[str, Any] = field(default_factory=dict)
    shared_from: str | None = None

    @property
    def key(self) -> RunKey:
        """What identifies the run among all runs of all experiments."""
        return RunKey(self.paper, self.scale, self.case, self.method, self.seed)

    @property
    def computed_on(self) -> str:
        """The processors and GPUs on which the run was computed, in words."""
        earlier: list[dict[str, Any]] = self.execution.get("earlier", [])
        parts = [*earlier, {"machine": self.machine, **self.execution}]
        places = (
            ", ".join(part[name] for name in ("machine", "device") if name in part)
            for part in parts
        )
        return ", then ".join(dict.fromkeys(places))  # other parts differ in the trainer, say

    def matches(self, run: PlannedRun) -> bool:
        """Return whether the record is of a run with the settings of this planned run."""
        settings = dict(self.settings)
        compute = settings.pop("compute", None)
        try:
            return fingerprint(settings, compute) == run.fingerprint
        except InvalidInputError:  # a record of an older version
            return False


def make_record(
    run: PlannedRun,
    measures: Mapping[str, Measure],
    metrics: pl.DataFrame,
    seconds: float,
    stopped: str | None = None,
    rounds: int | None = None,
    execution: Mapping[str, Any] | None = None,
) -> Record:
    """Return the record of a run with these metrics, one row per evaluation.

    The other arguments are those of `Record`; `rounds` are by default those of the last evaluation.
    """
    last = metrics.row(-1, named=True) if len(metrics) else {}
    values = {name: None if stopped else m.read(metrics) for name, m in measures.items()}
    how = dict(execution or {})
    return Record(
        **run.key._asdict(),
        measures={name: _round(value, 8) for name, value in values.items()},
        final={name: _round(value) for name, value in last.items()},
        curve=_thin(metrics, [measure.metric for measure in measures.values()]),
        settings=run.resolved,
        stopped=stopped,
        seconds=round(seconds, 1),
        rounds=int(last.get("round", 0)) if rounds is None else rounds,
        version=versions(),
        machine=how.pop("machine", None) or machine(),
        execution=how,
    )


def _thin(metrics: pl.DataFrame, wanted: Iterable[str]) -> dict[str, list[float | None]]:
    """Return the wanted columns at about thirty evaluations, the last included."""
    names = [n for n in dict.fromkeys(["round", *_CURVES, *wanted]) if n in metrics.columns]
    if len(metrics) == 0:
        return {}
    rows = np.unique(np.linspace(0, len(metrics) - 1, min(_POINTS, len(metrics))).round())
    kept = metrics[rows.astype(int).tolist()]
    return {name: [_round(value) for value in kept[name].to_list()] for name in names}


def _round(value: Any, digits: int = 5) -> Any:
    """Return a float with `digits` significant digits; None if it is not finite."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None


def records_of(folder: Path, experiment: str) -> Records[Record]:
    """Return the file with the records of an experiment's paper, such as 002.parquet."""
    return Records(folder / f"{experiment.partition('/')[0]}.parquet", Record, RunKey._fields)


def load_records(folder: Path, experiment: str | None = None) -> list[Record]:
    """Return the records of all papers in a folder, or those of one experiment.

    Raises:
        InvalidInputError: a file does not hold records.
    """
    if experiment is not None:
        return [r for r in records_of(folder, experiment).read() if r.paper == experiment]
    return [
        r for file in sorted(folder.glob(_PAPERS)) for r in records_of(folder, file.stem).read()
    ]


def match_records(
    runs: Iterable[PlannedRun], records: Iterable[Record]
) -> dict[tuple[object, ...], Record]:
    """Return the records that have the settings of their planned runs, by key."""
    by_key = {record.key: record for record in records}
    return {
        run.key: record
        for run in runs
        if (record := by_key.get(run.key)) is not None and record.matches(run)
    }
