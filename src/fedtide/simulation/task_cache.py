"""A cache of prepared tasks, which the methods of a sweep share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtide.content_hash import fingerprint, is_data, this_call
from fedtide.errors import InvalidInputError, error_prefix
from fedtide.import_paths import is_import_path, is_own
from fedtide.problems import Problem, Task
from fedtide.problems.weighted_objective import weigh_objective
from fedtide.simulation.experiment import Experiment
from fedtide.validation import expand_home

_PLAIN = (type(None), bool, int, float, complex, bytes, np.generic)

_Key = tuple[Any, ...]
_cached: list[tuple[_Key, Task]] = []


class _Same:
    """A cache key that equals only keys of the same object, and keeps it alive."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._thing is self._thing

    __hash__ = None  # type: ignore[assignment]


class _Volatile:
    """The cache key of a problem with code or objects, which may change unseen between calls.

    Such keys are equal only within one call (of `simulate` or a sweep). A key made outside of
    calls, when a result looks up the task of its run, equals that of any call.
    """

    def __init__(self, key: Any) -> None:
        self._key, self._call = key, this_call()

    def __eq__(self, wanted: object) -> bool:
        if not isinstance(wanted, _Volatile) or wanted._key != self._key:
            return False
        return wanted._call is None or wanted._call is self._call

    __hash__ = None  # type: ignore[assignment]


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
    """Return the task of a problem, from the cache of the last two if possible.

    Problems with equal fields and data share their task; those that name or hold code, networks or
    other objects share it only within one call of `simulate` or one sweep.
    """
    content = content_key(problem)
    wanted = (content, seed, device, dtype)
    for key, task in reversed(_cached):  # the last is that of the last run
        if key == wanted:
            return task
    task = problem.prepare(seed, torch.device(device), getattr(torch, dtype))
    if _is_lasting(content):  # otherwise the code may depend on the seed
        task.seed_family = (content, device, dtype)
    _cached[:] = [*_cached[-1:], (wanted, task)]
    return task


def count_alike(experiments: Sequence[Experiment]) -> list[int]:
    """Return for each experiment how many of them take the same local steps, itself included.

    They share compiled code. Experiments may differ in the learning rate, which is an input of the
    steps, and in the seed, unless the problem involves code, which may depend on it.
    """
    keys: list[Any] = []
    found = []
    for experiment in experiments:
        content = content_key(experiment.problem)
        local = replace(experiment.local, lr=1.0, schedule=None)
        seed = None if _is_lasting(content) else experiment.seed
        key = (content, content_key(local), experiment.dtype, experiment.device, seed)
        if key not in keys:
            keys.append(key)
        found.append(keys.index(key))
    counts = Counter(found)
    return [counts[number] for number in found]


def clear_task_cache() -> None:
    """Free the memory of the cached tasks."""
    _cached.clear()


def content_key(thing: Any) -> Any:
    """Return a key that is equal for equal problems: data by content, files by version.

    Anything with neither fields nor a fingerprint equals only itself.
    """
    if is_data(thing):
        return _data_key(thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        cls: type = type(thing)
        values = (content_key(getattr(thing, field.name)) for field in fields(thing))
        return _Volatile(cls) if is_own(cls) else cls, *values
    if isinstance(thing, list | tuple):
        return type(thing), *map(content_key, thing)
    if isinstance(thing, Mapping):
        return {key: content_key(value) for key, value in thing.items()}
    if isinstance(thing, str | Path):
        return _Volatile(thing) if is_import_path(thing) else thing, *_versions(expand_home(thing))
    return thing if isinstance(thing, _PLAIN) else _Volatile(_Same(thing))


def _is_lasting(key: Any) -> bool:
    """Return whether a key involves neither code nor objects in memory."""
    if isinstance(key, Mapping):
        return _is_lasting(list(key.values()))
    if isinstance(key, list | tuple):
        return all(map(_is_lasting, key))
    return not isinstance(key, _Volatile)


def _data_key(data: Any) -> Any:
    """Return a key that is equal for data of equal content, and for networks of equal code."""
    try:
        key = fingerprint(data)
    except InvalidInputError:  # samples of other types
        return _Volatile(_Same(data))
    if isinstance(data, torch.nn.Module):
        return _Volatile((key, [type(part) for part in data.modules()]))
    return key


def _versions(path: Path) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of a file, or of the files in a folder."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(file.name, file.stat()) for file in files if file.is_file()]
    except (OSError, ValueError):  # not a path
        return []
    return [(name, status.st_size, status.st_mtime_ns) for name, status in found]
