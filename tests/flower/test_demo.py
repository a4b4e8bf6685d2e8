"""`fedtide flower demo`: it ends well, and leaves no process behind if it is interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedtide.flower.ledger.ledger import read_ledger

from .processes import DEADLINE, find_processes, wait_until

FEDTIDE = [sys.executable, "-c", "from fedtide.cli.main import main; main()"]


def left_behind(folder: Path) -> dict[int, str]:
    """Return the processes that belong to the demo in this folder."""
    return find_processes(f"FLWR_HOME={folder.resolve()}")


@pytest.mark.flower
def test_a_federation_runs_and_is_audited(tmp_path):
    out = tmp_path / "demo"
    command = [*FEDTIDE, "flower", "demo", "--rounds", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("rounds: 2, of a few ")
    assert "WHOSE MODEL" in done.stdout
    log = read_ledger(f"sqlite:///{out / 'ledger.db'}")
    first = log.filter(round=0)
    assert first["client"].to_list() == [f"site-{n}" for n in range(5)]
    assert set(first["stage"]) == {"used"}
    wait_until(lambda: left_behind(out) == {}, "end of all processes")


@pytest.mark.flower
def test_a_demo_that_is_interrupted_leaves_neither_a_process_nor_a_folder(tmp_path):
    """Ctrl-C goes to all processes of the terminal."""
    command, environment = [*FEDTIDE, "flower", "demo"], os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until(lambda: any(tmp_path.glob("*/demo/ledger.db")), "ledger")
        [out] = tmp_path.glob("fedtide-*/demo")
        started = left_behind(out)
    finally:
        os.killpg(process.pid, signal.SIGINT)
    assert len(started) > 12
    assert process.wait(timeout=300) == 130
    wait_until(lambda: left_behind(out) == {}, "end of all processes")
    assert not out.parent.exists()
