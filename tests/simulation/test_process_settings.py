"""What a worker takes over from the process of the run, and what it costs."""

import os
import subprocess
import sys

import pytest

_APPLIED = """
import os, sys, torch
from fedtide.simulation.process_settings import ProcessSettings
from dataclasses import replace

settings = replace(ProcessSettings.current(), determinism=2 * {deterministic})
settings.apply()
print("torch._inductor" in sys.modules, os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
assert torch.are_deterministic_algorithms_enabled() is {deterministic}
"""


@pytest.mark.process
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_worker_compiles_into_the_cache_folder(deterministic, tmp_path):
    """PyTorch imports its compiler, which chooses a temporary folder, when determinism is set."""
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    code = _APPLIED.format(deterministic=deterministic)
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "FEDTIDE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    chosen = str(tmp_path / "compiled-2") if deterministic else None
    assert ended.stdout == f"{deterministic} {chosen}\n"
