"""Preflight checks of a sweep: its output folder and its runs, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.locking import LOCK_FILE
from fedtide.simulation.experiment import BUILDER, read_yaml
from fedtide.simulation.fingerprints import fingerprint_experiment
from fedtide.simulation.loop import Run
from fedtide.simulation.run_folder import Resume, RunFolder, folder_errors
from fedtide.sweep.configurations import SweepRun
from fedtide.sweep.sweep_spec import SWEEP_FILE, Sweep
from fedtide.yaml_text import dump


def check_runs(runs: Sequence[SweepRun], out: Path, strict: bool, resume: Resume) -> None:
    """Check the folders of all runs, and prepare those that are left to see whether they can start.

    If `strict`, all of them are prepared; otherwise only the first, and later runs that cannot
    start are recorded as failed.

    Raises:
        InvalidInputError: the first run or folder that cannot be used.
    """
    single = len(runs) == 1 and runs[0].path == ""
    with folder_errors(out):
        if out.exists() and not out.is_dir():
            raise InvalidInputError(f"out: {out} is a file; give a folder")
        if not single and out.is_dir() and any(file.name != LOCK_FILE for file in out.iterdir()):
            _check_existing(runs, out, resume)
    for run in runs:
        folder = RunFolder(out / run.path)
        folder.check(run.experiment.to_dict(), resume)
        if folder.experiment.exists():
            folder.check_fingerprints(fingerprint_experiment(run.experiment), resume)
    if single:
        return  # it is checked when it starts
    left = [run for run in runs if not RunFolder(out / run.path).has_ended(run.experiment.rounds)]
    untried = [run for run in left if not RunFolder(out / run.path).failure.exists()]
    for run in left if strict else untried[:1]:  # a failure is on record, and others are not run
        with error_prefix(run.path):
            Run(run.experiment, trainer="reference")


def check_record(sweep: Sweep, out: Path) -> None:
    """Check that the record of the sweep replaces no file that somebody has written by hand.

    Raises:
        InvalidInputError: it would, as with a sweep.yaml that has a `base`, or that overrides
            change.
    """
    file = out / SWEEP_FILE
    if not file.is_file():
        return
    there = read_yaml(file)
    if there != BUILDER.to_dict(sweep.plain) and file.read_text(encoding="utf-8") != dump(there):
        raise InvalidInputError(
            f"out: {file} is not a record of a sweep, and would be replaced; choose another"
        )


def _check_existing(runs: Sequence[SweepRun], out: Path, resume: Resume) -> None:
    if not (out / SWEEP_FILE).exists() and not any((out / run.path).exists() for run in runs):
        raise InvalidInputError(f"out: {out} is not empty and holds no sweep; choose another")
    if not resume:
        raise InvalidInputError(
            f"out: {out} is not empty; choose another, or continue with --resume (in Python "
            "resume=True)"
        )
