"""`fedtide flower demo`: it ends well, and leaves no process behind even if interrupted."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedtide.cli.flower import flower_command
from fedtide.errors import InvalidInputError
from fedtide.flower.dev.demo import Forecast, example_app
from fedtide.flower.dev.process_guard import find_processes
from fedtide.participation.log.ledger import read_ledger

from .processes import DEADLINE, is_running, wait_until

FEDTIDE = [sys.executable, "-c", "from fedtide.cli.main import main; main()"]


def left_behind(folder: Path) -> dict[int, str]:
    """Return the processes that belong to the demo in this folder."""
    return find_processes(f"FEDTIDE_LOCAL_FEDERATION={folder.resolve()}")


@pytest.mark.flower
def test_a_federation_with_tls_runs_and_is_audited(tmp_path):
    out = tmp_path / "demo"
    command = [*FEDTIDE, "flower", "demo", "--rounds", "2", "--tls", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("rounds: 2, each about ")
    assert "whose model" in done.stdout
    assert re.findall(r"(\w+), (?:this federation|simulated) .*%", done.stdout) == [
        *("FedAU", "FedAvg", "FedAU", "MIFA"),
    ]
    log = read_ledger(f"sqlite:///{out / 'ledger.db'}")
    first = log.filter(round=0)
    assert first["client"].to_list() == [f"site-{n}" for n in range(5)]
    assert set(first["stage"]) == {"used"}
    assert left_behind(out) == {}


@pytest.mark.flower
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process(tmp_path, number):
    """Killed, it is in the middle of a round."""
    out, killed = tmp_path / "demo", number == signal.SIGKILL
    command = [*FEDTIDE, "flower", "demo", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_ready() -> bool:
        assert process.poll() is None
        ready = out / ("ledger.db" if killed else "site-2.log")
        return ready.is_file()

    try:
        wait_until(is_ready, "processes")
        started = left_behind(out)
    finally:
        process.send_signal(number)
    assert len(started) > (12 if killed else 3)
    assert process.wait(timeout=60) == (-number if killed else 130)
    wait_until(lambda: not any(map(is_running, started)), "end of all processes", seconds=10)
    assert left_behind(out) == {}


def test_the_forecast_follows_the_rounds_that_have_ended():
    forecast = Forecast(rounds=12, seconds=10.0)
    assert forecast.remaining(1, now=100.0) == "2:00 min to go"
    assert forecast.remaining(2, now=107.0) == "1:17 min to go"
    assert forecast.remaining(3, now=140.0) == "3:20 min to go"


def test_the_demo_finds_its_app():
    assert (example_app() / "pyproject.toml").is_file()


def test_an_existing_output_folder_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"^out: .* exists; "):
        flower_command("demo", out=tmp_path)
