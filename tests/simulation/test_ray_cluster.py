"""One run on a Ray cluster of two local nodes, against the same run alone."""

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
from fedtide.simulation.cluster import worker_pool

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

FEDTIDE = Path(sys.executable).with_name("fedtide")


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a cluster with two nodes of two cores each."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80_000_000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # this machine may have a token
        cluster = Cluster(True, head_node_args={**node, "include_dashboard": False})
        cluster.add_node(**node)
        yield cluster.address
        cluster.shutdown()


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
        "progress": False,
        **changes,
    }


def assert_same(one, other):
    assert one.model.tobytes() == other.model.tobytes()
    assert one.metrics.equals(other.metrics)
    assert one.participation.equals(other.participation)
    assert one.clients.equals(other.clients)


def test_a_node_without_fedtide_is_named(cluster, tmp_path):
    import ray

    package = tmp_path / "fedtide"
    package.mkdir()
    missing = "raise ModuleNotFoundError(\"No module named 'fedtide'\", name='fedtide')"
    (package / "__init__.py").write_text(missing)
    without = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    ray.init(address=cluster, log_to_driver=False, logging_level="ERROR", runtime_env=without)
    try:
        with pytest.raises(ft.InvalidInputError, match=r"^cluster: a node has no fedtide; install"):
            ft.simulate(**fields(), cluster=cluster, workers=1)
    finally:
        ray.shutdown()


def test_any_number_of_workers_gives_the_bits_of_a_run_alone(cluster, connected):
    own = fields(algorithm=ft.algorithms.Scaffold())
    alone = ft.simulate(**own)
    for workers in (1, 2, 4):
        assert_same(ft.simulate(**own, cluster=cluster, workers=workers), alone)


def test_a_worker_killed_in_a_round_is_replaced(cluster, connected, tmp_path, caplog):
    """A worker kills itself in the middle of its local steps, twice."""
    here, flags = os.getpid(), [tmp_path / "one", tmp_path / "two"]

    def loss(outputs, target):
        found = [flag for flag in flags if flag.exists()]
        if found and os.getpid() != here:
            found[0].unlink()
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
            if run.round <= len(flags):
                flags[run.round - 1].touch()

    alone = ft.simulate(**own)
    shared = ft.simulate(**own, cluster=cluster, workers=2, callbacks=[PutFlag()])
    assert not any(flag.exists() for flag in flags)
    assert_same(shared, alone)
    assert caplog.text.count("a worker was lost and is replaced") == 2


def test_an_error_in_a_worker_is_that_of_a_run_alone(cluster, connected):
    own = fields(local=ft.LocalTraining(steps=2, lr=1e30, batch_size=5), rounds=20)
    with pytest.raises(ft.InvalidInputError) as alone:
        ft.simulate(**own)
    with pytest.raises(ft.InvalidInputError) as shared:
        ft.simulate(**own, cluster=cluster, workers=1)
    assert str(shared.value) == str(alone.value)


def test_a_cluster_without_free_cores_is_named(cluster, connected, monkeypatch):
    monkeypatch.setattr(worker_pool, "_START_SECONDS", 1.0)
    holder = connected.remote(num_cpus=2)(_Holder)
    held = [holder.remote() for _ in range(2)]
    connected.get([one.ready.remote() for one in held])
    try:
        with pytest.raises(ft.InvalidInputError, match=r"^cluster: no worker .*; .*ray status"):
            ft.simulate(**fields(), cluster=cluster)
    finally:
        for one in held:
            connected.kill(one)


class _Holder:
    def ready(self):
        return True


def test_more_threads_than_any_node_has_cores_are_refused(cluster, connected, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    with pytest.raises(ft.InvalidInputError, match=r"^cluster: no node has the 3 cores .*OMP_NUM"):
        ft.simulate(**fields(), cluster=cluster)


def test_a_run_of_the_command_is_interrupted_and_continues_alone(
    cluster, regression, results, tmp_path
):
    """Ctrl-C reaches a run on two workers; its standard error has nothing of Ray's log."""
    plain = regression | {"rounds": 500, "chunk": 1, "checkpoint": {"every": 20}}
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(plain))
    out = tmp_path / "out"
    command = [FEDTIDE, "run", tmp_path / "file.yaml", "--ray", cluster, "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--out", out], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    end = time.monotonic() + 60
    while not any(out.glob("checkpoints/*20.safetensors")):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert "ray" not in said.lower(), said
    ft.run(tmp_path / "file.yaml", out=out, resume=True)
    ft.run(tmp_path / "file.yaml", out=tmp_path / "alone")
    assert results(out) == results(tmp_path / "alone")
