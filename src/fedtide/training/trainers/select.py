"""Selecting the trainer of a run."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedtide.activity import MEASURING, activity
from fedtide.algorithms.base import Instructions
from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.base import Task
from fedtide.training import devices
from fedtide.training.local_training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.base import Trainer, UnsuitableTrainerError, find_or_add
from fedtide.training.trainers.reference import ReferenceTrainer
from fedtide.training.trainers.stacked import StackedTrainer
from fedtide.training.trainers.threaded import ThreadedTrainer

TrainerName = Literal["auto", "reference", "stacked", "compiled", "threaded", "threaded-compiled"]
_COMPILED: dict[TrainerName, TrainerName] = {"stacked": "compiled", "threaded": "threaded-compiled"}
_UNCOMPILED = {compiled: plain for plain, compiled in _COMPILED.items()}
_PROBE = 8  # clients trained per measurement
_LONG_CAPTURE = 60.0
"""Stacked recurrent networks are tried only if training takes longer than this, in seconds:
capturing two layers with 80 positions takes 24."""
_COMPILING_SECONDS = 30.0
"""Seconds that compiling takes if the steps are not in the cache; a network takes longer."""
_FURTHER_BLOCK = 10.0
"""Seconds for the same steps with another number of clients or another minibatch width."""
_COMPILED_GAIN = 1.6
"""How many times as fast steps run once compiled."""

_Seconds = dict[TrainerName, float]

_measured: deque[tuple[object, _Seconds]] = deque(maxlen=4)
"""The last measurements, with what was measured; runs that take the same steps share them."""


def choose_trainer(
    name: TrainerName, task: Task, local: LocalTraining, clients: float, compile: bool = True
) -> tuple[Trainer, str]:
    """Return a trainer and a sentence that says why it was chosen.

    Args:
        name: "auto" measures the trainers on a few clients; on a CPU with a C++ compiler it also
            compiles if the training is long enough to pay for it.
        task: what is learnt.
        local: what a client does in a round.
        clients: roughly how many client updates this process will compute with these local steps.
        compile: whether compiling is allowed.

    Raises:
        InvalidInputError: the local steps fail with every trainer.
    """
    reason = _reason_not_to_compile(task, compile)
    if name in _UNCOMPILED and reason:
        plain = _UNCOMPILED[name]
        return _trainer(plain, task, local), f"{plain}: {name} was requested, but {reason}"
    if name != "auto":
        return _trainer(name, task, local), f"{name}, as requested"
    seconds = _measurements(task, local)
    failed: dict[TrainerName, str] = {}  # each run tries again: memory may have become free
    for candidate in _candidates(task, seconds, failed, clients):
        if candidate in seconds:
            continue
        try:
            with activity(MEASURING):
                trainer = _trainer(candidate, task, local)
                seconds[candidate] = _seconds_per_client(trainer, task, local)
        except (UnsuitableTrainerError, RuntimeError) as error:
            failed[candidate] = first_line(error.__cause__ or error, 80)
    if "reference" not in seconds:
        raise InvalidInputError(
            f"model: its local steps fail ({failed['reference']}); check that model and loss are "
            "made of torch operations and take minibatches of any size"
        )
    best = min(seconds, key=seconds.__getitem__)
    gain = f"{seconds['reference'] / seconds[best]:.1f}x as fast as the reference"
    gain = "the fastest of those measured" if best == "reference" else gain
    gain += "".join(f"; {name} fails on this model ({why})" for name, why in failed.items())
    if not reason and devices.is_cpu(task.start):
        # On a GPU steps are recorded and replayed in one call; compiling them would add little.
        compiled = _find_worth_compiling(seconds, task, local, clients)
        if compiled is not None:
            why = f"{compiled.name}: compiling pays (uncompiled, {best} is {gain})"
            return compiled, why
    return _trainer(best, task, local), f"{best}: {gain}"


def _measurements(task: Task, local: LocalTraining) -> _Seconds:
    """Return this process's measurements of the same steps; the caller may add to them.

    This way all runs of a sweep use the same trainer, and short ones spend no time on choosing it.
    """
    if task.seed_family is None:
        return {}
    steps = replace(local, lr=1.0, schedule=None)
    return find_or_add(_measured, (task.seed_family, steps, torch.get_num_threads()))


def _reason_not_to_compile(task: Task, compile: bool) -> str:
    """Return why local steps cannot be compiled; "" if they can."""
    if not compile:
        return "compile is false"
    if task.is_recurrent:
        return "recurrent networks take too long to compile"
    return "" if devices.can_compile(task.start) else "a C++ compiler (g++) was not found"


def _candidates(
    task: Task, seconds: _Seconds, failed: dict[TrainerName, str], clients: float
) -> Iterator[TrainerName]:
    """Yield the trainers to measure, given what was found about those yielded before."""
    stacks_badly = task.is_recurrent or _has_convolutions(task)
    yield "reference"
    if devices.is_cpu(task.start) and stacks_badly:
        yield "threaded"
    long = min(seconds.values(), default=0.0) * clients > _LONG_CAPTURE
    if long or not task.is_recurrent:
        yield "stacked"
    if devices.is_cpu(task.start) and not stacks_badly and "stacked" in failed:
        yield "threaded"


def _find_worth_compiling(
    seconds: _Seconds, task: Task, local: LocalTraining, clients: float
) -> Trainer | None:
    """Return the trainer that is the fastest once compiled, or None if compiling does not pay.

    Steps are compiled for every width of minibatches and for every chunk size: if the cohort size
    varies, all chunk sizes occur. Stacked convolutions gain little, as oneDNN computes them anyway.

    Args:
        seconds: per client, of the trainers measured on a CPU.
        task: what is learnt.
        local: what a client does in a round.
        clients: how many client updates are to be computed.
    """
    best = min(seconds, key=seconds.__getitem__)
    plain: TrainerName = "threaded" if "threaded" in seconds and _has_convolutions(task) else best
    if plain not in _COMPILED:
        return None
    saved = (seconds[best] - seconds[plain] / _COMPILED_GAIN) * clients
    trainer = _trainer(_COMPILED[plain], task, local)
    widths = len(MinibatchPlanner(task.population, local, seed=0).widths)
    others = max(1, widths) * trainer.chunk_sizes - 1
    return trainer if saved > _COMPILING_SECONDS + others * _FURTHER_BLOCK else None


def _trainer(name: TrainerName, task: Task, local: LocalTraining) -> Trainer:
    if name == "reference":
        return ReferenceTrainer(task, local)
    kind = ThreadedTrainer if name.startswith("threaded") else StackedTrainer
    return kind(task, local, compiled=name.endswith("compiled"))


def _has_convolutions(task: Task) -> bool:
    """Return whether the model has convolutions, which do not stack well on CPU."""
    return any(len(shape) == 4 for shape in task.layout.shapes.values())


def _seconds_per_client(trainer: Trainer, task: Task, local: LocalTraining) -> float:
    """Return how long a client's second round takes; the first one captures the steps.

    Time spent waiting for a core of a busy CPU is left out, as it is from `_COMPILING_SECONDS`,
    except on Windows, which measures the time of a process in ticks of 16 ms.
    """
    planner = MinibatchPlanner(task.population, local, seed=0)
    clients = _typical_clients(task, planner)
    instructions, start_buffers = Instructions(task.start), task.start_buffers
    buffers = None if start_buffers is None else start_buffers.expand(len(clients), -1)
    trainer.train(instructions, planner.plan(clients), local.lr, buffers)
    plan = planner.plan(clients)
    devices.wait_for(task.start)
    start, start_busy = time.perf_counter(), time.process_time()
    trainer.train(instructions, plan, local.lr, buffers)
    devices.wait_for(task.start)
    seconds, busy = time.perf_counter() - start, time.process_time() - start_busy
    if busy and devices.is_cpu(task.start) and sys.platform != "win32":
        seconds = min(seconds, busy)
    return seconds / len(clients)


def _typical_clients(task: Task, planner: MinibatchPlanner) -> NDArray[np.int64]:
    """Return the few clients to measure with: spread over the sizes, if plans depend on them."""
    clients, samples = task.population.clients, task.population.samples
    count = min(_PROBE, clients)
    if samples is None or planner.are_alike(np.arange(clients)):
        return np.arange(count)
    middles = (2 * np.arange(count) + 1) * clients // (2 * count)
    return np.sort(np.argsort(samples, kind="stable")[middles])
