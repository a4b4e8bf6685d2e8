"""One run on a Ray cluster of two local nodes, against the same run alone."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import fedtide as ft
from fedtide.simulation.cluster import chunk_worker, ray_cluster, ray_connection
from fedtide.simulation.cluster.chunk_worker import installed_versions
from fedtide.simulation.cluster.ray_cluster import open_cluster
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.runner import execute

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

FEDTIDE = Path(sys.executable).with_name("fedtide")


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


@pytest.mark.parametrize("fails", [False, True])
def test_a_connection_leaves_the_handler_of_sigterm(monkeypatch, fails):
    """Ray's own aborts the process, and the runs under way would not be saved."""
    import ray

    def init(**_):
        signal.signal(signal.SIGTERM, lambda *_: None)
        if fails:
            raise ConnectionError

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.suppress(ft.InvalidInputError), ray_connection.connect_ray("auto"):
            assert signal.getsignal(signal.SIGTERM) is before
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


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


@pytest.mark.parametrize(
    ("raised", "match"),
    [
        (
            "ModuleNotFoundError(\"No module named 'fedtide'\", name='fedtide')",
            r"^cluster: a worker .*cannot start \(.*No module named 'fedtide'.*\); .*install",
        ),
        (
            "OSError('libtorch.so: no such file')",
            r"^cluster: a worker .*cannot start \(.*libtorch.so: no such file\); .*install",
        ),
    ],
)
def test_a_node_without_a_working_fedtide_is_named(cluster, tmp_path, raised, match):
    import ray

    package = tmp_path / "fedtide"
    package.mkdir()
    (package / "__init__.py").write_text(f"raise {raised}")
    without = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    ray.init(address=cluster, log_to_driver=False, logging_level="ERROR", runtime_env=without)
    try:
        with pytest.raises(ft.InvalidInputError, match=match):
            ft.simulate(**fields(), cluster=cluster, workers=1)
    finally:
        ray.shutdown()


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


def test_an_error_of_a_worker_arrives_as_it_was_raised(cluster, connected, monkeypatch):
    versions = installed_versions()
    monkeypatch.setattr(chunk_worker, "installed_versions", lambda: versions | {"torch": "1.0"})
    match = r"^cluster: on the node .*'1.0'.*; install"
    with pytest.raises(ft.InvalidInputError, match=match) as raised:
        ft.simulate(**fields(), cluster=cluster, workers=1)
    # Its core is free although the error is kept, whose traceback refers to the worker.
    end = time.monotonic() + 30
    while connected.available_resources().get("CPU") != 4:
        assert time.monotonic() < end
        time.sleep(0.1)
    del raised


def test_a_cluster_without_free_cores_is_named(cluster, connected, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_START_SECONDS", 1.0)
    holder = connected.remote(num_cpus=2)(_Holder)
    held = [holder.remote() for _ in range(2)]
    connected.get([one.ready.remote() for one in held], timeout=60)
    try:
        with pytest.raises(ft.InvalidInputError, match=r"^cluster: no worker .*; .*ray status"):
            ft.simulate(**fields(), cluster=cluster)
    finally:
        for one in held:
            connected.kill(one)


class _Holder:
    def ready(self):
        return True


def test_more_threads_than_any_node_has_cores_are_refused(cluster, connected, set_threads):
    set_threads(3)
    with pytest.raises(ft.InvalidInputError, match=r"^cluster: no node has the 3 cores .*OMP_NUM"):
        ft.simulate(**fields(), cluster=cluster)


def test_a_run_of_the_command_is_interrupted_and_continues_alone(
    cluster, regression, results, tmp_path
):
    """Ctrl-C reaches a run on a worker; its standard error has nothing of Ray's log."""
    plain = regression | {"rounds": 300, "chunk": 1, "checkpoint": {"every": 20}}
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(plain))
    out = tmp_path / "out"
    command = [FEDTIDE, "run", tmp_path / "file.yaml", "--ray", cluster, "--workers", "1"]
    process = subprocess.Popen(
        [*command, "--out", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    end = time.monotonic() + 300
    while not any(out.glob("checkpoints/*20.safetensors")):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert "ray" not in said.lower(), said
    ft.run(tmp_path / "file.yaml", out=out, resume=True)
    ft.run(tmp_path / "file.yaml", out=tmp_path / "alone")
    assert results(out) == results(tmp_path / "alone")
