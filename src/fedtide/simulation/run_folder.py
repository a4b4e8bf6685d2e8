"""The folder of a run: its files, written so that a kill at any moment corrupts nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import polars as pl

from fedtide.atomic_io import (
    DRAFT_PATTERNS,
    draft_path,
    unwritable,
    write_frame,
    write_json,
    write_text,
    write_yaml,
)
from fedtide.errors import InvalidInputError
from fedtide.locking import LOCK_FILE, lock_folder
from fedtide.simulation.early_end import Failure
from fedtide.simulation.experiment import list_differences
from fedtide.simulation.experiment_files import read_yaml
from fedtide.simulation.inputs import Fingerprints, list_changes
from fedtide.validation import expand_home

_logger = logging.getLogger("fedtide")

_CHANGEABLE = ("checkpoint", "name")
"""The fields that may change when a run continues, as its results do not depend on them."""

Resume = bool | Literal["force"]
"""Whether to continue the run in a folder; "force": even if data, files or code have changed."""


class UnreadableFileError(InvalidInputError):
    """A file of a run is missing or damaged.

    Args:
        file: the file.
        reason: what is wrong with it, in a few words.
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(
            f"out: {file.parent} has a {file.name} that cannot be read ({reason}); start again in "
            "another folder"
        )
        self.file, self.reason = file, reason


class RunFolder:
    """The files of one run.

    Args:
        path: the folder; ~ is the home folder. It is created when it is locked.

    Attributes:
        log_chain: a chained checksum of the parts of the log written so far.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = expand_home(path)
        self.experiment = self.path / "experiment.yaml"
        self.fingerprints = self.path / "fingerprints.json"
        self.source = self.path / "source.py"
        self.metrics = self.path / "metrics.parquet"
        self.live_metrics = self.path / "metrics.jsonl"
        self.participation = self.path / "participation.parquet"
        self.clients = self.path / "clients.parquet"
        self.model = self.path / "model.safetensors"
        self.summary = self.path / "summary.json"
        self.timings = self.path / "timings.json"
        self.failure = self.path / "failure.json"
        self.checkpoints = self.path / "checkpoints"
        self.log_parts = self.path / "log"
        self.log_chain = ""
        # what a run killed at its start may leave behind
        initial = (self.source, self.fingerprints)
        drafts = map(draft_path, (*initial, self.experiment))
        self._initial_files = (self.path / LOCK_FILE, *initial, *drafts)

    @property
    def finished(self) -> bool:
        """Whether the run is complete, that is, has a summary: the last file to be written."""
        return self.summary.exists()

    @property
    def rounds(self) -> int:
        """How many rounds a finished run has."""
        return int(self.read_json(self.summary, ["rounds"])["rounds"])

    def has_ended(self, rounds: int) -> bool:
        """Return whether the run is finished, with this many rounds or stopped by a callback.

        Raises:
            UnreadableFileError: the summary of a finished run is damaged.
        """
        return self.finished and (self._was_stopped() or self.rounds >= rounds)

    def _was_stopped(self) -> bool:
        return self.finished and "stopped" in self.read_json(self.summary)

    def read_json(self, file: Path, keys: Iterable[str] = ()) -> dict[str, Any]:
        """Return the content of one of the JSON files.

        Args:
            file: the file.
            keys: the keys that it must have.

        Raises:
            UnreadableFileError: it is missing or damaged.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UnreadableFileError(file, type(error).__name__) from None
        if not isinstance(content, dict):
            raise UnreadableFileError(file, "not a mapping")
        if missing := [key for key in keys if key not in content]:
            raise UnreadableFileError(file, f"without {', '.join(missing)}")
        return content

    def read_failure(self, rounds: int = 0) -> Failure | None:
        """Return why the run failed; None if it did not, or has since finished (`has_ended`).

        Raises:
            UnreadableFileError: the record of the failure, or the summary, is damaged.
        """
        if not self.failure.exists() or self.has_ended(rounds):
            return None
        note = self.read_json(self.failure, ["sentence"])
        trace, permanent = str(note.get("trace", "")), bool(note.get("permanent", False))
        return Failure(str(note["sentence"]), permanent, trace)

    # An experiment and its folder.

    def check(self, experiment: Mapping[str, Any], resume: Resume) -> None:
        """Check that the folder can hold this experiment.

        Raises:
            InvalidInputError: it is not a folder; it is not empty, without `resume`; with `resume`,
                it holds another experiment, unless that only has fewer rounds, another name or
                other checkpoints; or it cannot be entered.
        """
        with folder_errors(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise InvalidInputError(f"out: {self.path} is a file; give a folder")
            if self.experiment.exists() and resume:
                before = self._continued(read_yaml(self.experiment), experiment)
                if changed := list_differences(before, experiment):
                    raise InvalidInputError(
                        f"resume: {self.path} holds another experiment: {'; '.join(changed)}; "
                        "give the same experiment or another folder"
                    )
            elif self.path.exists() and {*self.path.iterdir()} - {*self._initial_files}:
                hint = "it holds no run; choose another"
                if self.experiment.exists():
                    hint = "choose another, or continue with --resume (in Python resume=True)"
                raise InvalidInputError(f"out: {self.path} is not empty; {hint}")

    def update_experiment(self, experiment: Mapping[str, Any]) -> None:
        """Write the experiment if it differs from the one in the folder, as `check` allows."""
        before = read_yaml(self.experiment)
        if (now := self._continued(before, experiment)) != before:
            write_yaml(self.experiment, now)

    def _continued(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        """Return the experiment in the folder with whatever may change; rounds may only grow."""
        may_change = [name for name in _CHANGEABLE if name in now]
        rounds = before.get("rounds")
        if isinstance(rounds, int) and now["rounds"] > rounds and not self._was_stopped():
            may_change.append("rounds")
        return {**before, **{name: now[name] for name in may_change}}

    def check_fingerprints(self, now: Fingerprints, resume: Resume) -> None:
        """Check that data, files and code are the same as when the run in the folder began.

        With `resume="force"`, changes lead to a warning only (logger "fedtide").

        Raises:
            InvalidInputError: they are not.
        """
        if not (self.experiment.exists() and self.fingerprints.exists()):
            return
        changes = list_changes(self.read_json(self.fingerprints), now)
        if not changes:
            return
        changed = f"{self.path} was started with another version of {', '.join(changes)}"
        if resume != "force":
            raise InvalidInputError(
                f"resume: {changed}; restore it, use another folder, or continue nevertheless with "
                'resume="force" (--force-resume)'
            )
        _logger.warning("%s; continuing nevertheless", changed)

    @contextmanager
    def lock(
        self,
        experiment: dict[str, Any],
        resume: Resume,
        fingerprints: Fingerprints,
        source: str = "",
    ) -> Iterator[None]:
        """Create the folder for this experiment and lock it against other processes.

        The fingerprints, and the source of what the notebook or script defines, are written when a
        run begins, and when it continues with changed ones.

        Raises:
            InvalidInputError: as for `check`, or the folder is in use or cannot be written.
        """
        with lock_folder(self.path, "out", "wait for it or choose another"):
            self.check(experiment, resume)
            if not self.has_ended(experiment["rounds"]) and not (
                self.fingerprints.exists() and self.read_json(self.fingerprints) == fingerprints
            ):
                if source:
                    write_text(self.source, f"# Defined by the notebook or script.\n\n{source}\n")
                write_json(self.fingerprints, dict(fingerprints))
            if not self.experiment.exists():
                write_yaml(self.experiment, experiment)
            yield

    # The participation log: numbered parts, each of which ends at the round of a checkpoint.

    def add_to_log(self, ended: int, rows: pl.DataFrame) -> None:
        """Write the rows since the last call as the next part of the log, up to round `ended`."""
        part = self.log_parts / f"{ended:09d}.parquet"
        write_frame(part, rows)
        self.log_chain = _chain(self.log_chain, part)

    def chain_until(self, ended: int) -> str:
        """Return the checksum of the parts of the log up to the one of round `ended`."""
        parts = [p for p in numbered(self.log_parts, "parquet") if int(p.stem) <= ended]
        return reduce(_chain, parts, "")

    def reopen_log(self, ended: int) -> None:
        """Write the log of a finished run, which ends at round `ended`, as its only part.

        Raises:
            UnreadableFileError: the log is missing or damaged.
        """
        try:
            log = read_frame(self.participation)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UnreadableFileError(self.participation, type(error).__name__) from None
        self.drop_partial_results()
        self.log_chain = ""
        self.add_to_log(ended, log.filter(pl.col("round") < ended))

    def read_log(self) -> list[pl.DataFrame]:
        """Return the parts of the log in order."""
        return [read_frame(part) for part in numbered(self.log_parts, "parquet")]

    # The metrics of a run under way.

    def start_live_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the metrics so far: none, or those up to the checkpoint to resume from."""
        write_text(self.live_metrics, "".join(map(_json_line, rows)))

    def add_live_metrics(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of an evaluation, for reports on the run under way.

        Raises:
            InvalidInputError: the disk is full or the folder is not writable.
        """
        try:
            with self.live_metrics.open("a", encoding="utf-8", newline="\n") as file:
                file.write(_json_line(row))
        except OSError as error:
            raise unwritable("out", self.live_metrics, error) from None

    def read_metrics(self) -> pl.DataFrame:
        """Return one row per evaluation so far, of a finished run or of one under way.

        A run under way has null for values that are not finite. The table is empty before the first
        evaluation.

        Raises:
            InvalidInputError: the folder holds no run.
        """
        if self.finished:
            return read_frame(self.metrics)
        if not self.live_metrics.exists():
            if not self.experiment.exists():
                raise InvalidInputError(f"{self.path}: holds no run; give the folder of a run")
            return pl.DataFrame()
        lines = self.live_metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be torn
        return pl.DataFrame(rows, infer_schema_length=None)

    # What is removed.

    def truncate_after(self, ended: int) -> None:
        """Remove what was written after the checkpoint of round `ended`, and unfinished files."""
        numbers = numbered(self.log_parts, "parquet") + numbered(self.checkpoints, "safetensors")
        _remove(file for file in numbers if int(file.stem) > ended)
        for pattern in DRAFT_PATTERNS:
            _remove(filter(Path.is_file, self.path.rglob(pattern)))

    def drop_partial_results(self) -> None:
        """Remove the parts of the log and the live metrics, once the whole tables are written."""
        for file in (self.live_metrics, *numbered(self.log_parts, "parquet")):
            with suppress(PermissionError):  # on Windows, if a report is reading the file
                file.unlink(missing_ok=True)
        with suppress(OSError):  # it does not exist, or holds other files
            self.log_parts.rmdir()

    def drop_results(self) -> None:
        """Remove the summary and then the tables of a finished run that is to continue."""
        _remove([self.summary, self.metrics, self.participation, self.clients])


@contextmanager
def folder_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system about an output folder into an InvalidInputError."""
    try:
        yield
    except OSError as error:
        raise unwritable("out", path, error, "choose another") from None


def read_frame(file: Path) -> pl.DataFrame:
    """Return a Parquet file of a run as a table; its path is never read as a glob pattern."""
    return pl.read_parquet(file, glob=False)


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with folder_errors(file):
            file.unlink(missing_ok=True)


def _chain(before: str, part: Path) -> str:
    """Return the SHA-256 of the previous checksum and a file."""
    return hashlib.sha256(before.encode() + part.read_bytes()).hexdigest()


def finite_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for JSON: numbers that are not finite, which JSON lacks, become None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _json_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON, in which numbers that are not finite are null."""
    return json.dumps(finite_row(row)) + "\n"


def numbered(folder: Path, suffix: str) -> list[Path]:
    """Return the files in the folder that are named after a round, in order of rounds."""
    files = (file for file in folder.glob(f"*.{suffix}") if file.stem.isdecimal())
    return sorted(files, key=lambda file: int(file.stem))
