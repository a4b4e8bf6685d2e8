"""Processes of a local federation are found and ended."""

import os
import subprocess
import sys
import time

import pytest

from fedtide.flower.dev import local_federation
from fedtide.flower.dev.local_federation import LocalFederation, find_processes


@pytest.mark.process
@pytest.mark.parametrize("listing", [True, False])
def test_leaving_the_context_kills_processes_that_ignore_sigterm(tmp_path, monkeypatch, listing):
    """Even if the system's processes cannot be listed, those that were started here end."""
    monkeypatch.setattr(local_federation, "_STOP_TIMEOUT", 1.0)
    script, ready = tmp_path / "stubborn.py", tmp_path / "ready"
    script.write_text(
        "import pathlib, signal, time\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    with LocalFederation(tmp_path / "federation") as federation:
        started = federation._start("stubborn", "python", str(script))
        while not ready.exists():
            time.sleep(0.01)
        assert federation.processes("python") == [started.pid]
        if not listing:
            monkeypatch.setattr(local_federation, "find_processes", lambda mark: {})
    assert started.poll() is not None
    assert federation.processes() == []


@pytest.mark.process
@pytest.mark.parametrize("lister", ["/proc", "ps"])
def test_processes_are_found_by_their_environment(lister):
    find = find_processes if lister == "/proc" else local_federation._find_with_ps
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleep, env=os.environ | {"FEDTIDE_MARK": "a"}) as process:
        try:
            deadline = time.monotonic() + 60
            while process.pid not in find("FEDTIDE_MARK=a"):  # until it has run exec
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert "sleep(600)" in find("FEDTIDE_MARK=a")[process.pid]
            assert process.pid not in find("FEDTIDE_MARK=")
            assert process.pid not in find("FEDTIDE_MARK=ab")
        finally:
            process.kill()


def test_without_proc_ps_lists_the_processes(monkeypatch):
    listings = {
        "-axww": "    1 /sbin/init\n   42 python -c x\n   43 python -c y\n",
        "axeww": "    1 /sbin/init\n   42 python -c x A=b M=/tmp/d\n   43 python -c y M=/tmp/d2\n",
    }
    listings["-axEww"] = listings["axeww"]

    def run(command, **options):
        return subprocess.CompletedProcess(command, 0, stdout=listings[command[1]])

    monkeypatch.setattr(local_federation.subprocess, "run", run)
    assert local_federation._find_with_ps("M=/tmp/d") == {42: "python -c x"}


def test_without_ps_no_processes_are_found(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert local_federation._find_with_ps("M=/tmp/d") == {}
