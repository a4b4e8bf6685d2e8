"""Which trainer is used, and why."""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import Literal

import numpy as np

from fedtide.problems.problem import Task
from fedtide.training.feed import Feed
from fedtide.training.local import LocalTraining
from fedtide.training.reference import ReferenceTrainer
from fedtide.training.stacked import StackedTrainer
from fedtide.training.trainer import Round, Trainer

TrainerName = Literal["auto", "reference", "stacked", "compiled"]
_PROBE = 8  # clients that a measurement trains
_WORTH_COMPILING = 120.0  # seconds of training from which compiling, some ten seconds, pays


def choose_trainer(
    name: TrainerName, task: Task, local: LocalTraining, cohorts: float
) -> tuple[Trainer, str]:
    """Return a trainer and, in words, why it was chosen.

    Args:
        name: "auto" measures the stacked trainer against the reference on a few clients, and
            compiles where the run is long enough to pay for it and a C++ compiler is there.
        task: what is learnt.
        local: what a client does in a round.
        cohorts: how many clients are going to train in the whole run, about.
    """
    if name == "reference":
        return ReferenceTrainer(task, local), "reference, as asked for"
    if name != "auto":
        return StackedTrainer(task, local, compiled=name == "compiled"), f"{name}, as asked for"
    reference, stacked = ReferenceTrainer(task, local), StackedTrainer(task, local)
    one_by_one = _seconds_per_client(reference, task, local)
    try:
        together = _seconds_per_client(stacked, task, local)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        return reference, f"reference: this model cannot be stacked over clients ({reason:.80})"
    ratio = one_by_one / together
    if ratio < 1:
        return reference, f"reference, {1 / ratio:.1f}x as fast as stacked on this model"
    if together * cohorts > _WORTH_COMPILING and can_compile(task):
        return StackedTrainer(task, local, compiled=True), "compiled, because the run is long"
    return stacked, f"stacked, {ratio:.1f}x as fast as one client after another"


def can_compile(task: Task) -> bool:
    """Say whether torch.compile finds what it needs: on CPU a C++ compiler."""
    return task.start.device.type != "cpu" or shutil.which("g++") is not None


def _seconds_per_client(trainer: Trainer, task: Task, local: LocalTraining) -> float:
    """Return how long a client's round takes, without the first round, which prepares."""
    clients = np.arange(min(_PROBE, task.population.clients))
    feed = Feed(task.population, local, seed=0)
    train = partial(trainer.train, Round(task.start, local.lr))
    train(feed.plan(clients))
    plan = feed.plan(clients)
    began = time.perf_counter()
    train(plan)
    return (time.perf_counter() - began) / len(clients)
