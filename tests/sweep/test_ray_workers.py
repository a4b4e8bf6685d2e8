"""Sweeps on a Ray cluster of two nodes on this machine, against the same sweeps without one."""

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


def started(*arguments):
    return subprocess.Popen(
        [RAY, "start", *arguments, *_SMALL, *_ALONE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def waited(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.1)


def holder(file):
    """Return the process that has the file open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if descriptor.readlink() == file:
                return int(descriptor.parts[2])
    raise AssertionError(f"nobody has {file} open")


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a cluster with two nodes, each with one core."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: sockets lie below it
    port = free_port()
    nodes = [started("--head", f"--port={port}", f"--temp-dir={folder}")]
    try:
        waited(lambda: answers(port))
        nodes.append(started(f"--address=127.0.0.1:{port}"))
        yield f"127.0.0.1:{port}"
    finally:
        for node in reversed(nodes):
            os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            node.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_cluster_gives_the_same_and_a_lost_task_is_run_again(cluster, sweep, results, tmp_path):
    """One worker process is killed while its run is under way."""
    found = sweep(
        seeds=[1, 2], grid={"local.lr": [0.05, 1e30]}, rounds=2000, checkpoint={"every": 200}
    )
    here = run_sweep(found, tmp_path / "here", workers=1)
    killed = threading.Event()

    def kill():
        first = tmp_path / "there" / found.runs[0].path
        waited(lambda: any(first.glob("checkpoints/*200.safetensors")))
        os.kill(holder(first / ".lock"), signal.SIGKILL)
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


@pytest.mark.slow
def test_nobody_answers(sweep, tmp_path):
    began = time.monotonic()
    with pytest.raises(ft.InvalidInputError, match=r"^ray: nobody answers at '127.0.0.1:1'; start"):
        run_sweep(sweep(seeds=[1, 2]), tmp_path / "out", ray="127.0.0.1:1")
    assert time.monotonic() - began < 20
    assert not (tmp_path / "out" / "small").exists()


@pytest.mark.slow
def test_somebody_else_answers(sweep, tmp_path):
    """A server that says nothing: it is no Ray cluster."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ft.InvalidInputError, match=r"^ray: no Ray cluster answers at "):
            run_sweep(sweep(seeds=[1, 2]), tmp_path / "out", ray=address)


@pytest.mark.parametrize("address", ["here", "127.0.0.1", "127.0.0.1:x"])
def test_what_is_no_address(address, sweep, tmp_path):
    with pytest.raises(ft.InvalidInputError, match=r"^ray: '.*' is not HOST:PORT; start a cluster"):
        run_sweep(sweep(seeds=[1, 2]), tmp_path / "out", ray=address)
