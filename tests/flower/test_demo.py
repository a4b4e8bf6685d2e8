"""`fedtide flower demo`: it ends well, and whatever happens it leaves no process behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtide.flower.dev import local_federation as loopback
from fedtide.flower.dev.demo import Forecast
from fedtide.flower.dev.local_federation import Loopback
from fedtide.participation.log.ledger import read_ledger

from .processes import DEADLINE

FEDTIDE = str(Path(sys.executable).parent / "fedtide")


def left_behind(folder: Path) -> list[str]:
    """Return the commands of processes that belong to the demonstration in this folder."""
    mark = f"FEDTIDE_LOOPBACK={folder.resolve()}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_federation_with_tls_runs_and_is_audited(tmp_path):
    out = tmp_path / "demo"
    command = [FEDTIDE, "flower", "demo", "--rounds", "1", "--tls", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("rounds: 1, each about ")
    assert "whose model" in done.stdout
    log = read_ledger(f"sqlite:///{out / 'ledger.db'}")
    assert log["client"].to_list() == [f"site-{n}" for n in range(5)]
    assert set(log["stage"]) == {"used"}
    assert left_behind(out) == []


@pytest.mark.slow
def test_an_interrupted_demonstration_ends_all_its_processes(tmp_path):
    out = tmp_path / "demo"
    command = [FEDTIDE, "flower", "demo", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE
    while not (out / "site-2.log").is_file():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    assert left_behind(out) != []
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert left_behind(out) == []


def test_the_forecast_follows_the_rounds_that_have_ended():
    forecast = Forecast(rounds=12, each=10.0)
    assert forecast.left(1, now=100.0) == "2:00 min to go"
    assert forecast.left(2, now=107.0) == "1:17 min to go"
    assert forecast.left(3, now=140.0) == "3:20 min to go"


def test_a_folder_that_is_there_is_refused(tmp_path):
    command = [FEDTIDE, "flower", "demo", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is there already; choose another" in done.stderr
    assert "Traceback" not in done.stderr


def test_leaving_ends_what_ignores_being_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(loopback, "_ENDS_WITHIN", 1.0)
    with Loopback(tmp_path / "federation") as federation:
        script = tmp_path / "stubborn.py"
        ready = tmp_path / "ready"
        script.write_text(
            "import pathlib, signal, time\n"
            "signal.signal(15, signal.SIG_IGN)\n"
            f"pathlib.Path({str(ready)!r}).touch()\n"
            "time.sleep(600)\n"
        )
        started = federation._start("stubborn", "python", str(script))
        while not ready.exists():
            time.sleep(0.01)
        assert federation.processes("python") == [started.pid]
    assert started.poll() is not None
    assert left_behind(tmp_path / "federation") == []
