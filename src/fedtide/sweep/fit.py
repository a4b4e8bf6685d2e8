"""Whether the runs of a sweep can be run in the folder that is there for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtide.errors import BadInput, within
from fedtide.simulation.folder import RunFolder
from fedtide.simulation.run import Run
from fedtide.sweep.members import Member
from fedtide.sweep.sweep import FILE


def check_runs(members: Sequence[Member], out: Path, strict: bool, resume: bool) -> None:
    """Make sure that the runs can be run, before the first one writes anything.

    Raises:
        BadInput: of the first that cannot. Unless `strict`, only the first that is left to run is
            prepared to see whether it can: the others say so themselves.
    """
    alone = len(members) == 1 and members[0].path == ""
    if out.exists() and not out.is_dir():
        raise BadInput(f"out: {out} is a file; give a folder")
    if not alone and out.is_dir() and any(out.iterdir()):
        _check_used(members, out, resume)
    for member in members:
        RunFolder(out / member.path).check(member.experiment.plain(), resume)
    left = [member for member in members if not RunFolder(out / member.path).finished]
    for member in [] if alone else left if strict else left[:1]:
        with within(member.path):
            Run(member.experiment, trainer="reference")


def _check_used(members: Sequence[Member], out: Path, resume: bool) -> None:
    if not resume:
        raise BadInput(f"out: {out} is not empty; choose another, or go on with --resume")
    known = (out / FILE).exists() or any((out / member.path).exists() for member in members)
    if not known:
        raise BadInput(f"out: {out} is not empty and holds no sweep; choose another")
