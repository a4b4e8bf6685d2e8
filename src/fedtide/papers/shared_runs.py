"""Planned runs of different experiments, cases and methods that have the same settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fedtide.papers.paper_registry import load, names
from fedtide.papers.plan import PlannedRun, plan


def group_identical(
    missing: Sequence[PlannedRun], runs: Sequence[PlannedRun]
) -> list[list[PlannedRun]]:
    """Return groups of runs with the same settings, each of which begins with the one to run.

    Args:
        missing: the runs that have no result.
        runs: all that are asked for, which may belong to a plan that is not one of fedtide's.
    """
    groups: dict[str, list[PlannedRun]] = {}
    for run in missing:
        if run.fingerprint not in groups:
            groups[run.fingerprint] = [run, *find_identical(run, runs)]
    return list(groups.values())


def find_identical(run: PlannedRun, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the others with the settings of a run: among these runs, then in other plans."""
    known = {other.key: other for other in (*runs, *_candidates().get(_coarse_key(run), ()))}
    return [
        other
        for key, other in known.items()
        if key != run.key and other.fingerprint == run.fingerprint
    ]


@cache
def _candidates() -> Mapping[Any, Sequence[PlannedRun]]:
    """Return the planned runs of all experiments, by a key that is cheap to compare."""
    runs: dict[Any, list[PlannedRun]] = defaultdict(list)
    for name in names():
        paper = load(name)
        for scale in paper.scales:
            for run in plan(paper, scale):
                runs[_coarse_key(run)].append(run)
    return runs


def _coarse_key(run: PlannedRun) -> tuple[Any, ...]:
    """Return settings that every run has, and that equal runs have in common."""
    return run.seed, run.compute, run.settings.get("rounds")
