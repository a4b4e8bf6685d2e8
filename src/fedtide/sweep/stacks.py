"""Runs that differ in their seeds only, and are faster together than one after another."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from fedtide.simulation.experiment import Experiment
from fedtide.simulation.interrupt import Interruption
from fedtide.simulation.together import Execute, execute_together
from fedtide.sweep.job import Job, Over, perform

Stack = tuple[Job, ...]
"""Jobs that one process runs as one."""

Grouped = Callable[[Sequence[Job], int], list[Stack]]
"""Makes stacks of jobs, for so many workers."""

_LARGEST = 512
"""The d up to which a local step takes as long for many clients as for one: 4 KiB of float64."""
_MOST = 20
"""Beyond so many seeds, what each does for itself is nearly all that is left."""


def one_by_one(jobs: Sequence[Job], workers: int) -> list[Stack]:
    """Leave every job alone."""
    return [(job,) for job in jobs]


def seeds_together(jobs: Sequence[Job], workers: int) -> list[Stack]:
    """Put the seeds of one experiment together where its model is small; the others stay alone.

    Args:
        jobs: what is to be run.
        workers: how many processes there are, none of which should be idle for that.
    """
    groups: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        one = job.experiment
        groups[_all_but_the_seed(one) if _small(one) else job.path].append(job)
    parts = -(-workers // max(1, len(groups)))
    return [stack for group in groups.values() for stack in _cut(group, parts)]


def _small(experiment: Experiment) -> bool:
    dimension = experiment.problem.dimension
    stacks = experiment.trainer in ("auto", "stacked", "compiled")
    return stacks and dimension is not None and dimension <= _LARGEST


def _all_but_the_seed(experiment: Experiment) -> str:
    return json.dumps(experiment.plain() | {"seed": None, "name": None}, default=str)


def _cut(group: Sequence[Job], parts: int) -> list[Stack]:
    """Cut a group into so many parts, or more, of nearly equal sizes."""
    parts = min(len(group), max(parts, -(-len(group) // _MOST)))
    ends = [len(group) * part // parts for part in range(parts + 1)]
    return [tuple(group[i:j]) for i, j in pairwise(ends)]


def perform_all(
    stack: Stack,
    tell: Callable[[str, int, float | None], None],
    over: Over,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run the jobs of a stack, as one if they are several.

    Args:
        stack: the jobs.
        tell: is told of each round: of which job, how many are over, and the last loss.
        over: is told what became of each job when it has ended.
        stopped: whether the others are then to be saved and ended.
    """

    def run(job: Job, execute: Execute) -> None:
        over(job, perform(job, partial(tell, job.path), execute))
        if stopped():
            interruption.ask()

    if len(stack) == 1:
        (job,) = stack
        over(job, perform(job, partial(tell, job.path)))
        return
    with Interruption() as interruption:
        execute_together([partial(run, job) for job in stack])
