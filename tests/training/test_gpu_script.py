"""The script that compares a GPU with the CPU, on the CPU."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.process
def test_the_script_for_a_gpu_runs_on_a_cpu():
    """It fails where a method or trainer deviates from the readable trainer."""
    command = [sys.executable, SCRIPT, "--device", "cpu", "--quick", "--no-compile"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "Largest deviation from the CPU over" in ended.stdout


@pytest.fixture
def script(monkeypatch):
    """Import the script."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("gpu")
