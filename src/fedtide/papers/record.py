"""The small record of a run, the source of every published table and figure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError
from fedtide.papers.measures import Measure
from fedtide.papers.paper_spec import PaperExperiment
from fedtide.papers.plan import PlannedRun, RunKey, fingerprint
from fedtide.provenance import machine, versions

_PAPER = "[0-9][0-9][0-9]"  # the folder of a paper
_POINTS = 30  # of a thinned curve
_CURVES = ("loss", "train_accuracy", "test_accuracy", "mse")


Curve = dict[str, list[float | None]]
"""`round` and metrics of a run at some of its evaluations."""


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
            same of earlier parts of the run that were computed elsewhere; empty in older records.
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
    curve: Curve
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

    def share(self, own: PaperExperiment, run: PlannedRun, of: PaperExperiment) -> Record | None:
        """Return the record of a planned run with the same settings, which then need not be run.

        Args:
            own: this record's experiment.
            run: the other run.
            of: the other run's experiment.

        Returns:
            None: this record lacks one of its measures, or the curve of its figure.
        """
        try:
            values = {name: self._find(m, own.measures) for name, m in of.measures.items()}
        except LookupError:
            return None
        if self.curve and of.figure.get("metric", "loss") not in self.curve:
            return None
        return replace(
            self,
            **run.key._asdict(),
            measures={name: _round(value, 8) for name, value in values.items()},
            settings=run.resolved,
            shared_from=self.shared_from or str(self.key),
        )

    def _find(self, measure: Measure, known: Mapping[str, Measure]) -> float | None:
        """Return a measure of the recorded run.

        Raises:
            LookupError: the record does not hold it.
        """
        if self.stopped is not None:
            return None
        for name, other in known.items():
            if measure.same_number(other) and name in self.measures:
                return self.measures[name]
        if measure.take != "last":
            raise LookupError
        value = self.final[measure.metric]
        return value if value is None else measure.scale * value

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
    shared_from: PlannedRun | None = None,
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
        shared_from=None if shared_from is None else str(shared_from.key),
    )


def _thin(metrics: pl.DataFrame, wanted: Iterable[str]) -> Curve:
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


def write_record(record: Record, folder: Path) -> Path:
    """Write a record below `folder` and return its path.

    Raises:
        InvalidInputError: the folder cannot be written.
    """
    file = record_path(folder, record.key)
    make_folder(file.parent, field="records")
    lines = (
        f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in asdict(record).items()
    )
    write_text(file, "{\n" + ",\n".join(lines) + "\n}\n")
    return file


def record_path(folder: Path, key: RunKey) -> Path:
    """Return the path of a run's record below `folder`."""
    return folder / key.paper / key.scale / key.case / f"{key.method}.{key.seed}.json"


def load_record(file: Path) -> Record:
    """Return the record in a file.

    Raises:
        InvalidInputError: the file is not a record.
    """
    try:
        return Record(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"records: {file} is not the record of a run ({type(error).__name__}); remove it"
        ) from None


def find_record(run: PlannedRun, folder: Path) -> Record | None:
    """Return the record of a planned run if there is one with its present settings."""
    file = record_path(folder, run.key)
    record = load_record(file) if file.exists() else None
    return record if record is not None and record.matches(run) else None


def load_records(folder: Path, paper: str | None = None) -> list[Record]:
    """Return the records of all papers below a folder, or those of one experiment.

    The folders of papers have numbers for names; others, such as that of the leaderboard, are left
    out.
    """
    files = folder.glob(f"{_PAPER}/**/*.json" if paper is None else f"{paper}/**/*.json")
    return [load_record(file) for file in sorted(files)]
