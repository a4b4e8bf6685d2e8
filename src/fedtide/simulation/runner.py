"""Running an experiment: in memory, or in a folder from which it can be resumed at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch

from fedtide.activity import PREPARING, activity, listen
from fedtide.atomic_io import write_frame, write_json
from fedtide.errors import Interrupted, InvalidInputError
from fedtide.simulation.callbacks import Callback, RunView, check_callbacks
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.divergence import DivergenceError
from fedtide.simulation.early_end import Failure, Interruption
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.inputs import experiment_source, fingerprint_experiment
from fedtide.simulation.loop import Run
from fedtide.simulation.result import Result
from fedtide.simulation.result_files import (
    collect_result,
    final_clients,
    warn,
    write_results,
    write_timings,
)
from fedtide.simulation.run_folder import Resume, RunFolder, read_frame
from fedtide.spec import session
from fedtide.training.threads import restored_threads

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

    with session(), listen(on_activity), restored_threads():
        if out is None:
            return _in_memory(experiment, watchers, cluster, alike)
        return _in_folder(experiment, RunFolder(out), resume, watchers, cluster, alike)


def _in_memory(
    experiment: Experiment,
    callbacks: Sequence[Callback],
    cluster: RayCluster | None,
    alike: float,
) -> Result:
    with activity(PREPARING):
        run = Run(experiment, None, cluster, alike)
    plain = experiment.to_dict(in_memory=True)
    tell = _teller(run, callbacks, None)
    with _errors_told(tell):
        for _ in _rounds(run, tell):
            pass
    warn(run)
    result = collect_result(run, plain, run.log_table(), final_clients(run), None)
    tell("on_end")
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
    with activity(PREPARING):
        run = _prepare(experiment, checkpoint, None if has_ended else cluster, alike)
    folder.log_chain = "" if checkpoint is None else checkpoint.facts["log"]
    del checkpoint  # which may be larger than all else
    tell = _teller(run, [_FolderCallback(run, folder), *callbacks], folder.path)
    with folder.lock(plain, resume, fingerprints, experiment_source(experiment)):
        has_ended = folder.has_ended(experiment.rounds)
        if folder.finished and not has_ended:
            _reopen(run, folder)
        folder.update_experiment(plain)
        if has_ended:
            folder.drop_partial_results()
            log, clients = read_frame(folder.participation), read_frame(folder.clients)
            return collect_result(run, plain, log, clients, folder.path)
        with _errors_told(tell):
            _loop_in_folder(run, tell, folder)
            log, clients = write_results(run, folder)
    result = collect_result(run, plain, log, clients, folder.path)
    tell("on_end")
    return result


_Tell = Callable[..., None]
"""Calls the method of all callbacks that is named, with their views and the other arguments."""


def _teller(run: Run, callbacks: Sequence[Callback], out: Path | None) -> _Tell:
    """Return what tells callbacks about a run; what one changes in its view, no other sees."""
    watchers = [(callback, RunView(run, out)) for callback in callbacks]

    def tell(event: str, *details: object) -> None:
        for callback, view in watchers:
            getattr(callback, event)(view, *details)

    return tell


@contextmanager
def _errors_told(tell: _Tell) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        tell("on_error", error)
        raise


def _rounds(run: Run, tell: _Tell) -> Iterator[None]:
    """Run the remaining rounds and evaluate where that is due; yield at the start and after each.

    A callback may end the run after at least one round; its last model is then evaluated.
    """

    def evaluate(due: bool) -> None:
        if due:
            run.evaluate()
            tell("on_evaluation")

    tell("on_start")
    evaluate(run.is_evaluation_due)
    yield
    while run.ended < run.experiment.rounds and not (run.ended and run.stopped):
        run.round()
        evaluate(run.is_evaluation_due)
        tell("on_round_end")
        yield
    evaluate(not run.is_evaluated)


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
                write_json(self._folder.failure, asdict(Failure.of(error)))


def _load_checkpoint(folder: RunFolder) -> Checkpoint | None:
    """Return the last intact checkpoint with an intact log.

    Raises:
        InvalidInputError: a finished run has no intact checkpoint of its last round.
    """
    if not folder.finished:
        return load_newest(
            folder.checkpoints, lambda c: c.facts.get("log") == folder.chain_until(c.round)
        )
    checkpoint = load_newest(folder.checkpoints, lambda c: c.round == folder.rounds)
    if checkpoint is None:
        raise InvalidInputError(
            f"resume: {folder.path} is finished, and has no intact checkpoint from which the run "
            "could be read or continue; read its files, or start again in another folder"
        )
    return checkpoint


def _prepare(
    experiment: Experiment,
    checkpoint: Checkpoint | None,
    cluster: RayCluster | None,
    alike: float,
) -> Run:
    """Return the run, ready to start or to continue."""
    if checkpoint is None:
        return Run(experiment, None, cluster, alike)
    # threads split sums: their number affects the last bits
    torch.set_num_threads(checkpoint.facts["threads"])
    run = Run(experiment, checkpoint.facts["trainer"], cluster, alike)
    run.restore(checkpoint)
    return run


def _reopen(run: Run, folder: RunFolder) -> None:
    """Turn a finished run into one that is under way after the same number of rounds.

    If the process is killed meanwhile, the folder holds either the one or the other.
    """
    folder.reopen_log(run.ended)
    _save(run, folder)
    folder.drop_results()


def _loop_in_folder(run: Run, tell: _Tell, folder: RunFolder) -> None:
    """Run the remaining rounds, saving checkpoints on the way and at the end."""
    folder.truncate_after(run.ended)
    settings, took, saved = run.experiment.checkpoint, 0.0, time.monotonic()
    first = run.ended
    with Interruption() as interruption:
        for _ in _rounds(run, tell):
            if run.ended == first:  # nothing new to save, unless the run begins
                took = _save(run, folder) if first == 0 else 0.0
                saved = time.monotonic()
                continue
            due = settings.every is not None and run.ended % settings.every == 0
            pause = max(settings.seconds, min(took / _WRITING_SHARE, _LONGEST_PAUSE))
            ends = interruption.requested  # read once, so that a run that ends here has been saved
            if due or ends or time.monotonic() - saved > pause:
                took, saved = _save(run, folder), time.monotonic()
            if ends:
                raise Interrupted(
                    f"interrupted after round {run.ended} of {run.experiment.rounds}, saved in "
                    f"{folder.path}",
                    "continue with resume=True",
                )
    _save(run, folder)


def _save(run: Run, folder: RunFolder) -> float:
    """Write the new part of the log, then the checkpoint that relies on it; return the seconds."""
    began = time.monotonic()
    if run.log:
        folder.add_to_log(run.ended, run.log_table())
        run.log.clear()
    checkpoint = run.checkpoint()
    facts = {**checkpoint.facts, "threads": torch.get_num_threads(), "log": folder.log_chain}
    save(folder.checkpoints, replace(checkpoint, facts=facts))
    if run.ended and run.experiment.evaluation.clients:  # for reports on the run under way
        write_frame(folder.clients, run.clients_so_far())
    return time.monotonic() - began
