"""`fedtide flower demo`: it ends well, and leaves no process behind even if interrupted."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtide.cli.flower import demo_command
from fedtide.errors import InvalidInputError
from fedtide.flower.dev.demo import Forecast, example_app
from fedtide.flower.dev.local_federation import find_processes
from fedtide.participation.log.ledger import read_ledger

from .processes import DEADLINE

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
    log = read_ledger(f"sqlite:///{out / 'ledger.db'}")
    first = log.filter(round=0)
    assert first["client"].to_list() == [f"site-{n}" for n in range(5)]
    assert set(first["stage"]) == {"used"}
    assert left_behind(out) == {}


@pytest.mark.flower
def test_an_interrupted_demo_ends_all_its_processes(tmp_path):
    out = tmp_path / "demo"
    command = [*FEDTIDE, "flower", "demo", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE
    while not (out / "site-2.log").is_file():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    assert left_behind(out) != {}
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
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
        demo_command(out=tmp_path)
