"""Planned runs of different experiments, cases and methods that have the same settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fedtide.papers.paper_registry import load, names
from fedtide.papers.paper_spec import SCALES
from fedtide.papers.plan import PlannedRun, plan


def group_identical(runs: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
    """Return groups of runs with the same settings: the given ones, then those of other plans.

    The first of each group is the one to run; its result is that of the others.
    """
    groups: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        groups[run.fingerprint].append(run)
    given = {run.key for run in runs}
    for fingerprint, group in groups.items():
        group += [
            run
            for run in _candidates().get(_coarse_key(group[0]), ())
            if run.key not in given and run.fingerprint == fingerprint
        ]
    return list(groups.values())


@cache
def _candidates() -> Mapping[Any, Sequence[PlannedRun]]:
    """Return the planned runs of all experiments by what is cheap to compare."""
    runs: dict[Any, list[PlannedRun]] = defaultdict(list)
    for name in names():
        paper = load(name)
        for scale in SCALES if paper.laptop is not None else SCALES[:1]:
            for run in plan(paper, scale):
                runs[_coarse_key(run)].append(run)
    return runs


def _coarse_key(run: PlannedRun) -> tuple[Any, ...]:
    """Return settings that every run has, and that equal runs have in common."""
    return run.seed, run.compute, run.settings.get("rounds")
