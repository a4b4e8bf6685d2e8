"""Chunks trained by workers, without a cluster: what travels is pickled, as Ray would."""

import pickle
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn

import fedtide as ft
from fedtide.simulation import round_plan
from fedtide.simulation.cluster.chunk_worker import ChunkWorker, WorkerSetup
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from fedtide.simulation.runner import execute
from fedtide.training.trainers import stacked

AHEAD = 3  # chunks drawn before the first of them is trained


class HereCluster:
    """Runs workers in this process, like a `RayCluster`.

    Args:
        workers: how many take turns.
        change: what happens to a setup on its way.
    """

    def __init__(self, workers=2, change=lambda setup: setup):
        self._workers, self._change = workers, change

    def start_workers(self, experiment, trainer):
        setup = self._change(WorkerSetup.of_run(experiment, trainer))
        return HerePool([ChunkWorker(travel(setup)) for _ in range(self._workers)])


class HerePool:
    def __init__(self, workers):
        self._workers = workers
        self.returned = []

    def put(self, thing):
        return pickle.dumps(thing, protocol=5)

    def train(self, orders):
        while some := list(islice(orders, AHEAD)):
            trained = {}
            for place in reversed(range(len(some))):  # the last is ready first
                start, order = some[place]
                worker = self._workers[place % len(self._workers)]
                trained[place] = travel(worker.train(pickle.loads(start), travel(order)))
            results = [trained[place][0] for place in range(len(some))]
            self.returned += results
            yield from results


def travel(thing):
    return pickle.loads(pickle.dumps(thing, protocol=5))


class WeighedByLength(ft.algorithms.FedAvg):
    """Weighs updates by their lengths."""

    traits = ft.algorithms.Traits(averages_updates=True, weights_follow_updates=True)

    def client_weights(self, state, updates):
        return 1 / (1 + updates.deltas.norm(dim=1))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3)
        )

    def forward(self, x):
        return self.layers(x)


def samples(clients=7, each=8):
    rng = np.random.default_rng(0)
    count = clients * each
    return {
        "x": rng.normal(size=(count, 4)).astype(np.float32),
        "y": rng.integers(0, 3, count),
        "who": np.repeat(np.arange(clients), each),
    }


def experiment(**changes):
    fields = {
        "problem": ft.problems.Supervised(
            train=samples(), inputs="x", target="y", clients="who", model=Normed()
        ),
        "participation": {"type": "bernoulli", "rates": 0.7},
        "algorithm": "fedavg",
        "local": {"steps": 2, "batch_size": 3, "lr": 0.05},
        "rounds": 5,
        "seed": 4,
        "trainer": "reference",
        "chunk": 2,
        "evaluation": {"every": 2},
    }
    return Experiment.from_dict(fields | changes)


def assert_same(one, other):
    assert one.model.tobytes() == other.model.tobytes()
    assert one.metrics.equals(other.metrics)
    assert one.participation.equals(other.participation)
    assert one.clients.equals(other.clients)


METHODS = {
    "sum": {"algorithm": {"type": "fedau", "cutoff": 3}},
    "sum in wrappers": {
        "algorithm": {"type": "fedadam", "inner": {"type": "amplified", "period": 2, "factor": 1.5}}
    },
    "sum after rows": {
        "algorithm": {"type": "switch", "first": "mifa", "second": "fedavg", "at": 2}
    },
    "rows": {"algorithm": "fedvarp"},
    "reported gradients": {"algorithm": {"type": "scaffold", "option": 1}},
    "everyone, at times": {"algorithm": {"type": "wait-for-all", "period": 2}},
    "epochs": {"local": {"epochs": 1, "batch_size": 3, "lr": 0.05}},
    "momentum and a weighted objective": {
        "local": {"steps": 2, "batch_size": 3, "lr": 0.05, "momentum": 0.9},
        "objective": [1, 2, 3, 1, 2, 3, 1],
    },
    "weights that follow the updates": {"algorithm": WeighedByLength()},
}


def without_buffers(fields):
    """The same problem for methods that report gradients."""
    return {
        "problem": ft.problems.Supervised(
            train=samples(), inputs="x", target="y", clients="who", model=nn.Linear(4, 3)
        ),
        **fields,
    }


def test_own_weights_may_follow_the_updates():
    """A sum would have been weighed before the clients trained, all of them alike."""
    torch.manual_seed(0)
    own = without_buffers({"algorithm": WeighedByLength(), "rounds": 1, "record_iterates": True})
    own["local"] = {"steps": 2, "batch_size": 3, "lr": 2.0}
    result = execute(experiment(**own))
    plain = execute(experiment(**own | {"algorithm": "fedavg"}))
    step, equal = (np.diff(r.iterates, axis=0) for r in (result, plain))
    assert np.abs(step - equal).max() > 0.01 * np.abs(equal).max()


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_running_statistics_travel_with_the_chunks(buffers):
    problem = replace(experiment().problem, buffers=buffers)
    run = experiment(problem=problem)
    alone, shared = execute(run), execute(run, cluster=HereCluster())
    assert_same(shared, alone)
    assert np.array_equal(shared.buffers, alone.buffers)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedvarp"])
def test_updates_that_are_not_finite_are_dropped_alike(algorithm):
    bad = samples()
    bad["x"][:8:2], bad["x"][1:8:2], bad["y"][:8] = 3e38, -3e38, 0  # client 0 overflows
    fields = without_buffers({"algorithm": algorithm, "on_nonfinite": "drop", "rounds": 3})
    fields["problem"] = replace(fields["problem"], train=bad)
    fields |= {"local": {"steps": 2, "lr": 0.05}, "evaluation": {"every": 0, "clients": False}}
    run = experiment(**fields)
    alone, shared = execute(run), execute(run, cluster=HereCluster())
    assert shared.model.tobytes() == alone.model.tobytes()
    assert shared.participation.equals(alone.participation)
    dropped = shared.participation.filter(client=0)["stage"].to_list()
    assert "reported" in dropped
    assert "used" not in dropped
    with pytest.raises(ft.InvalidInputError, match=r"round \d is not finite \(clients 0\)"):
        execute(replace(run, on_nonfinite="stop"), cluster=HereCluster())


@pytest.fixture
def small_chunks(monkeypatch):
    """Let the stacked trainer have five of these models in a chunk."""
    for cache in ("_CORE_BYTES", "_CACHE_BYTES"):
        monkeypatch.setattr(stacked, cache, 5 * 15 * 4)
    monkeypatch.setattr(round_plan, "_COPIED", 0)


def large_cohorts(**fields):
    train = samples(clients=23)
    problem = ft.problems.Supervised(
        train=train, inputs="x", target="y", clients="who", model=nn.Linear(4, 3)
    )
    if "objective" in fields:
        fields |= {"objective": list(range(1, 24))}
    return experiment(**{"problem": problem, "trainer": "stacked", "chunk": None, **fields})


def trained_together(run, monkeypatch):
    """Run it, and return how many clients its trainer trained in each call."""
    found = []
    original = stacked.StackedTrainer.train

    def train(self, instructions, plan, *others):
        found.append(len(plan.clients))
        return original(self, instructions, plan, *others)

    monkeypatch.setattr(stacked.StackedTrainer, "train", train)
    result = execute(run)
    monkeypatch.setattr(stacked.StackedTrainer, "train", original)
    return result, found


@pytest.mark.parametrize("fields", METHODS.values(), ids=METHODS)
def test_a_sum_of_the_whole_cohort_has_the_bits_of_sums_of_chunks(fields, small_chunks):
    run = large_cohorts(**fields)
    assert_same(execute(run), execute(run, cluster=HereCluster(3)))


@pytest.mark.parametrize("name", ["fedavg", "fedvarp"])
def test_only_clients_whose_updates_are_added_up_train_all_together(
    name, small_chunks, monkeypatch
):
    run = large_cohorts(algorithm=name, participation="full", rounds=2)
    _, together = trained_together(run, monkeypatch)
    assert together == ([23, 23] if name == "fedavg" else [5, 5, 5, 5, 3] * 2)


def test_clients_that_train_all_together_are_dropped_as_those_of_chunks(small_chunks, monkeypatch):
    bad = samples(clients=23)
    bad["x"][64:72:2], bad["x"][65:72:2], bad["y"][64:72] = 3e38, -3e38, 0  # client 8 overflows
    run = large_cohorts(on_nonfinite="drop", rounds=3, evaluation={"every": 0, "clients": False})
    run = replace(
        run, problem=replace(run.problem, train=bad), participation=ft.participation.Full()
    )
    alone, together = trained_together(run, monkeypatch)
    shared = execute(run, cluster=HereCluster())
    assert alone.model.tobytes() == shared.model.tobytes()
    assert alone.participation.equals(shared.participation)
    used = alone.participation.filter(stage="used")["client"].unique().to_list()
    assert sorted(used) == [client for client in range(23) if client != 8]
    assert together[:7] == [23, 5, 5, 5, 5, 5, 3]  # the second five as a sum, and as updates


def test_a_run_continues_on_a_cluster_and_back(tmp_path, monkeypatch, results):
    run = experiment(rounds=9, checkpoint={"every": 1})
    execute(run, tmp_path / "whole")
    original = Run.round
    for t, cluster in [(3, None), (6, HereCluster())]:

        def round(run, t=t):
            if run.ended == t:
                raise _Killed
            original(run)

        monkeypatch.setattr(Run, "round", round)
        with pytest.raises(_Killed):
            execute(run, tmp_path / "out", resume=True, cluster=cluster)
    monkeypatch.setattr(Run, "round", original)
    execute(run, tmp_path / "out", resume=True)
    assert results(tmp_path / "out") == results(tmp_path / "whole")


class _Killed(BaseException):
    pass


def test_a_pooled_method_is_refused():
    with pytest.raises(ft.InvalidInputError, match=r"^cluster: "):
        execute(experiment(**without_buffers({"algorithm": "central-sgd"})), cluster=HereCluster())


def other_versions(setup):
    return replace(setup, versions={**setup.versions, "torch": "1.0"})


def other_data(setup):
    other = samples()
    other["y"][0] = (other["y"][0] + 1) % 3
    changed = replace(setup.experiment.problem, train=other)
    return replace(setup, experiment=replace(setup.experiment, problem=changed))


@pytest.mark.parametrize("change", [other_versions, other_data])
def test_a_worker_with_other_versions_or_data_is_refused(change):
    with pytest.raises(ft.InvalidInputError, match=r"^cluster: "):
        execute(experiment(), cluster=HereCluster(change=change))


@pytest.mark.parametrize(
    ("field", "how"),
    [
        ("workers", {"workers": 2}),
        ("workers", {"cluster": "127.0.0.1:1", "workers": 0}),
        ("cluster", {"cluster": "127.0.0.1"}),
        ("cluster", {"cluster": "127.0.0.1:1"}),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused(field, how, regression):
    pytest.importorskip("ray")
    with pytest.raises(ft.InvalidInputError, match=f"^{field}: "):
        ft.simulate(**regression, **how)
