"""Prepared tasks, kept for the other methods of a sweep."""

from __future__ import annotations

import torch

from fedtide.problems import Problem, Task

_Wanted = tuple[Problem, int, str, str]
_kept: list[tuple[_Wanted, Task]] = []


def prepare_cached(problem: Problem, seed: int, device: str, dtype: str) -> Task:
    """Return the task of a problem; the last two are kept, for the other methods of a sweep."""
    wanted = (problem, seed, device, dtype)
    for key, task in _kept:
        if key == wanted:
            return task
    task = problem.prepare(seed, torch.device(device), getattr(torch, dtype))
    _kept[:] = [*_kept[-1:], (wanted, task)]
    return task


def clear_task_cache() -> None:
    """Give back the memory of the tasks that are kept."""
    _kept.clear()
