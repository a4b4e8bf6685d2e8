"""Running an experiment: in memory, or in a folder from which it can be resumed at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import polars as pl
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import nn

from fedtide.activity import PREPARING, activity, listen
from fedtide.atomic_io import write_atomically, write_frame, write_json
from fedtide.content_hash import hash_once
from fedtide.errors import InvalidInputError, first_line
from fedtide.simulation.callbacks import Callback, RunView
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.divergence import DivergenceError
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.fingerprints import fingerprint_experiment
from fedtide.simulation.interruption import Interrupted, Interruption
from fedtide.simulation.loop import Run
from fedtide.simulation.result import Result
from fedtide.simulation.run_folder import Failure, Resume, RunFolder, finite_row, read_frame
from fedtide.training.devices import lacks_bfloat16, lacks_memory
from fedtide.training.threads import restored_threads
from fedtide.training.trainers.select import TrainerName

_logger = logging.getLogger(__name__)


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

    with _memory_errors(), hash_once(), listen(on_activity), restored_threads():
        if out is None:
            return _in_memory(experiment, watchers, cluster, alike)
        return _in_folder(experiment, RunFolder(out), resume, watchers, cluster, alike)


def check_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple.

    Raises:
        InvalidInputError: something else among them, or a callback that is not in a list.
    """
    watchers = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for watcher in watchers:
        if not isinstance(watcher, Callback) or not isinstance(callbacks, Iterable):
            raise InvalidInputError(
                f"callbacks: {watcher!r:.60} is not a list of callbacks; give objects of classes "
                "derived from ft.callbacks.Callback, in a list"
            )
    return watchers


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
    """Return what to do about an error of missing memory; any other error as it is."""
    if not lacks_memory(error):
        return error
    return InvalidInputError(
        f"problem: not enough memory ({first_line(error)}); give fewer clients, samples or "
        "local steps, a smaller model, or a smaller chunk"
    )


def _log_warnings(run: Run) -> list[str]:
    """Log and return what a run should not end with in silence."""
    found = run.warnings()
    for sentence in found:
        _logger.warning("%s, seed %d: %s", run.experiment.name, run.experiment.seed, sentence)
    return found


def _in_memory(
    experiment: Experiment,
    callbacks: Sequence[Callback],
    cluster: RayCluster | None,
    alike: float,
) -> Result:
    watched = _WatchedRun(_new_run(experiment, None, cluster, alike), callbacks)
    with watched:
        watched.start()
        while not watched.is_over:
            watched.advance()
        watched.finish()
    _log_warnings(watched.run)
    run = watched.run
    result = _result(run, run.log_table(), run.clients(), stopped=watched.view.stopped)
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
    checkpoint = _last(folder) if resume else None
    # a finished run is only read
    run = _prepare(experiment, checkpoint, folder, None if folder.finished else cluster, alike)
    with folder.lock(plain, resume, fingerprints):
        if folder.finished:
            folder.drop_partial_results()
            return _read(run, folder)
        watchers = [_LiveMetrics(folder), _FailureNote(folder), *callbacks]
        watched = _WatchedRun(run, watchers, folder.path)
        watched.view.stopped = checkpoint.facts.get("stopped", "") if checkpoint else ""
        with watched:
            _loop_in_folder(watched, folder)
            log, clients = _finish(watched, folder)
    result = _result(run, log, clients, folder.path, watched.view.stopped)
    watched.tell_end()
    return result


def _new_run(
    experiment: Experiment,
    trainer: TrainerName | None,
    cluster: RayCluster | None,
    alike: float,
) -> Run:
    with activity(PREPARING):
        run = Run(experiment, trainer, cluster, alike)
    if experiment.dtype == "bfloat16" and lacks_bfloat16(run.task.start):
        _logger.warning(
            "%s, seed %d: dtype: this processor has no instructions for bfloat16, so gradients "
            "take several times as long as in float32; use float32",
            experiment.name,
            experiment.seed,
        )
    return run


class _LiveMetrics(Callback):
    """Writes the metrics as they come, for whoever watches the folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_start(self, run: RunView) -> None:
        self._folder.start_live_metrics(run.metrics)

    def on_evaluation(self, run: RunView) -> None:
        self._folder.add_live_metrics(run.metrics[-1])


class _FailureNote(Callback):
    """Writes why a run failed, for the reports and whoever looks into the folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_start(self, run: RunView) -> None:
        self._folder.failure.unlink(missing_ok=True)  # that of an earlier attempt

    def on_error(self, run: RunView, error: BaseException) -> None:
        if isinstance(error, Exception) and not isinstance(error, Interrupted):
            with suppress(InvalidInputError):  # of a full disk: `error` says it, too
                write_json(self._folder.failure, asdict(Failure.of(_explain_memory(error))))


class _WatchedRun(AbstractContextManager["_WatchedRun"]):
    """A run and the callbacks that are told what happens; as a context, also of its errors."""

    def __init__(self, run: Run, callbacks: Sequence[Callback], out: Path | None = None) -> None:
        self.run, self.view, self._callbacks = run, RunView(run, out), callbacks

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for callback in self._callbacks:
                callback.on_error(self.view, error)

    @property
    def is_over(self) -> bool:
        """Whether all rounds have ended, or a callback has stopped the run."""
        ended = self.run.ended
        return ended == self.run.experiment.rounds or (ended > 0 and bool(self.view.stopped))

    def start(self) -> None:
        """Evaluate the initial model, if the experiment asks for it."""
        for callback in self._callbacks:
            callback.on_start(self.view)
        self._tell_evaluation_by(self.run.start)

    def advance(self) -> None:
        """Run a round and evaluate if that is due."""
        self.run.round()
        self._tell_evaluation_by(self.run.evaluate_if_due)
        for callback in self._callbacks:
            callback.on_round_end(self.view)

    def finish(self) -> None:
        """Evaluate the last model of a run that was stopped between two evaluations."""
        if not self.run.metrics or self.run.metrics[-1]["round"] < self.run.ended:
            self._tell_evaluation_by(self.run.evaluate)

    def tell_end(self) -> None:
        """Tell the callbacks that the results are complete."""
        for callback in self._callbacks:
            callback.on_end(self.view)

    def _tell_evaluation_by(self, evaluate: Callable[[], None]) -> None:
        before = len(self.run.metrics)
        evaluate()
        if len(self.run.metrics) > before:
            for callback in self._callbacks:
                callback.on_evaluation(self.view)


def _last(folder: RunFolder) -> Checkpoint | None:
    """Return the last intact checkpoint whose log is intact, too."""
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
    torch.set_num_threads(threads)  # sums are split by threads: needed for the same bits
    folder.log_chain = chain
    started = _new_run(experiment, trainer, cluster, alike)
    with _version_errors(checkpoint, folder):
        clients = len(checkpoint.tensors["tally.used"])
    _check_size("clients", clients, started.population.clients, folder)
    with _version_errors(checkpoint, folder):
        started.restore(checkpoint)
    model, start = started.driver.state.model, started.task.start
    _check_size("parameters", len(model), len(start), folder)
    return started


def _check_size(what: str, before: int, now: int, folder: RunFolder) -> None:
    """Refuse a checkpoint of another number of clients or parameters."""
    if before != now:
        raise InvalidInputError(
            f"resume: the run in {folder.path} has {before} {what}, and this one {now}; give the "
            "same data and model or another folder"
        )


@contextmanager
def _version_errors(checkpoint: Checkpoint, folder: RunFolder) -> Iterator[None]:
    """Refuse an intact checkpoint with other contents, as another version may write it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(
            f"resume: the checkpoint of round {checkpoint.round} in {folder.path} is of another "
            f"version ({error!r:.80}); start again in another folder"
        ) from None


def _loop_in_folder(watched: _WatchedRun, folder: RunFolder) -> None:
    """Run the remaining rounds, saving checkpoints on the way and at the end."""
    run = watched.run
    folder.truncate_after(run.ended)
    watched.start()
    if run.ended == 0:
        _save(watched, folder)
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
            if due or interruption.requested or time.monotonic() - saved > settings.seconds:
                _save(watched, folder)
                saved = time.monotonic()
            if interruption.requested:
                raise Interrupted(
                    f"interrupted after round {run.ended} of {run.experiment.rounds}, saved in "
                    f"{folder.path}",
                    "continue with resume=True",
                )
    watched.finish()
    _save(watched, folder)


def _save(watched: _WatchedRun, folder: RunFolder) -> None:
    """Write the new part of the log, then the checkpoint that relies on it."""
    run = watched.run
    if run.log:
        folder.add_to_log(run.ended, run.log_table())
        run.log.clear()
    checkpoint = run.checkpoint()
    facts = {**checkpoint.facts, "threads": torch.get_num_threads(), "log": folder.log_chain}
    if watched.view.stopped:
        facts["stopped"] = watched.view.stopped
    save(folder.checkpoints, Checkpoint(checkpoint.round, checkpoint.tensors, facts))
    if run.ended and run.experiment.evaluation.clients:  # for a report on the run under way
        write_frame(folder.clients, run.clients_so_far())


def _finish(watched: _WatchedRun, folder: RunFolder) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Write the results; return the log and the table of clients.

    The summary, written last, marks the results as complete.
    """
    run = watched.run
    log = pl.concat([run.log_table(), *folder.read_log()])
    write_frame(folder.participation, log)
    write_frame(folder.metrics, run.metrics_table())
    clients = run.clients()
    write_frame(folder.clients, clients)
    tensors = _saved_model(run)
    write_atomically(folder.model, lambda path: safetensors.torch.save_file(tensors, path))
    how = {"trainer": run.trainer_choice, "threads": torch.get_num_threads()}
    write_json(folder.timings, _timings(run) | how)
    summary = {
        "rounds": run.ended,
        "metrics": finite_row(run.metrics[-1]),
        "lower_is_better": run.lower_is_better(clients.columns),
        "warnings": _log_warnings(run),
    }
    if watched.view.stopped:
        summary["stopped"] = watched.view.stopped
    if run.task.class_names is not None:  # what the network's outputs stand for
        summary["classes"] = list(run.task.class_names)
    write_json(folder.summary, summary)
    folder.drop_partial_results()
    return log, clients


def _saved_model(run: Run) -> dict[str, torch.Tensor]:
    """Return the model as `load_state_dict` of its network takes it, or else its parameters."""
    network = _network(run)
    if network is None:
        named = run.task.layout.unflatten(run.driver.output)
    else:
        named = network.state_dict()
    dense = {
        name: tensor if tensor.layout is torch.strided else tensor.to_dense()
        for name, tensor in named.items()
    }  # the file format has no sparse tensors, and refuses the shared memory of tied parameters
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in dense.items()}


def _buffers(run: Run) -> torch.Tensor | None:
    return None if run.buffers is None else run.buffers.values


def _read(run: Run, folder: RunFolder) -> Result:
    """Return the result that a finished run left in its folder.

    Raises:
        InvalidInputError: a missing or damaged file.
    """
    try:
        timings, summary = folder.read_json(folder.timings), folder.read_json(folder.summary)
        named = safetensors.torch.load_file(folder.model, device=run.experiment.device)
        metrics, log, clients = map(
            read_frame, (folder.metrics, folder.participation, folder.clients)
        )
        model = run.task.layout.flatten(named).cpu().numpy()
        layout = run.task.buffer_layout
        shared = None if layout is None else layout.flatten(named).to(run.task.start)
        whole = run.ended == summary["rounds"]  # only a checkpoint contains the state
    except InvalidInputError:
        raise
    except (OSError, SafetensorError, pl.exceptions.PolarsError, ValueError, KeyError) as error:
        raise InvalidInputError(
            f"out: {folder.path} is finished, but its results cannot be read "
            f"({first_line(error)}); start again in another folder"
        ) from None
    timings.pop("threads", None)
    return Result(
        model=model,
        metrics=metrics,
        participation=log,
        clients=clients,
        state=run.driver.state if whole else None,
        trainer=timings.pop("trainer", ""),
        timings=timings,
        experiment=run.experiment,
        buffers=_as_array(_buffers(run) if whole else shared),
        iterates=_iterates(run) if whole else None,
        out=folder.path,
        stopped=summary.get("stopped", ""),
        classes=run.task.class_names,
    )


def _timings(run: Run) -> dict[str, Any]:
    spent = run.timings
    return {
        "rounds": spent.rounds,
        "training_seconds": spent.training,
        "evaluation_seconds": spent.evaluation,
        "rounds_per_second": spent.rounds / spent.training if spent.training else 0.0,
    }


def _network(run: Run) -> nn.Module | None:
    """Return the trained network, which does not keep the data in memory; None without one."""
    try:
        return run.task.module(run.driver.output, _buffers(run))
    except InvalidInputError:  # the problem has no network
        return None


def _as_array(tensor: torch.Tensor | None) -> NDArray[Any] | None:
    return None if tensor is None else tensor.cpu().numpy()


def _iterates(run: Run) -> NDArray[Any] | None:
    return np.stack([x.cpu().numpy() for x in run.iterates]) if run.iterates else None


def _result(
    run: Run,
    participation: pl.DataFrame,
    clients: pl.DataFrame,
    out: Path | None = None,
    stopped: str = "",
) -> Result:
    return Result(
        model=run.driver.output.cpu().numpy(),
        metrics=run.metrics_table(),
        participation=participation,
        clients=clients,
        state=run.driver.state,
        trainer=run.trainer_choice,
        timings=_timings(run),
        experiment=run.experiment,
        buffers=_as_array(_buffers(run)),
        iterates=_iterates(run),
        out=out,
        stopped=stopped,
        network=_network(run),
        classes=run.task.class_names,
    )
