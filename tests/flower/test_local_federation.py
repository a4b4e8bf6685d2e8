"""Processes of a local federation are found and ended."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fedtide.flower.dev import local_federation, process_guard
from fedtide.flower.dev.local_federation import LocalFederation
from fedtide.flower.dev.process_guard import find_processes

from .processes import is_running, wait_until


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
    find = find_processes if lister == "/proc" else process_guard._find_with_ps
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
    commands = "    1 /sbin/init\n   42 python -c x\n   43 python -c y\n   44 z\n"
    marked = commands.replace("-c x", "-c x A=b M=/tmp/d").replace("-c y", "-c y M=/tmp/d2")
    listings = {("-axww", "pid=,ppid="): "    1     0\n   42     1\n   43     1\n   44    42\n"}
    listings |= {("-axww", "pid=,command="): commands}
    listings |= {(options, "pid=,command="): marked for options in ("axeww", "-axEww")}

    def run(command, **options):
        return subprocess.CompletedProcess(command, 0, stdout=listings[command[1], command[3]])

    monkeypatch.setattr(process_guard.subprocess, "run", run)
    assert process_guard._find_with_ps("M=/tmp/d") == {42: "python -c x", 44: "z"}


def test_the_environment_of_other_processes_may_be_no_text(tmp_path, monkeypatch):
    """`ps` lists that of every process; bytes in it may be no UTF-8, or end a line of Unicode."""
    ps = tmp_path / "ps"
    ps.write_text('#!/bin/sh\nprintf "  42 python A=\\351 B=\\302\\205 M=x\\nmore\\n"\n')
    ps.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ((process, text),) = process_guard._list_with_ps("axeww", "command=").items()
    assert process == 42
    assert text.endswith(" M=x")


def test_without_ps_no_processes_are_found(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert process_guard._find_with_ps("M=/tmp/d") == {}


OWNER = """
import sys, time
from pathlib import Path

from fedtide.flower.dev.local_federation import LocalFederation

with LocalFederation(Path(sys.argv[1])) as federation:
    federation._start("stubborn", "python", "-c", sys.argv[2])
    time.sleep(600)
"""

STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
hidden = subprocess.Popen(sleep, env={}, start_new_session=True)
visible = subprocess.Popen(sleep, start_new_session=True)
print(os.getpid(), hidden.pid, visible.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.usefixtures("hangups_end_processes")
@pytest.mark.parametrize("name", ["SIGHUP", "SIGKILL"])
def test_processes_do_not_survive_the_process_that_started_them(tmp_path, name):
    """Neither those that ignore signals, nor their children without the mark."""
    log = tmp_path / "federation" / "stubborn.log"
    command = [sys.executable, "-c", OWNER, str(tmp_path / "federation"), STUBBORN]
    with subprocess.Popen(command, start_new_session=True) as owner:
        try:
            wait_until(lambda: log.is_file() and len(log.read_text().split()) == 3, "processes")
        finally:
            os.killpg(owner.pid, getattr(signal, name))
    started = [int(word) for word in log.read_text().split()]
    wait_until(lambda: not any(map(is_running, started)), "end of all processes", seconds=60)
    assert find_processes(f"FEDTIDE_LOCAL_FEDERATION={tmp_path / 'federation'}") == {}


@pytest.mark.process
def test_the_guard_ends_with_its_federation(tmp_path):
    with LocalFederation(tmp_path / "federation"):
        [guard] = guards(tmp_path)
        assert is_running(guard)
    assert guards(tmp_path) == []


def guards(folder) -> list[int]:
    command = ["pgrep", "-f", f"process_guard.py FEDTIDE_LOCAL_FEDERATION={folder}/federation"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]
