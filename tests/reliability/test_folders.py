"""Run folders: one run at a time, damage is recognised and said, finished runs are read."""

import fcntl
import logging
import multiprocessing
import os
import shutil

import polars as pl
import pytest

import fedtide as ft
from fedtide.simulation.loop import Run
from fedtide.simulation.run_folder import RunFolder


class Killed(BaseException):
    pass


def killed_at(t, fields, out, monkeypatch):
    """Run an experiment and end it without any warning before round t."""
    original = Run.round

    def round(run):
        if run.ended == t:
            raise Killed
        original(run)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "round", round)
        with pytest.raises(Killed):
            ft.simulate(**fields, out=out)


# One run at a time.


def try_often(folder, times, queue):
    """Hold the folder again and again; say how often, and whether somebody else held it too."""
    held = crowded = 0
    run_folder = RunFolder(folder)
    for _ in range(times):
        try:
            with run_folder.lock({"rounds": 1}, resume=True):
                held += 1
                try:  # only one process can make a file that must not be there
                    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    crowded += 1
                else:
                    os.unlink(folder / "inside")
        except ft.InvalidInputError:
            continue
    queue.put((held, crowded))


def test_of_three_processes_at_most_one_holds_a_folder(tmp_path):
    """Each removes the lock file as it leaves, between any two operations of the others."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    (tmp_path / "experiment.yaml").write_text("rounds: 1\n")
    processes = [context.Process(target=try_often, args=(tmp_path, 2000, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    counts = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(held for held, _ in counts) > 0
    assert [crowded for _, crowded in counts] == [0, 0, 0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["experiment.yaml"]


def test_a_lock_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """Between opening the file and locking it, its holder leaves and removes it."""
    folder, original, meanwhile = RunFolder(tmp_path), fcntl.flock, [True]

    def flock(file, how):
        if meanwhile.pop() if meanwhile else False:
            (tmp_path / ".lock").unlink()
        original(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        folder.lock({"rounds": 1}, resume=False),
        pytest.raises(ft.InvalidInputError, match="is in use by another run"),
        RunFolder(tmp_path).held({"rounds": 1}, resume=True),
    ):
        pass
    assert not (tmp_path / ".lock").exists()


def test_what_a_killed_process_left_locked_is_free(fields, tmp_path):
    tmp_path.joinpath("run").mkdir()
    tmp_path.joinpath("run", ".lock").touch()
    ft.simulate(**fields, out=tmp_path / "run")


# Damage.


def damage(file, how):
    content = bytearray(file.read_bytes())
    if how == "edited":
        content[-5] ^= 1
    if how == "removed":
        file.unlink()
        return
    file.write_bytes(content[: {"torn": len(content) // 2, "emptied": 0}.get(how, len(content))])


@pytest.mark.parametrize("how", ["torn", "edited", "emptied"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    how, fields, results, tmp_path, monkeypatch, caplog
):
    ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(8, fields, tmp_path / "killed", monkeypatch)
    newest = tmp_path / "killed" / "checkpoints" / "000000006.safetensors"
    damage(newest, how)
    began = []
    monkeypatch.setattr(Run, "start", lambda run: began.append(run.ended))
    with caplog.at_level(logging.WARNING, logger="fedtide"):
        ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert began == [3]
    assert [record.getMessage() for record in caplog.records] == [
        f"{newest} or the log that it counts on is damaged; going on from the checkpoint before "
        "it, or from the beginning where there is none"
    ]
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.parametrize("how", ["torn", "edited", "emptied", "removed"])
@pytest.mark.parametrize("part", [3, 6])
def test_a_damaged_part_of_the_log_is_not_counted_on(
    how, part, fields, results, tmp_path, monkeypatch, caplog
):
    ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(8, fields, tmp_path / "killed", monkeypatch)
    damage(tmp_path / "killed" / "log" / f"{part:09d}.parquet", how)
    ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert len(caplog.records) == {3: 2, 6: 1}[part]
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_a_checkpoint_of_another_version_is_refused(fields, tmp_path, monkeypatch):
    killed_at(8, fields, tmp_path / "killed", monkeypatch)
    monkeypatch.setattr(Run, "restore", lambda run, checkpoint: checkpoint.tensors["other"])
    with pytest.raises(ft.InvalidInputError) as error:
        ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert str(error.value) == (
        f"resume: the checkpoint of round 6 in {tmp_path / 'killed'} is of another version "
        "(KeyError('other')); run it anew in another folder"
    )


@pytest.mark.parametrize("text", ["rounds: [", "just words", "\0", ""])
def test_a_damaged_experiment_file(text, fields, tmp_path, monkeypatch):
    killed_at(8, fields, tmp_path / "killed", monkeypatch)
    (tmp_path / "killed" / "experiment.yaml").write_text(text)
    with pytest.raises(ft.InvalidInputError, match=r"experiment.yaml: (not YAML|holds no keys)"):
        ft.simulate(**fields, out=tmp_path / "killed", resume=True)


def test_other_files_of_the_user_are_left_alone(fields, results, tmp_path, monkeypatch):
    ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(8, fields, tmp_path / "killed", monkeypatch)
    mine = [
        tmp_path / "killed" / name
        for name in ("notes.txt", "log/mine.parquet", "checkpoints/mine.safetensors")
    ]
    for file in mine:
        file.write_text("mine")
    ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert [file.read_text() for file in mine] == ["mine"] * 3
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.parametrize("name", [".metrics.parquet.part", "checkpoints/.tmpGZnQm1"])
def test_what_a_kill_left_half_written_is_removed(name, fields, results, tmp_path, monkeypatch):
    """safetensors writes to a file of its own beside the one it is given."""
    ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(8, fields, tmp_path / "killed", monkeypatch)
    draft = tmp_path / "killed" / name
    draft.write_text("half")
    ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert not draft.exists()
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


# Finished runs.


def test_a_finished_run_whose_checkpoints_are_gone_is_read(fields, tmp_path):
    fields |= {"record_iterates": True}
    first = ft.simulate(**fields, out=tmp_path)
    again = ft.simulate(**fields, out=tmp_path, resume=True)
    assert again.iterates.tobytes() == first.iterates.tobytes()
    shutil.rmtree(tmp_path / "checkpoints")
    bare = ft.simulate(**fields, out=tmp_path, resume=True)
    for result in (again, bare):
        assert result.model.tobytes() == first.model.tobytes()
        assert result.metrics.equals(first.metrics)
        assert result.clients.equals(first.clients)
        assert result.participation.equals(first.participation)
    assert (bare.state, bare.iterates) == (None, None)


def test_a_finished_run_whose_last_checkpoint_is_damaged_is_read(fields, tmp_path):
    first = ft.simulate(**fields, out=tmp_path)
    damage(tmp_path / "checkpoints" / "000000012.safetensors", "edited")
    again = ft.simulate(**fields, out=tmp_path, resume=True)
    assert again.model.tobytes() == first.model.tobytes()
    assert again.state is None


@pytest.mark.parametrize("how", ["torn", "emptied", "removed"])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "metrics.parquet", "participation.parquet", "timings.json"]
)
def test_damaged_results_are_refused(name, how, fields, tmp_path):
    ft.simulate(**fields, out=tmp_path)
    damage(tmp_path / name, how)
    with pytest.raises(ft.InvalidInputError) as error:
        ft.simulate(**fields, out=tmp_path, resume=True)
    assert str(error.value).startswith(
        f"out: {tmp_path} is finished, but its results cannot be read ("
    )
    assert str(error.value).endswith("); run it anew in another folder")


def test_a_kill_while_the_parts_of_the_log_are_removed(fields, tmp_path):
    ft.simulate(**fields, out=tmp_path)
    (tmp_path / "log").mkdir()
    pl.DataFrame({"round": [0]}).write_parquet(tmp_path / "log" / "000000003.parquet")
    ft.simulate(**fields, out=tmp_path, resume=True)
    assert not (tmp_path / "log").exists()


def test_to_resume_takes_a_folder(fields):
    with pytest.raises(ft.InvalidInputError) as error:
        ft.simulate(**fields, resume=True)
    assert str(error.value) == "resume: there is no folder to go on with; give it as out"
