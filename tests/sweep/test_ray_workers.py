"""Sweeps on a Ray cluster of two local nodes, against the same sweeps without one."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import fedtide as ft
from fedtide.sweep import run_sweep

pytest.importorskip("ray")

RAY = Path(sys.executable).with_name("ray")
_SMALL = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
_ALONE = ["--include-dashboard=false", "--include-log-monitor=false", "--block"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start_node(*arguments):
    return subprocess.Popen(
        [RAY, "start", *arguments, *_SMALL, *_ALONE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"RAY_AUTH_MODE": "disabled"},  # this machine may have a token
    )


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.1)


def find_holder(file):
    """Return the process that has the file open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if descriptor.readlink() == file:
                return int(descriptor.parts[2])
    raise AssertionError(f"no process has {file} open")


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a cluster with two nodes, each with one core."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: sockets lie below it
    port = free_port()
    nodes = [start_node("--head", f"--port={port}", f"--temp-dir={folder}")]
    try:
        wait_for(lambda: is_open(port))
        nodes.append(start_node(f"--address=127.0.0.1:{port}"))
        yield f"127.0.0.1:{port}"
    finally:
        for node in reversed(nodes):
            os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            node.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.ray
def test_a_cluster_gives_the_same_results_even_if_a_task_is_lost(cluster, sweep, results, tmp_path):
    """One worker process is killed during its run."""
    found = sweep(
        seeds=[1, 2], grid={"local.lr": [0.05, 1e30]}, rounds=1000, checkpoint={"every": 100}
    )
    here = run_sweep(found, tmp_path / "here", workers=1)
    killed = threading.Event()

    def kill():
        first = tmp_path / "there" / found.runs[0].path
        wait_for(lambda: any(first.glob("checkpoints/*100.safetensors")))
        os.kill(find_holder(first / ".lock"), signal.SIGKILL)
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    there = run_sweep(found, tmp_path / "there", ray=cluster)
    thread.join()
    assert killed.is_set()
    times = ["folder", "rounds_per_second"]
    assert there.drop(times).equals(here.drop(times))
    assert here["status"].to_list() == ["done", "failed"] * 2
    for one, other in zip(here["folder"], there["folder"], strict=True):
        if (Path(one) / "summary.json").exists():
            assert results(one) == results(other)


@pytest.mark.ray
def test_a_task_takes_over_the_working_directory_and_the_default_dtype(
    cluster, sweep, results, tmp_path, monkeypatch
):
    """The raylet was started elsewhere, and in float32."""
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("a,y,who\n" + "0.5,1.5,ann\n2.5,1.0,bob\n" * 9)
    Path("own_loss_of_a_task.py").write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    problem = {"train": "table.csv", "target": "y", "clients": "who", "inputs": ["a"]}
    problem |= {"type": "supervised", "loss": "own_loss_of_a_task:loss"}
    found = sweep(problem=problem, seeds=[1])
    torch.set_default_dtype(torch.float64)
    try:
        there = run_sweep(found, tmp_path / "there", ray=cluster)
        here = run_sweep(found, tmp_path / "here", workers=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert there["status"].to_list() == ["done"], there["error"].to_list()
    assert results(here["folder"][0]) == results(there["folder"][0])


OWN_LOSS = """
import torch


def loss(outputs, target):
    in_float64 = float(torch.ones(1) + 1e-9 > 1)  # the default dtype
    return (outputs.squeeze(-1) - target).square() * (1 + in_float64)
"""


@pytest.mark.ray
def test_an_address_without_a_listener_is_refused_in_time(sweep, tmp_path):
    began = time.monotonic()
    with pytest.raises(ft.InvalidInputError, match=r"^ray: .*127.0.0.1:1'; .*ray start"):
        run_sweep(sweep(seeds=[1, 2]), tmp_path / "out", ray="127.0.0.1:1")
    assert time.monotonic() - began < 20
    assert not (tmp_path / "out" / "small").exists()
