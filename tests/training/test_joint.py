"""Cohorts of several runs trained as one, against the reference trainer of each run alone."""

import numpy as np
import pytest
import torch

from fedtide.problems import Classification, Iid, LowerBound4D, Quadratic, Regression
from fedtide.problems.weighted import weigh_objective
from fedtide.training import Ball, LocalTraining
from fedtide.training.feed import Feed
from fedtide.training.joint import JointTraining
from fedtide.training.reference import ReferenceTrainer
from fedtide.training.trainer import Round

CPU = torch.device("cpu")
SEEDS = (3, 5, 8)
COHORTS = ([0, 1], [1], [0])


def quadratic():
    draw = np.random.default_rng(0)
    roots = draw.normal(size=(2, 3, 3))
    return Quadratic(roots @ roots.transpose(0, 2, 1), draw.normal(size=(2, 3)))


PROBLEMS = {
    "quadratic": quadratic(),
    "noise": LowerBound4D(),
    "regression": Regression(clients=2, samples=40, features=7, informative=3),
}
OPTIONS = {
    "plain": {},
    "momentum and a ball": {"momentum": 0.5, "weight_decay": 0.1, "projection": Ball(radius=0.5)},
    "many steps": {"steps": 19},
}


def prepared(problem, objective="uniform"):
    tasks = [problem.prepare(seed, CPU, torch.float64) for seed in SEEDS]
    return [weigh_objective(task, objective) for task in tasks]


class Together:
    """Runs that ask at the same time, each with its own feed, and the same runs alone."""

    def __init__(self, tasks, local, name="stacked"):
        self.tasks, self.local = tasks, local
        self.training, self.asked = JointTraining(), []
        self.trainers = [
            self.training.chooser(owner, self._ask)(name, task, local, 1e3)[0]
            for owner, task in enumerate(tasks)
        ]
        self.feeds, self.own_feeds = (
            [Feed(t.population, local, s) for t, s in zip(tasks, SEEDS, strict=True)]
            for _ in range(2)
        )

    def _ask(self, asked):
        self.asked.append(asked)

    def updates(self, cohorts, rounds, drifts):
        self.asked.clear()
        for trainer, feed, cohort, round, drift in zip(
            self.trainers, self.feeds, cohorts, rounds, drifts, strict=True
        ):
            trainer.train(round, feed.plan(np.array(cohort, dtype=np.int64)), drift)
        return self.training.answer(self.asked)

    def alone(self, cohorts, rounds, drifts):
        return [
            ReferenceTrainer(task, self.local).train(
                round, feed.plan(np.array(cohort, dtype=np.int64)), drift
            )
            for task, feed, cohort, round, drift in zip(
                self.tasks, self.own_feeds, cohorts, rounds, drifts, strict=True
            )
        ]

    def check(self, cohorts, rounds, drifts=(None, None, None)):
        found = self.updates(cohorts, rounds, drifts)
        for one, other in zip(found, self.alone(cohorts, rounds, drifts), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def rounds_of(tasks, lr=0.01, **shared):
    """Return a round of each run, each at a model of its own."""
    draw = torch.Generator().manual_seed(7)
    starts = [torch.randn(len(t.start), generator=draw, dtype=torch.float64) for t in tasks]
    return [Round(start, lr, **shared) for start in starts]


def local_training(problem, **options):
    batch = 4 if isinstance(problem, Regression) else None
    return LocalTraining(**{"steps": 3, "lr": 0.01, "batch_size": batch, **options})


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_each_run_gets_what_it_would_get_alone(name, options):
    tasks = prepared(PROBLEMS[name])
    together = Together(tasks, local_training(PROBLEMS[name], **OPTIONS[options]))
    for _ in range(2):
        together.check(COHORTS, rounds_of(tasks))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("shared", [{"mu": 0.3}, {"frozen": True}])
def test_corrections_and_what_runs_share(name, shared):
    tasks = prepared(PROBLEMS[name])
    together = Together(tasks, local_training(PROBLEMS[name]))
    drifts = [torch.ones(len(c), len(tasks[0].start), dtype=torch.float64) for c in COHORTS]
    together.check(COHORTS, rounds_of(tasks, **shared), drifts)


@pytest.mark.parametrize("name", PROBLEMS)
def test_weighted_objectives(name):
    tasks = prepared(PROBLEMS[name], [1.0, 3.0])
    Together(tasks, local_training(PROBLEMS[name])).check(COHORTS, rounds_of(tasks))


@pytest.mark.parametrize("name", PROBLEMS)
def test_pooled_tasks(name):
    tasks = [task.pooled() for task in prepared(PROBLEMS[name])]
    Together(tasks, local_training(PROBLEMS[name])).check([[0], [0], [0]], rounds_of(tasks))


def test_runs_that_are_at_different_rounds_or_have_ended():
    """Their rates differ, or only some ask: whoever asks is answered."""
    tasks = prepared(PROBLEMS["regression"])
    together = Together(tasks, local_training(PROBLEMS["regression"]))
    together.check(COHORTS, rounds_of(tasks))
    rounds = [*rounds_of(tasks, lr=0.02)[:2], *rounds_of(tasks)[2:]]
    together.check(COHORTS, rounds)
    last = together.trainers[2]
    together.asked.clear()
    last.train(rounds[2], together.feeds[2].plan(np.array([1])))
    (found,) = together.training.answer(together.asked)
    plan = together.own_feeds[2].plan(np.array([1]))
    wanted = ReferenceTrainer(tasks[2], together.local).train(rounds[2], plan)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_trainer_that_does_not_stack_is_left_alone():
    tasks = prepared(PROBLEMS["noise"])
    together = Together(tasks, LocalTraining(steps=2, lr=0.01), name="reference")
    assert {trainer.name for trainer in together.trainers} == {"reference"}
    plan = together.feeds[0].plan(np.array([0]))
    assert together.trainers[0].train(rounds_of(tasks)[0], plan).shape == (1, 4)
    assert not together.asked


def test_all_take_what_the_first_has_measured():
    tasks = prepared(PROBLEMS["noise"])
    together = Together(tasks, LocalTraining(steps=2, lr=0.01), name="auto")
    assert len({trainer.name for trainer in together.trainers}) == 1


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_dimension_is_known_before_preparing(name):
    problem = PROBLEMS[name]
    assert problem.dimension == len(problem.prepare(0, CPU, torch.float64).start)


def test_the_dimension_of_data_is_not():
    assert Classification("digits", Iid(), clients=5).dimension is None
