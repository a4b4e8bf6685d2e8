"""A folder is locked for one run at a time, and free again however that run ended."""

import logging
import subprocess
import sys
import threading
import time

import pytest

from fedtide.errors import InvalidInputError
from fedtide.locking import LOCK_FILE, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from fedtide.locking import lock_folder
with lock_folder(Path(sys.argv[1]), "out", "wait"):
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def lock(folder, **options):
    return lock_folder(folder, "out", "choose another", **options)


def contents(folder):
    """Return what a folder holds besides the lock file."""
    return [path for path in folder.iterdir() if path.name != LOCK_FILE]


def test_a_locked_folder_is_refused_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited for the lock"))
    folder = tmp_path / "a" / "b"
    with (
        lock(folder),
        pytest.raises(InvalidInputError, match=r"^out: .*b is in use .*; choose another$"),
        lock(folder),
    ):
        pytest.fail("locked twice")
    assert contents(folder) == []


def test_the_lock_ends_with_its_context_however_it_ends(tmp_path):
    with pytest.raises(RuntimeError), lock(tmp_path):
        raise RuntimeError
    with pytest.raises(OSError, match="of the body"), lock(tmp_path):
        raise OSError("of the body")  # not taken for a folder that cannot be written
    with lock(tmp_path):
        pass
    assert contents(tmp_path) == []


def test_a_patient_run_logs_that_it_waits_and_gets_the_folder(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    locked, release = threading.Event(), threading.Event()

    def hold():
        with lock(tmp_path):
            locked.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait()
    threading.Timer(0.2, release.set).start()
    with lock(tmp_path, patience=60.0, logger=logging.getLogger("somebody")):
        assert release.is_set()
    holder.join()
    [record] = caplog.records
    assert record.name == "somebody"
    assert "60 s" in record.getMessage()


@pytest.mark.process
def test_another_process_is_kept_out_until_the_holder_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path), "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(InvalidInputError, match="in use"):
                lock(tmp_path).__enter__()
        finally:
            holder.kill()
    with lock(tmp_path):
        pass
    assert contents(tmp_path) == []
