"""Run folders: one run at a time, damaged files are recognised, finished runs can be read."""

import errno
import logging
import multiprocessing
import os
from pathlib import Path

import pytest

import fedtide as ft
from fedtide.simulation.run_folder import RunFolder

# One run at a time.


def lock_repeatedly(folder, times, queue):
    """Lock the folder again and again; count the locks, and those that another process had too."""
    locked = shared = 0
    run_folder = RunFolder(folder)
    for _ in range(times):
        try:
            with run_folder.lock({"rounds": 1}, resume=True, fingerprints={}):
                locked += 1
                try:  # only one process can create a file exclusively
                    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    shared += 1
                else:
                    os.unlink(folder / "inside")
        except ft.InvalidInputError:
            continue
    queue.put((locked, shared))


@pytest.mark.process
def test_of_three_processes_at_most_one_locks_a_folder(tmp_path):
    """Each locks and releases the folder 2000 times, between any two operations of the others."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    (tmp_path / "experiment.yaml").write_text("rounds: 1\n")
    processes = [
        context.Process(target=lock_repeatedly, args=(tmp_path, 2000, queue)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    counts = [queue.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    assert sum(locked for locked, _ in counts) > 0
    assert [shared for _, shared in counts] == [0, 0, 0]
    left = {p.name for p in tmp_path.iterdir()}
    assert left <= {".lock", "experiment.yaml", "fingerprints.json"}


# Damage.


def damage(file, how):
    content = bytearray(file.read_bytes())
    if how == "edited":
        content[-5] ^= 1
    if how == "removed":
        file.unlink()
        return
    file.write_bytes(content[: {"torn": len(content) // 2, "emptied": 0}.get(how, len(content))])


@pytest.mark.parametrize(("how", "last"), [("torn", 3), ("edited", 3), ("emptied", 0)])
def test_damaged_checkpoints_are_named_and_the_previous_one_is_used(
    how, last, fields, results, whole, killed, caplog
):
    """Without any, the run starts again."""
    for t in (3, 6):
        if t > last:
            damage(killed / "checkpoints" / f"{t:09d}.safetensors", how)
    starts = []

    class Starts(ft.callbacks.Callback):
        def on_start(self, run):
            starts.append(run.round)

    with caplog.at_level(logging.WARNING, logger="fedtide"):
        ft.simulate(**fields, out=killed, resume=True, callbacks=[Starts()])
    assert starts == [last]
    damaged = [m for m in caplog.messages if "damaged" in m]
    assert damaged[0].startswith(str(killed / "checkpoints" / "000000006.safetensors"))
    assert len(damaged) == (6 - last) // 3
    assert results(killed) == results(whole)


@pytest.mark.parametrize(("how", "part"), [("torn", 3), ("edited", 6), ("removed", 3)])
def test_a_damaged_part_of_the_log_invalidates_later_checkpoints(
    how, part, fields, results, whole, killed, caplog
):
    damage(killed / "log" / f"{part:09d}.parquet", how)
    ft.simulate(**fields, out=killed, resume=True)
    assert len(caplog.records) == {3: 2, 6: 1}[part]
    assert results(killed) == results(whole)


@pytest.mark.parametrize("text", ["rounds: [", ""])
def test_a_damaged_experiment_file_is_refused(text, fields, killed):
    (killed / "experiment.yaml").write_text(text)
    with pytest.raises(ft.InvalidInputError, match=r"experiment.yaml: .*(YAML|mapping)"):
        ft.simulate(**fields, out=killed, resume=True)


def test_other_files_of_the_user_are_not_touched(fields, results, whole, killed):
    names = ("notes.txt", "log/mine.parquet", "checkpoints/mine.safetensors")
    for name in names:
        (killed / name).write_text("mine")
    ft.simulate(**fields, out=killed, resume=True)
    assert [(killed / name).read_text() for name in names] == ["mine"] * 3
    assert results(killed) == results(whole)


@pytest.mark.parametrize("name", [".metrics.parquet.part", "checkpoints/.tmpGZnQm1"])
def test_unfinished_files_of_a_killed_process_are_removed(name, fields, results, whole, killed):
    """safetensors writes to a temporary file of its own beside its target."""
    (killed / name).write_text("half")
    ft.simulate(**fields, out=killed, resume=True)
    assert not (killed / name).exists()
    assert results(killed) == results(whole)


def keep_open(monkeypatch, *endings):
    """Let files with these endings be open elsewhere: Windows removes no such file."""
    unlink = Path.unlink

    def unlink_unless_open(path, missing_ok=False):
        if path.name.endswith(endings) and path.exists():
            raise PermissionError(errno.EACCES, "The process cannot access the file", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_unless_open)


def test_files_that_are_open_elsewhere_do_not_end_a_run(
    fields, results, whole, killed, monkeypatch
):
    """As while a report reads a run, or a backup the checkpoints."""
    with monkeypatch.context() as patch:
        keep_open(patch, "metrics.jsonl", "3.parquet", "3.safetensors")
        ft.simulate(**fields, out=killed, resume=True)
    assert results(killed) == results(whole)
    ft.simulate(**fields, out=killed, resume=True)
    assert not (killed / "metrics.jsonl").exists()
    assert not (killed / "log").exists()
    assert results(killed) == results(whole)


# Finished runs.
