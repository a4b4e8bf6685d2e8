"""The script that compares a GPU with the CPU, on the CPU."""

import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

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


def test_waits_are_counted_by_the_warnings_of_pytorch(script, monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def call():
        assert modes == ["warn"]
        for _ in range(2):  # in the same line
            warnings.warn("called a synchronizing CUDA operation (at ...)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert script.count_waits(call) == 2
    assert modes == ["warn", "default"]
    assert list(script.waits("cpu")) == []


def test_the_record_says_which_methods_wait_more_than_once(script):
    found = [{"method": "fedavg", "waits": 1}, {"method": "median", "waits": 3}]
    said = " In a round of 1 methods the host waits at most once; more often: median 3."
    assert script.about_waits(found) == said
    assert script.about_waits([]) == ""
