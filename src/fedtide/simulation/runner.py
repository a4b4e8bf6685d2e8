"""Running an experiment: in memory, or in a folder from which it can be resumed at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedtide.activity import PREPARING, activity, listen
from fedtide.atomic_io import write_frame, write_json
from fedtide.errors import Interrupted, InvalidInputError, first_line
from fedtide.simulation.callbacks import Callback, RunView, WatchedRun, check_callbacks
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.divergence import DivergenceError
from fedtide.simulation.early_end import Failure, Interruption
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.fingerprints import fingerprint_experiment
from fedtide.simulation.loop import Run
from fedtide.simulation.result import Result
from fedtide.simulation.result_files import (
    collect_result,
    final_clients,
    read_result,
    warn,
    write_results,
    write_timings,
)
from fedtide.simulation.run_folder import Resume, RunFolder
from fedtide.spec import Opaque, session
from fedtide.training.devices import lacks_memory
from fedtide.training.threads import restored_threads
from fedtide.training.trainers.select import TrainerName

_logger = logging.getLogger(__name__)

_WRITING_SHARE = 0.05
"""The share of a run's time that periodic checkpoints may take."""
_LONGEST_PAUSE = 600.0
"""The longest time in seconds by which a slow checkpoint may delay the next one."""


def execute(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: Resume = False,
    callbacks: Iterable[Callback] = (),
    cluster: RayCluster | None = None,
    alike: float = 1,
) -> Result:
    """Run an experiment, in memory or in the folder `out`, watched by callbacks.

    With a cluster, its workers train the clients. For `alike` see `Run`.
    """
    if out is None and resume:
        raise InvalidInputError("resume: no folder to continue; give it as out")
    watchers = check_callbacks(callbacks)

    def on_activity(what: str) -> None:
        for watcher in watchers:
            watcher.on_activity(what)

    with _memory_errors(), session(), listen(on_activity), restored_threads():
        if out is None:
            run = _new_run(experiment, None, cluster, alike)
            return _in_memory(run, experiment.to_dict(Opaque.of), watchers)
        return _in_folder(experiment, RunFolder(out), resume, watchers, cluster, alike)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn memory errors into an InvalidInputError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        explained = _explain_memory(error)
        if explained is error:
            raise
        raise explained from None


def _explain_memory(error: Exception) -> Exception:
    """Turn an out-of-memory error into one that says what to do; return any other as it is."""
    if not lacks_memory(error):
        return error
    return InvalidInputError(
        f"problem: not enough memory ({first_line(error)}); give fewer clients, samples or "
        "local steps, a smaller model, or a smaller chunk"
    )


def _in_memory(run: Run, plain: Mapping[str, Any], callbacks: Sequence[Callback]) -> Result:
    watched = WatchedRun(run, callbacks)
    with watched:
        watched.start()
        while not watched.is_over:
            watched.advance()
        watched.finish()
    warn(run)
    result = collect_result(
        run, plain, run.log_table(), final_clients(run), None, watched.view.stopped
    )
    watched.tell_end()
    return result


def _in_folder(
    experiment: Experiment,
    folder: RunFolder,
    resume: Resume,
    callbacks: Sequence[Callback],
    cluster: RayCluster | None,
    alike: float,
) -> Result:
    plain = experiment.to_dict()
    folder.check(plain, resume)
    fingerprints = fingerprint_experiment(experiment)
    folder.check_fingerprints(fingerprints, resume)
    has_ended = folder.has_ended(experiment.rounds)  # then it is only read
    checkpoint = _load_checkpoint(folder) if resume else None
    if folder.finished and not has_ended and checkpoint is None:
        raise InvalidInputError(
            f"resume: {folder.path} has no intact checkpoint from which its finished run could "
            "continue; start again in another folder"
        )
    run = _prepare(experiment, checkpoint, folder, None if has_ended else cluster, alike)
    stopped = checkpoint.facts.get("stopped", "") if checkpoint else ""
    del checkpoint  # which may be larger than all else
    with folder.lock(plain, resume, fingerprints):
        if folder.has_ended(experiment.rounds):
            folder.drop_partial_results()
            folder.update_experiment(plain)
            return read_result(run, plain, folder)
        watchers = [_FolderCallback(run, folder), *callbacks]
        watched = WatchedRun(run, watchers, folder.path)
        if stopped:
            watched.view.stop(stopped)
        if folder.finished:
            _reopen(watched, folder)
        folder.update_experiment(plain)
        with watched:
            _loop_in_folder(watched, folder)
            log, clients = write_results(run, folder, watched.view.stopped)
    result = collect_result(run, plain, log, clients, folder.path, watched.view.stopped)
    watched.tell_end()
    return result


def _new_run(
    experiment: Experiment,
    trainer: TrainerName | None,
    cluster: RayCluster | None,
    alike: float,
) -> Run:
    with activity(PREPARING):
        return Run(experiment, trainer, cluster, alike)


class _FolderCallback(Callback):
    """Writes what others may read of an unfinished run: its metrics, and why it failed."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self._run, self._folder = run, folder

    def on_start(self, run: RunView) -> None:
        self._folder.start_live_metrics(run.metrics)
        self._folder.failure.unlink(missing_ok=True)  # that of an earlier attempt

    def on_evaluation(self, run: RunView) -> None:
        self._folder.add_live_metrics(run.metrics[-1])

    def on_error(self, run: RunView, error: BaseException) -> None:
        if isinstance(error, Exception) and not isinstance(error, Interrupted):
            with suppress(InvalidInputError):  # if the disk is full, `error` says so, too
                if isinstance(error, DivergenceError):  # no other attempt will write them
                    write_timings(self._run, self._folder)
                write_json(self._folder.failure, asdict(Failure.of(_explain_memory(error))))


def _load_checkpoint(folder: RunFolder) -> Checkpoint | None:
    """Return the last intact checkpoint with an intact log."""
    if folder.finished:  # the parts of the log are one file now
        return load_newest(folder.checkpoints)
    return load_newest(
        folder.checkpoints, lambda c: c.facts.get("log") == folder.chain_until(c.round)
    )


def _prepare(
    experiment: Experiment,
    checkpoint: Checkpoint | None,
    folder: RunFolder,
    cluster: RayCluster | None,
    alike: float,
) -> Run:
    """Return the run, ready to start or to continue."""
    if checkpoint is None:
        return _new_run(experiment, None, cluster, alike)
    with _version_errors(checkpoint, folder):
        threads, trainer, chain = (checkpoint.facts[name] for name in ("threads", "trainer", "log"))
        clients = len(checkpoint.tensors["tally.used"])
    torch.set_num_threads(threads)  # threads split sums: their number affects the last bits
    folder.log_chain = chain
    started = _new_run(experiment, trainer, cluster, alike)
    _check_size("clients", clients, started.population.clients, folder)
    with _version_errors(checkpoint, folder):
        started.restore(checkpoint)
    model, start = started.driver.state.model, started.task.start
    _check_size("parameters", len(model), len(start), folder)
    return started


def _check_size(what: str, before: int, now: int, folder: RunFolder) -> None:
    """Refuse a checkpoint with a different number of clients or parameters."""
    if before != now:
        raise InvalidInputError(
            f"resume: the run in {folder.path} has {before} {what}, and this one {now}; give the "
            "same data and model or another folder"
        )


@contextmanager
def _version_errors(checkpoint: Checkpoint, folder: RunFolder) -> Iterator[None]:
    """Refuse an intact checkpoint with unexpected contents, written by another version."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        raise InvalidInputError(
            f"resume: the checkpoint of round {checkpoint.round} in {folder.path} is of another "
            f"version ({error!r:.80}); start again in another folder"
        ) from None


def _reopen(watched: WatchedRun, folder: RunFolder) -> None:
    """Turn a finished run into one that is under way after the same number of rounds.

    If the process is killed meanwhile, the folder holds either the one or the other.

    Raises:
        UnreadableFileError: the log is missing or damaged; nothing has changed.
    """
    folder.reopen_log(watched.run.ended)
    _save(watched, folder)
    folder.drop_results()


def _loop_in_folder(watched: WatchedRun, folder: RunFolder) -> None:
    """Run the remaining rounds, saving checkpoints on the way and at the end."""
    run = watched.run
    folder.truncate_after(run.ended)
    watched.start()
    took = _save(watched, folder) if run.ended == 0 else 0.0
    settings, saved = run.experiment.checkpoint, time.monotonic()
    with Interruption() as interruption:
        while not watched.is_over:
            try:
                watched.advance()
            except DivergenceError as error:
                kept = load_newest(folder.checkpoints)
                assert kept is not None
                raise DivergenceError(
                    f"{error}; the checkpoint of round {kept.round} is kept"
                ) from None
            due = settings.every is not None and run.ended % settings.every == 0
            pause = max(settings.seconds, min(took / _WRITING_SHARE, _LONGEST_PAUSE))
            ends = interruption.requested  # read once, so that a run that ends here has been saved
            if due or ends or time.monotonic() - saved > pause:
                took, saved = _save(watched, folder), time.monotonic()
            if ends:
                raise Interrupted(
                    f"interrupted after round {run.ended} of {run.experiment.rounds}, saved in "
                    f"{folder.path}",
                    "continue with resume=True",
                )
    watched.finish()
    _save(watched, folder)


def _save(watched: WatchedRun, folder: RunFolder) -> float:
    """Write the new part of the log, then the checkpoint that relies on it; return the seconds."""
    run, began = watched.run, time.monotonic()
    if run.log:
        folder.add_to_log(run.ended, run.log_table())
        run.log.clear()
    checkpoint = run.checkpoint()
    facts = {**checkpoint.facts, "threads": torch.get_num_threads(), "log": folder.log_chain}
    if watched.view.stopped:
        facts["stopped"] = watched.view.stopped
    save(folder.checkpoints, Checkpoint(checkpoint.round, checkpoint.tensors, facts))
    if run.ended and run.experiment.evaluation.clients:  # for reports on the run under way
        write_frame(folder.clients, run.clients_so_far())
    return time.monotonic() - began
