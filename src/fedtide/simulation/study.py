"""Several methods and seeds of one experiment, run side by side."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from fedtide.errors import BadInput, within
from fedtide.simulation.experiment import REQUIRED, Experiment, override, read_yaml
from fedtide.simulation.folder import RunFolder
from fedtide.simulation.interrupt import Interrupted, Interruption
from fedtide.simulation.progress import Watcher
from fedtide.simulation.run import Run
from fedtide.simulation.simulate import execute
from fedtide.simulation.tasks import forget_prepared

_TELL_SECONDS = 0.2  # between two reports of a worker


@dataclass(frozen=True)
class Member:
    """One run of a study.

    Args:
        path: its folder below the study's; empty for a study of one run.
        experiment: what it runs.
    """

    path: str
    experiment: Experiment


@dataclass(frozen=True)
class Study:
    """One experiment under several methods and seeds.

    A file describes a study by two keys beside those of an experiment: `seeds`, a list, and
    `methods`, which maps a name to the keys that this method changes. A key that holds a `type` is
    replaced as a whole; others are changed key by key.

    Args:
        name: for people.
        members: the runs, all methods of a seed before the next seed.
    """

    name: str
    members: tuple[Member, ...]

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Study:
        """Return the study of a YAML file; an experiment alone is a study of one run.

        Raises:
            BadInput: a file that cannot be read, or anything in it that cannot be used.
        """
        plain = override(read_yaml(path), overrides)
        seeds = plain.pop("seeds", None)
        methods = plain.pop("methods", None)
        name = str(plain.get("name", Path(path).stem))
        if seeds is None and methods is None:
            return cls(name, (Member("", Experiment.of(plain)),))
        if plain.keys() >= REQUIRED:
            Experiment.of(plain)  # what all methods replace would not be looked at otherwise
        members = tuple(
            _member(plain, method, changes, seed)
            for seed in _seeds(seeds, plain)
            for method, changes in _methods(methods, name).items()
        )
        return cls(name, members)


def _seeds(seeds: Any, plain: Mapping[str, Any]) -> list[Any]:
    if seeds is None:
        return [plain.get("seed", 0)]
    if not isinstance(seeds, list) or not seeds or len(set(map(str, seeds))) < len(seeds):
        raise BadInput("seeds: not a list of different numbers, such as [1, 2, 3]")
    return seeds


def _methods(methods: Any, name: str) -> Mapping[str, Any]:
    if methods is None:
        return {name: {}}
    usable = isinstance(methods, dict) and all(
        isinstance(changes, dict) for changes in methods.values()
    )
    if not usable or not methods:
        raise BadInput("methods: not names with the keys that each changes, such as fedau: {...}")
    return {str(method): changes for method, changes in methods.items()}


def _member(plain: Mapping[str, Any], method: str, changes: Mapping[str, Any], seed: Any) -> Member:
    if not method or "/" in method or method.startswith("."):
        raise BadInput(f"methods: {method!r} cannot be the name of a folder; choose another")
    for key, source in (("seed", "`seeds`"), ("name", "the method's own name")):
        if key in changes:
            raise BadInput(f"methods.{method}.{key}: it comes from {source}; leave it out")
    merged = _merged(deepcopy(dict(plain)), changes) | {"seed": seed, "name": method}
    try:
        return Member(f"{method}/seed-{seed}", Experiment.of(merged))
    except BadInput as error:
        raise error.at(f"methods.{method}") if changes else error from None


def _merged(plain: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data with changes: mappings without a `type` are merged."""
    for key, value in changes.items():
        old = plain.get(key)
        merge = isinstance(old, dict) and isinstance(value, dict) and "type" not in value
        plain[key] = _merged(dict(old), value) if merge and isinstance(old, dict) else value
    return plain


def run_study(
    study: Study,
    out: Path,
    resume: bool = False,
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> list[Path]:
    """Run all members, each in a folder of its own below `out`, and return the folders.

    Args:
        study: what to run.
        out: the folder.
        resume: finished members are left alone, and interrupted ones go on.
        workers: how many processes run members at a time; None: one for each core.
        watcher: is told of the rounds of all members together.

    Raises:
        BadInput: of the first member that cannot be used; then nothing is written.
        Interrupted: the study was asked to end; what was running has been saved.
    """
    folders = [out / member.path for member in study.members]
    _check(study, out, folders, resume)
    workers = min(workers or os.cpu_count() or 1, len(folders))
    if workers == 1:
        _one_by_one(study, folders, resume, watcher)
    else:
        _side_by_side(study, folders, resume, workers, watcher)
    return folders


def _check(study: Study, out: Path, folders: list[Path], resume: bool) -> None:
    """Make sure that all members can be run, before the first one writes anything.

    Raises:
        BadInput: of the first that cannot.
    """
    alone = len(folders) == 1
    if out.exists() and not out.is_dir():
        raise BadInput(f"out: {out} is a file; give a folder")
    if not alone and not resume and out.is_dir() and any(out.iterdir()):
        raise BadInput(f"out: {out} is not empty; choose another, or go on with --resume")
    for member, folder in zip(study.members, folders, strict=True):
        run_folder = RunFolder(folder)
        run_folder.check(member.experiment.plain(), resume)
        if not alone and not run_folder.finished:
            with within(member.path):
                Run(member.experiment, trainer="reference")


class _Sum(Watcher):
    """Adds up the rounds of all members for the watcher of the study."""

    def __init__(self, study: Study, watcher: Watcher | None) -> None:
        self._rounds = sum(member.experiment.rounds for member in study.members)
        self._ended = dict.fromkeys(range(len(study.members)), 0)
        self._watcher = watcher
        self.member = 0

    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Pass on the sum."""
        self._ended[self.member] = ended
        if self._watcher is not None:
            self._watcher.update(sum(self._ended.values()), self._rounds, loss)


def _one_by_one(study: Study, folders: list[Path], resume: bool, watcher: Watcher | None) -> None:
    total = _Sum(study, watcher)
    for i, (member, folder) in enumerate(zip(study.members, folders, strict=True)):
        total.member = i
        execute(member.experiment, folder, resume, total)
        total.update(member.experiment.rounds, member.experiment.rounds, None)


class _Teller(Watcher):
    """Tells the parent process now and then how far a member is."""

    def __init__(self, queue: Queue[tuple[int, int, float | None]], member: int) -> None:
        self._queue, self._member, self._last = queue, member, 0.0

    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Put a note into the queue, if the last one is old enough."""
        now = time.monotonic()
        if now - self._last > _TELL_SECONDS or ended == rounds:
            self._last = now
            self._queue.put((self._member, ended, loss))


_queue: Queue[tuple[int, int, float | None]]


def _begin_worker(queue: Queue[tuple[int, int, float | None]], threads: int) -> None:
    global _queue
    _queue = queue
    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):  # the loop of a run listens to the parent
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process once its parent is gone; whatever it was running can be resumed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(member: int, experiment: Experiment, folder: Path, resume: bool) -> None:
    execute(experiment, folder, resume, _Teller(_queue, member))


def _side_by_side(
    study: Study, folders: list[Path], resume: bool, workers: int, watcher: Watcher | None
) -> None:
    context = get_context("spawn")
    queue: Queue[tuple[int, int, float | None]] = context.Queue()
    threads = max(1, (os.cpu_count() or 1) // workers)
    total = _Sum(study, watcher)
    forget_prepared()  # the workers prepare their own
    with (
        Interruption() as interruption,
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin_worker, initargs=(queue, threads)
        ) as pool,
    ):
        futures = [
            pool.submit(_work, i, member.experiment, folder, resume)
            for i, (member, folder) in enumerate(zip(study.members, folders, strict=True))
        ]
        _attend(futures, queue, total, interruption, pool)
    errors = [None if future.cancelled() else future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, Interrupted):
            raise error
    if any(errors) or any(future.cancelled() for future in futures):
        raise Interrupted("interrupted and saved; the same command with --resume goes on")


def _attend(
    futures: list[Future[None]],
    queue: Queue[tuple[int, int, float | None]],
    total: _Sum,
    interruption: Interruption,
    pool: ProcessPoolExecutor,
) -> None:
    """Pass on progress until all members have ended, or one has failed, or we are asked to end."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=_TELL_SECONDS)
        failed = any(not f.cancelled() and f.exception() is not None for f in done)
        for member, ended, loss in _notes(queue):
            total.member = member
            total.update(ended, 0, loss)
        if failed or interruption.asked:
            _end(left, pool)
            return


def _end(left: set[Future[None]], pool: ProcessPoolExecutor) -> None:
    """End what is running in good order: it is saved."""
    for future in left:
        future.cancel()
    while left:  # a member that is only being prepared hears it later
        for process in list((pool._processes or {}).values()):
            process.terminate()
        _, left = wait(left, timeout=_TELL_SECONDS)


def _notes(
    queue: Queue[tuple[int, int, float | None]],
) -> Iterator[tuple[int, int, float | None]]:
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return
