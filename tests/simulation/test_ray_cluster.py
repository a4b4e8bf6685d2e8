"""One run on a Ray cluster of two local nodes, against the same run alone."""

import contextlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide.simulation.cluster.ray_cluster import open_cluster
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.runner import execute

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a cluster with two nodes of two cores each."""
    node = {"num_cpus": 2, "object_store_memory": 80_000_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # this machine may have a token
        cluster = start_cluster(node)
        yield cluster.address
        cluster.shutdown()


def start_cluster(node, attempts=4):
    """Return a cluster of two nodes; Ray gives each 30 seconds, which a busy machine may exceed."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(**node, include_dashboard=False)
        cluster.add_node(**node)
    except Exception:
        cluster.shutdown()
        if attempts == 1:
            raise
        return start_cluster(node, attempts - 1)
    return cluster


@pytest.fixture(scope="module")
def connected(cluster):
    """Connect this process, as a notebook may be."""
    import ray

    ray.init(address=cluster, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def fields(**changes):
    rng = np.random.default_rng(0)
    table = {
        "x": rng.normal(size=(400, 6)).astype(np.float32),
        "y": rng.integers(0, 3, 400),
        "who": np.repeat(np.arange(20), 20),
    }
    model = {"type": "mlp", "hidden": [8]}
    return {
        "problem": ft.problems.Supervised(
            train=table, inputs="x", target="y", clients="who", model=model
        ),
        "participation": ft.participation.Uniform(size=12),
        "algorithm": ft.algorithms.FedAU(cutoff=5),
        "local": ft.LocalTraining(steps=2, lr=0.1, batch_size=5),
        "rounds": 4,
        "seed": 2,
        "chunk": 2,
        "trainer": "reference",
        **changes,
    }


def assert_same(one, other):
    assert one.model.tobytes() == other.model.tobytes()
    assert one.metrics.equals(other.metrics)
    assert one.participation.equals(other.participation)
    assert one.clients.equals(other.clients)


def test_any_number_of_workers_gives_the_bits_of_a_run_alone(cluster, connected):
    run = Experiment.from_dict(fields(algorithm=ft.algorithms.Scaffold()))
    alone = execute(run)
    with open_cluster(cluster, workers=4) as opened:
        for workers in (4, 2, 1):
            pool = opened.start_workers(run, "reference")
            while len(pool._actors) > workers:  # starting others takes much longer
                gone = pool._actors.pop()
                connected.kill(gone)
                pool._free = [actor for actor in pool._free if actor is not gone]
                pool._starting = {r: a for r, a in pool._starting.items() if a is not gone}
            assert_same(execute(run, cluster=opened), alone)
            assert opened.start_workers(run, "reference") is pool  # the data are still there


def test_a_worker_killed_in_a_round_is_replaced(cluster, connected, tmp_path):
    """A worker kills itself in the middle of its local steps."""
    here, flag = os.getpid(), tmp_path / "flag"

    def loss(outputs, target):
        if os.getpid() != here:
            with contextlib.suppress(FileNotFoundError):  # both workers may be here
                flag.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.cross_entropy(outputs, target, reduction="none")

    own = fields()
    own["problem"] = ft.problems.Supervised(
        train=own["problem"].train,
        inputs="x",
        target="y",
        clients="who",
        model=own["problem"].model,
        loss=loss,
    )

    class PutFlag(ft.callbacks.Callback):
        def on_round_end(self, run):
            if run.round == 1:
                flag.touch()

    alone = ft.simulate(**own)
    shared = ft.simulate(**own, cluster=cluster, workers=2, callbacks=[PutFlag()])
    assert not flag.exists()
    assert_same(shared, alone)


SCRIPT = """
import sys

import numpy as np
import polars as pl
import torch

import fedtide as ft

torch.set_default_dtype(torch.float64)


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 3)


def loss(outputs, target):
    in_float64 = float(torch.ones(1) + 1e-9 > 1)  # the default dtype
    losses = torch.nn.functional.cross_entropy(outputs, target, reduction="none")
    return losses * (1 + in_float64)


rng = np.random.default_rng(0)
table = {"a": rng.normal(size=40), "b": rng.normal(size=40), "who": np.arange(40) % 4}
pl.DataFrame(table | {"y": rng.integers(0, 3, 40)}).write_csv("table.csv")
torch.manual_seed(0)
run = {
    "problem": ft.problems.Supervised(
        train="table.csv",
        inputs=["a", "b"],
        target="y",
        clients="who",
        model=Net(),
        loss=loss,
    ),
    "participation": ft.participation.Full(),
    "algorithm": ft.algorithms.FedAvg(),
    "local": ft.LocalTraining(steps=2, lr=0.1, batch_size=5),
    "rounds": 2,
    "chunk": 2,
    "trainer": "reference",
}
alone = ft.simulate(**run)
shared = ft.simulate(**run, cluster=sys.argv[1], workers=1)
assert np.array_equal(alone.model, shared.model)
"""


def test_a_script_with_a_network_and_a_loss_of_its_own(cluster, tmp_path):
    """They are sent, as `__main__` is another program in a worker.

    The workers take over the default dtype, and the folder of the data.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", cluster]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
