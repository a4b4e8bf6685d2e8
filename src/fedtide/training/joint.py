"""Training the cohorts of several runs as one: for models whose steps cost as much for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor

from fedtide.problems.problem import Plan, Task
from fedtide.training.choose import ChooseTrainer, TrainerName, choose_trainer
from fedtide.training.local import LocalTraining
from fedtide.training.stacked import StackedTrainer
from fedtide.training.trainer import Round, Trainer


@dataclass(frozen=True)
class Asked:
    """A cohort that a run wants to have trained.

    Args:
        owner: the run's place among all.
        kind: which of its trainers it asks.
        round, plan, drift: as of `Trainer.train`.
    """

    owner: int
    kind: int
    round: Round
    plan: Plan
    drift: Tensor | None

    @property
    def form(self) -> tuple[Any, ...]:
        """What cohorts must have in common to be trained as one."""
        shared = self.round.lr, self.round.mu, self.round.frozen, self.drift is None
        return (self.kind, *shared, *self.plan.form)


Ask = Callable[[Asked], Tensor]
"""Hands a cohort over and waits for its updates, shape (S, d)."""


class JointTraining:
    """Stands in for the trainers of runs that differ in their seeds only.

    Each run asks for its cohort, and `answer` trains all that have been asked for with one trainer
    on the joined task. What a run gets depends on its own cohort alone, to rounding.
    """

    def __init__(self) -> None:
        self._kinds: list[_Kind] = []

    def chooser(self, owner: int, ask: Ask) -> ChooseTrainer:
        """Return what stands in for `choose_trainer` in one of the runs.

        A run whose trainer does not stack, or is not that of the others, keeps a trainer of its
        own.

        Args:
            owner: the run's place among all.
            ask: how it hands its cohorts over.
        """
        numbers = count()  # a run chooses its trainers in an order that is the same for all

        def choose(
            name: TrainerName,
            task: Task,
            local: LocalTraining,
            clients: float,
            compile: bool = True,
        ) -> tuple[Trainer, str]:
            number = next(numbers)
            if number == len(self._kinds):
                self._kinds.append(_Kind(name, local, compile))
            kind = self._kinds[number]
            own, why = choose_trainer(
                kind.name if name == "auto" else name, task, local, clients, compile
            )
            if kind.name == "auto":
                kind.name = cast("TrainerName", own.name)
            if not isinstance(own, StackedTrainer) or own.name != kind.name:
                return own, why
            kind.tasks[owner] = task
            return _Member(own, partial(Asked, owner, number), ask), f"{why}; seeds trained as one"

        return choose

    def answer(self, asked: Sequence[Asked]) -> list[Tensor]:
        """Return the updates of each cohort, shape (S, d)."""
        answers: dict[int, Tensor] = {}
        for form in dict.fromkeys(one.form for one in asked):
            alike = [one for one in asked if one.form == form]
            updates = self._kinds[alike[0].kind].train(alike)
            sizes = [len(one.plan.clients) for one in alike]
            answers |= zip((one.owner for one in alike), torch.split(updates, sizes), strict=True)
        return [answers[one.owner] for one in asked]


class _Member(Trainer):
    """One run's trainer, which has others do the work.

    Args:
        own: what would do it if the run were alone.
        asked: makes a question of round, plan and drift.
        ask: hands it over.
    """

    def __init__(self, own: Trainer, asked: Callable[..., Asked], ask: Ask) -> None:
        self.name, self.chunk = own.name, own.chunk
        self._asked, self._ask = asked, ask

    def train(self, round: Round, plan: Plan, drift: Tensor | None = None) -> Tensor:
        """Return the updates, shape (S, d)."""
        return self._ask(self._asked(round, plan, drift))


class _Kind:
    """What all runs train with in the same way: their local steps, or their gradients.

    Args:
        name: of the trainer.
        local: what a client does.
        compile: whether compiling is allowed.

    Attributes:
        tasks: of the runs that take part, by their places.
    """

    def __init__(self, name: TrainerName, local: LocalTraining, compile: bool) -> None:
        self.name, self._local, self._compile = name, local, compile
        self.tasks: dict[int, Task] = {}
        self._trainer: Trainer | None = None

    def train(self, asked: Sequence[Asked]) -> Tensor:
        """Return the updates of cohorts of one form, one after another."""
        if self._trainer is None:  # by now all runs have said what their tasks are
            self._trainer = self._joint()
        plans, everyone = [one.plan for one in asked], list(self.tasks)
        places = [everyone.index(one.owner) for one in asked]
        each = self.tasks[everyone[0]].population.clients
        starts = [one.round.start.expand(len(one.plan.clients), -1) for one in asked]
        drifts = [one.drift for one in asked if one.drift is not None]
        return self._trainer.train(
            replace(asked[0].round, start=torch.cat(starts)),
            Plan.joined(plans, places, each),
            torch.cat(drifts) if drifts else None,
        )

    def _joint(self) -> Trainer:
        first, *others = self.tasks.values()
        joined = first.joined(others)
        return choose_trainer(self.name, joined, self._local, 0, self._compile)[0]
