"""An audit of a ledger beside the process that writes it: `benchmarks/ledger.py` on few rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "ledger.py"
ROWS, COHORT = 60_000, 100
PATIENCE = 1000.0  # milliseconds


@pytest.mark.process
@pytest.mark.skipif(not BENCHMARK.is_file(), reason="the benchmarks are not here")
def test_an_audit_neither_holds_up_the_federation_nor_sees_half_a_round() -> None:
    command = [sys.executable, BENCHMARK, "--rows", str(ROWS), "--cohort", str(COHORT)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert found["writer_status"] == 0
    assert found["commits_during"]["count"] > 20
    # On a busy machine any commit may take long: those before the audit say how long.
    assert found["commits_during"]["longest"] < PATIENCE + found["commits_before"]["longest"]
    assert found["rounds_at_start"] <= found["rounds_of_audit"] <= found["rounds_at_end"]
    assert found["empty_rounds_of_audit"] == 0
    cohorts = found["cohorts_of_audit"]
    assert cohorts["smallest"] == cohorts["largest"] == 3 / 4 * COHORT
