"""What an experiment is computed from: its prepared task, and fingerprints of all that it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.problems import Problem, Task
from fedtide.problems.weighted_objective import weigh_objective
from fedtide.simulation.experiment import Experiment
from fedtide.spec import PROCESS, Session, hash_code, hash_files, is_changeable, key, main_source

Fingerprints = Mapping[str, Any]
"""SHA-256 hashes. `data`: of the problem's data, or None; `files`: of the files that the
participation names; `code`: of the modules of imported classes and functions."""


def prepare_task(experiment: Experiment) -> Task:
    """Return the task of an experiment; the mean of its losses over clients is the objective.

    Raises:
        InvalidInputError: data are missing or do not fit, or the problem refuses the dtype.
    """
    with error_prefix("problem"):
        task = prepare_cached(
            experiment.problem, experiment.seed, experiment.device, experiment.dtype
        )
    if task.start.dtype == torch.bfloat16:
        raise InvalidInputError("dtype: bfloat16 is for networks; use float32 or float64 here")
    return weigh_objective(task, experiment.objective)


def prepare_cached(problem: Problem, seed: int, device: str, dtype: str) -> Task:
    """Return the task of a problem, the same as before if it was among the last two.

    Problems with equal fields and data share their task; those with code, networks or other
    objects, which may change unseen, share it only within a session (see `fedtide.spec.Session`).
    """
    content, changeable = key(problem), is_changeable(problem)

    def prepare() -> Task:
        task = problem.prepare(seed, torch.device(device), getattr(torch, dtype))
        if not changeable:  # otherwise the code may depend on the seed
            task.seed_family = (content, device, dtype)
        return task

    store = Session.current() if changeable else PROCESS
    return store.prepare((content, seed, device, dtype), prepare)


def count_alike(experiments: Sequence[Experiment]) -> list[int]:
    """Return for each experiment how many of them take the same local steps, itself included.

    They share compiled code. Experiments may differ in the learning rate, which is an input of the
    steps, and in the seed, unless the problem involves code, which may depend on it.
    """

    def steps_key(experiment: Experiment) -> object:
        problem, local = experiment.problem, replace(experiment.local, lr=1.0, schedule=None)
        seed = experiment.seed if is_changeable(problem) else None
        return key(problem), key(local), experiment.dtype, experiment.device, seed

    keys = [*map(steps_key, experiments)]
    counts = Counter(keys)
    return [counts[one] for one in keys]


def fingerprint_experiment(experiment: Experiment) -> Fingerprints:
    """Return the SHA-256 of the data, files and code that an experiment uses.

    Raises:
        InvalidInputError: the data cannot be read.
    """
    problem = experiment.problem
    with error_prefix("problem"):
        data = Session.current().once(("data", key(problem)), problem.fingerprint)
    names = ("participation", "selection", "dropout")
    reading = {name: getattr(experiment, name) for name in names}
    return {"data": data, "files": hash_files(reading), "code": hash_code(_parts(experiment))}


def experiment_source(experiment: Experiment) -> str:
    """Return the source of what an experiment uses and the notebook or script itself defines."""
    return main_source(_parts(experiment))


def _parts(experiment: Experiment) -> list[Any]:
    names = ("participation", "selection", "dropout", "problem", "algorithm", "local")
    return [getattr(experiment, name) for name in names]


def list_changes(before: Fingerprints, now: Fingerprints) -> list[str]:
    """Return what differs between two fingerprints of the same experiment, in words.

    >>> list_changes({"data": "a", "code": {"m": "b"}}, {"data": "a", "code": {"m": "c"}})
    ['the code of m']
    """
    changes = ["the data of the problem"] if before.get("data") != now.get("data") else []
    for kind, words in (("files", "the file of"), ("code", "the code of")):
        old, new = before.get(kind, {}), now.get(kind, {})
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        changes += [f"{words} {name}" for name in names]
    return changes
