"""Preflight checks of a sweep: its output folder and its runs, before anything is written."""

from __future__ import annotations

from pathlib import Path

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.locking import LOCK_FILE
from fedtide.simulation.experiment import BUILDER, read_yaml
from fedtide.simulation.fingerprints import fingerprint_experiment
from fedtide.simulation.loop import Run
from fedtide.simulation.run_folder import Resume, RunFolder, folder_errors
from fedtide.sweep.sweep_spec import SWEEP_FILE, Sweep
from fedtide.yaml_text import dump


def check_sweep(sweep: Sweep, out: Path, strict: bool, resume: Resume) -> None:
    """Check all folders of a sweep, and prepare runs that have not ended to see if they can start.

    If `strict`, all of them are prepared; otherwise only the first is, and later runs that cannot
    start are recorded as failed.

    Raises:
        InvalidInputError: a run or folder cannot be used.
    """
    with folder_errors(out):
        if out.exists() and not out.is_dir():
            raise InvalidInputError(f"out: {out} is a file; give a folder")
        is_used = out.is_dir() and any(file.name != LOCK_FILE for file in out.iterdir())
        if is_used and not sweep.is_single_run:
            _check_existing(sweep, out, resume)
    for run in sweep.runs:
        folder = RunFolder(out / run.path)
        folder.check(run.experiment.to_dict(), resume)
        if folder.experiment.exists():
            folder.check_fingerprints(fingerprint_experiment(run.experiment), resume)
    if sweep.is_single_run:
        return  # it is checked when it starts
    left = [
        run for run in sweep.runs if not RunFolder(out / run.path).has_ended(run.experiment.rounds)
    ]
    untried = [run for run in left if not RunFolder(out / run.path).failure.exists()]
    for run in left if strict else untried[:1]:  # what failed before must not stop the rest
        with error_prefix(run.path):
            Run(run.experiment, trainer="reference")


def _check_existing(sweep: Sweep, out: Path, resume: Resume) -> None:
    """Check that a folder that is not empty holds a sweep that may be continued.

    Raises:
        InvalidInputError: it does not, or the record of the sweep would replace a sweep.yaml
            written by hand: one that has a `base`, or that overrides change.
    """
    file = out / SWEEP_FILE
    if not file.exists() and not any((out / run.path).exists() for run in sweep.runs):
        raise InvalidInputError(f"out: {out} is not empty and holds no sweep; choose another")
    if not resume:
        raise InvalidInputError(
            f"out: {out} is not empty; choose another, or continue with --resume (in Python "
            "resume=True)"
        )
    if not file.is_file():
        return
    there = read_yaml(file)
    is_record = "base" not in there and file.read_text(encoding="utf-8") == dump(there)
    if there != BUILDER.to_dict(sweep.plain) and not is_record:
        raise InvalidInputError(
            f"out: {file} is not a record of a sweep, and would be replaced; choose another"
        )
