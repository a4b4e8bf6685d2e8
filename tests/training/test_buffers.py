"""Running statistics over the rounds of a run, against plain federated loops."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from fedtide.participation import to_frame
from fedtide.problems import Classification, Dirichlet
from fedtide.problems.models import Model
from fedtide.simulation.divergence import DivergenceError
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from fedtide.training.minibatches import MinibatchPlanner

from .networks import SIZES, NetworkProblem, network_task, plain_loop

CPU = torch.device("cpu")


def experiment(**fields):
    return Experiment.from_dict(
        {
            "problem": NetworkProblem("normalised"),
            "participation": {"type": "bernoulli", "rates": 0.3},
            "algorithm": "fedavg",
            "local": {"steps": 2, "lr": 0.05, "batch_size": 6},
            "rounds": 8,
            "seed": 3,
            "dtype": "float64",
            "trainer": "reference",
        }
        | fields
    )


def run_rounds(run, rounds):
    """Run these rounds and return the clients whose updates were used in each."""
    run.evaluate()
    for _ in range(rounds):
        run.round()
    log = to_frame(run.log).filter(pl.col("stage") == "used")
    return [
        log.filter(pl.col("round") == t)["client"].sort().to_numpy().astype(np.int64)
        for t in range(rounds)
    ]


@pytest.mark.parametrize("mode", ["average", "local"])
def test_fedavg_with_batch_norm_is_a_plain_federated_loop(mode):
    settings = experiment(problem=NetworkProblem("normalised", mode))
    run = Run(settings)
    cohorts = run_rounds(run, 8)
    assert any(len(cohort) == 0 for cohort in cohorts)
    assert any(len(cohort) > 1 for cohort in cohorts)
    task = network_task("normalised")
    planner = MinibatchPlanner(task.population, settings.local, seed=3)
    x, buffers = task.start, task.start_buffers.repeat(len(SIZES), 1)
    for cohort in cohorts:
        if len(cohort) == 0:
            continue
        plan = planner.plan(cohort)
        trained = plain_loop(task, settings.local, plan, x, buffers[cohort])
        x = x + torch.stack([delta for delta, _ in trained]).mean(0)
        rows = torch.stack(
            [
                task.buffer_layout.flatten({n: s[n].double() for n in task.model.buffers})
                for _, s in trained
            ]
        )
        if mode == "local":
            buffers[cohort] = rows
        else:
            buffers = rows.mean(0).repeat(len(SIZES), 1)
    expected = buffers if mode == "local" else buffers[0]
    assert torch.allclose(run.driver.output, x, rtol=1e-9, atol=1e-9)
    assert torch.allclose(run.buffers.values, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["average", "local"])
def test_chunks_of_a_cohort_give_the_same_buffers(mode):
    """A cohort of five is absorbed at once, or client by client."""
    problem, full = NetworkProblem("normalised", mode), {"participation": "full", "rounds": 2}
    whole, parts = (
        Run(experiment(problem=problem, **full)),
        Run(experiment(problem=problem, **full, max_stack_bytes=1)),
    )
    for run in (whole, parts):
        run_rounds(run, 2)
    assert torch.allclose(whole.buffers.values, parts.buffers.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["average", "local"])
def test_a_resumed_run_has_the_same_bits(mode):
    settings = experiment(problem=NetworkProblem("normalised", mode))
    whole, first, second = Run(settings), Run(settings), Run(settings)
    run_rounds(whole, 6)
    run_rounds(first, 3)
    second.restore(first.checkpoint())
    for _ in range(3):
        second.round()
    assert torch.equal(whole.buffers.values, second.buffers.values)
    assert torch.equal(whole.driver.output, second.driver.output)


def test_buffers_that_are_not_finite_are_dropped_with_their_update():
    run = Run(experiment(participation="full", on_nonfinite="drop", seed=4))
    task, before = run.task, run.buffers.values
    broken = int(SIZES[0])  # the samples of client 0 come first
    task.inputs[0][:broken] = 1e200
    run_rounds(run, 1)
    assert run.buffers.values.isfinite().all()
    assert not torch.equal(run.buffers.values, before)
    strict = Run(experiment(participation="full", seed=4))
    strict.task.inputs[0][:broken] = 1e200
    with pytest.raises(DivergenceError, match=r"round 0 is not finite \(clients 0\)"):
        strict.round()


# Classification


@dataclass(frozen=True)
class NormalisedDigits(Model):
    """A linear layer after batch normalisation."""

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


def digits(clients=4, **fields):
    problem = Classification("digits", Dirichlet(0.5), clients, NormalisedDigits(), **fields)
    return problem.prepare(1, CPU, torch.float64)


def test_figures_of_clients_with_their_own_buffers():
    task = digits()
    own = task.start_buffers + torch.rand(4, len(task.start_buffers), dtype=torch.float64)
    found, mean = (
        task.evaluate(task.start, buffers=own),
        task.evaluate(task.start, buffers=own.mean(0)),
    )
    assert {n: v for n, v in found.metrics.items() if n != "loss"} == {
        n: v for n, v in mean.metrics.items() if n != "loss"
    }
    assert found.metrics["loss"] == pytest.approx(found.clients["loss"].mean())
    for n in range(4):
        alone = task.evaluate(task.start, buffers=own[n])
        for name, values in found.clients.items():
            assert values[n] == pytest.approx(alone.clients[name][n], rel=1e-12)


def test_training_without_federation_is_a_plain_loop():
    settings = experiment(
        problem=Classification("digits", Dirichlet(0.5), 4, NormalisedDigits()),
        participation={"type": "uniform", "size": 3},
        algorithm="central-sgd",
    )
    run = Run(settings)
    run_rounds(run, 2)
    task = run.task.pooled()
    network = task.module(task.start).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    planner = MinibatchPlanner(task.population, settings.local, seed=3)
    for _ in range(2 * 3):
        for features, labels in task.batches(planner.plan(np.zeros(1, dtype=np.int64))):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(features[0]), labels[0]).backward()
            optimizer.step()
    expected = torch.nn.utils.parameters_to_vector(network.parameters())
    assert torch.allclose(run.driver.output, expected, rtol=1e-9, atol=1e-9)
    named = task.buffer_layout.unflatten(run.buffers.values)
    for name, value in network.named_buffers():
        assert torch.allclose(named[name], value.double(), rtol=1e-9, atol=1e-9)
