"""Whether the runs of a sweep can be run in the folder that is there for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.simulation.loop import Run
from fedtide.simulation.run_folder import RunFolder
from fedtide.sweep.configurations import SweepRun
from fedtide.sweep.sweep_spec import FILE


def check_runs(members: Sequence[SweepRun], out: Path, strict: bool, resume: bool) -> None:
    """Make sure that the runs can be run, before the first one writes anything.

    Raises:
        InvalidInputError: of the first that cannot. Unless `strict`, only the first that is left to run is
            prepared to see whether it can: the others say so themselves.
    """
    alone = len(members) == 1 and members[0].path == ""
    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"out: {out} is a file; give a folder")
    if not alone and out.is_dir() and any(out.iterdir()):
        _check_used(members, out, resume)
    for member in members:
        RunFolder(out / member.path).check(member.experiment.to_dict(), resume)
    left = [member for member in members if not RunFolder(out / member.path).finished]
    for member in [] if alone else left if strict else left[:1]:
        with error_prefix(member.path):
            Run(member.experiment, trainer="reference")


def _check_used(members: Sequence[SweepRun], out: Path, resume: bool) -> None:
    if not resume:
        raise InvalidInputError(f"out: {out} is not empty; choose another, or go on with --resume")
    known = (out / FILE).exists() or any((out / member.path).exists() for member in members)
    if not known:
        raise InvalidInputError(f"out: {out} is not empty and holds no sweep; choose another")
