"""A run that is killed at any moment goes on and ends bit for bit as if it had not been."""

import itertools
import json
import os
import random
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import fedtide as ft
from fedtide.algorithms import ALGORITHMS
from fedtide.errors import Interrupted
from fedtide.simulation.checkpoint import load_newest
from fedtide.simulation.early_end import Interruption
from fedtide.simulation.loop import Run
from fedtide.simulation.run_folder import RunFolder

METHODS = {name: [{}] for name in ALGORITHMS} | {
    "fedau": [{"cutoff": 3}, {"cutoff": 2, "average": 0.7}, {"groups": [0, 1, 0, 1, 2, 2]}],
    "amplified-scaffold": [{"period": 4, "factor": 1.5}],
    "amplified": [{"period": 4, "factor": 1.5, "inner": {"type": "fedau", "cutoff": 4}}],
    "wait-for-all": [{"period": 4}, {"period": 4, "mode": "gradient"}],
    "weighted-fedavg": [{"rates": [0.5, 0.4, 0.3, 0.6, 0.7, 0.8]}],
    "fedprox": [{"mu": 0.1}],
    "switch": [{"first": "fedavg", "second": "fedlaavg", "at": 5}],
    "averaged": [{"inner": "fedau"}],
    "clipped": [{"bound": 0.1, "inner": "fedau"}, {"bound": 1.0, "quantile": 0.5}],
    "trimmed-mean": [{"trim": 0.3, "inner": "fedau"}],
    "mifa": [{"unseen": "zero"}, {"unseen": "exclude"}, {"unseen": "wait"}],
    "fedvarp": [{}, {"empty_rounds": "memory"}],
    "scaffold": [{}, {"option": 1}],
}
"""Parameters for the methods that need some; any other method is tested with its defaults."""

EACH_METHOD = [
    {"type": name, **given} for name, all_given in METHODS.items() for given in all_given
]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("algorithm", EACH_METHOD, ids=lambda a: " ".join(map(str, a.values())))
def test_every_method(algorithm, regression, results, killed_at, tmp_path):
    fields = regression | {"algorithm": algorithm}
    ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(random.Random(str(algorithm)).randrange(12), fields, tmp_path / "killed")
    ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


PARTICIPATION = [
    {"participation": {"type": "markov", "rates": 0.4}},
    {"participation": {"type": "cyclic", "rates": 0.4, "period": 5}},
    {"participation": {"type": "group-cycle", "groups": 2, "rounds": 3}},
    {"participation": {"type": "permutation", "size": 2}},
    {"participation": {"type": "weighted", "size": 2, "weights": [1, 2, 3, 4, 5, 6]}},
    {"selection": {"type": "permutation-of", "size": 2}},
    {"selection": {"type": "longest-absent", "size": 2}},
    {"selection": {"type": "least-served", "size": 2, "period": 5}},
    {"selection": {"type": "min-separation", "size": 2, "rounds": 1}},
    {
        "selection": {"type": "uniform-of", "size": 2},
        "dropout": {"type": "random", "probability": 0.5},
    },
]


@pytest.mark.parametrize("who", PARTICIPATION, ids=str)
def test_every_kind_of_participation(who, regression, results, killed_at, tmp_path):
    fields = regression | who
    ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(7, fields, tmp_path / "killed")
    ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


OTHERS = {
    "dropout": {
        "problem": {
            "type": "classification",
            "dataset": "digits",
            "clients": 6,
            "partition": {"type": "dirichlet", "alpha": 0.3},
            "augment": ["flip"],
            "model": {"type": "cnn", "channels": [], "hidden": [4], "dropout": 0.5},
        },
    },
    "noise": {
        "problem": {"type": "lower-bound-4d"},
        "local": {"steps": 3, "lr": 0.01},
        "participation": {"type": "group-cycle", "groups": 2, "rounds": 3},
    },
    "epochs, momentum and decay": {
        "local": {
            "epochs": 1,
            "batch_size": 4,
            "lr": 0.05,
            "momentum": 0.9,
            "schedule": {"type": "inverse", "every": 2},
            "projection": {"type": "ball", "radius": 1},
        },
        "objective": "samples",
    },
    "iterates": {"record_iterates": True},
    "rarely evaluated": {"evaluation": {"every": 0}, "log": "used"},
    "steps taken together": {"trainer": "stacked"},
    "saved by the clock, that is never": {"checkpoint": {"seconds": 1e9}},
    "saved always": {"checkpoint": {"every": 1}},
    "waits to the end": {"algorithm": {"type": "wait-for-all", "period": 40}},
}


@pytest.mark.parametrize("changes", OTHERS)
def test_everything_else_that_a_run_carries(changes, regression, results, killed_at, tmp_path):
    fields = regression | OTHERS[changes]
    whole = ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(8, fields, tmp_path / "killed")
    resumed = ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert resumed.model.tobytes() == whole.model.tobytes()
    if whole.iterates is not None:
        assert resumed.iterates.tobytes() == whole.iterates.tobytes()


@pytest.mark.parametrize("moment", ["before a file is in place", "after it is in place"])
def test_killed_at_any_write(moment, regression, results, tmp_path, monkeypatch):
    """At each file that a run writes, in turn, from the first to the last."""
    fields = regression | {"algorithm": "fedau", "rounds": 6}
    ft.simulate(**fields, out=tmp_path / "whole")
    for number in itertools.count():
        out, left = tmp_path / f"killed-{number}", [number]
        if not _killed_at_write(fields, out, left, moment, monkeypatch):
            break
        (out / ".lock").touch()  # as a kill leaves it
        ft.simulate(**fields, out=out, resume=True)
        assert results(out) == results(tmp_path / "whole")
        assert not list(out.rglob(".*.part"))
    assert number > 12


def _killed_at_write(fields, out, left, moment, monkeypatch, **how):
    """Run until so many files were written; say whether that killed the run."""
    original = type(out).replace

    def replace(path, target):
        left[0] -= 1
        if left[0] < 0 and moment.startswith("before"):
            raise Killed
        original(path, target)
        if left[0] < 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(out), "replace", replace)
        try:
            ft.simulate(**fields, out=out, **how)
        except Killed:
            return True
    return False


@pytest.mark.parametrize(("took", "pause"), [(25, 500), (50, 600)])
def test_writing_checkpoints_takes_a_twentieth_of_the_time(tmp_path, monkeypatch, took, pause):
    """On a clock by which a round takes a second; a crash costs ten minutes at most."""
    clock, written = [0.0], []

    def slow_save(folder, checkpoint):
        clock[0] += took
        written.append(checkpoint.round)

    def round(run):
        clock[0] += 1
        original(run)

    original = Run.round
    monkeypatch.setattr(Run, "round", round)
    monkeypatch.setattr("fedtide.simulation.runner.save", slow_save)
    monkeypatch.setattr(
        "fedtide.simulation.runner.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    ft.simulate(
        problem=ft.problems.Quadratic.two_clients(),
        participation="full",
        algorithm="fedavg",
        local={"steps": 1, "lr": 0.1},
        rounds=3000,
        evaluation={"every": 0},
        out=tmp_path / "run",
    )
    assert written[0] == 0
    assert written[-1] == 3000
    between = np.diff(written[:-1])  # the last one ends the run
    assert all(between >= pause)
    assert all(between <= pause + 10)


@pytest.mark.parametrize("damage", ["torn", "edited", "emptied"])
@pytest.mark.parametrize("damaged", [1, 2], ids=["the newest", "both"])
def test_damaged_checkpoints_are_passed_over(
    damage, damaged, regression, results, killed_at, tmp_path
):
    """One is: the one before is used. Both are: the run starts again."""
    ft.simulate(**regression, out=tmp_path / "whole")
    killed_at(8, regression, tmp_path / "killed")
    files = sorted((tmp_path / "killed" / "checkpoints").iterdir())
    assert [int(file.stem) for file in files] == [3, 6]
    for file in files[-damaged:]:
        content = bytearray(file.read_bytes())
        if damage == "edited":
            content[-5] ^= 1
        cut = {"torn": len(content) // 2, "edited": len(content), "emptied": 0}[damage]
        file.write_bytes(content[:cut])
    kept = load_newest(tmp_path / "killed" / "checkpoints")
    assert (kept.round if kept else None) == (3 if damaged == 1 else None)
    ft.simulate(**regression, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_a_finished_run_is_left_alone(regression, tmp_path):
    whole = ft.simulate(**regression, out=tmp_path / "run")
    (tmp_path / "run" / ".lock").unlink(missing_ok=True)  # kept by some versions of filelock
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    again = ft.simulate(**regression, out=tmp_path / "run", resume=True)
    (tmp_path / "run" / ".lock").unlink(missing_ok=True)
    after = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    assert before == after
    assert again.model.tobytes() == whole.model.tobytes()
    assert again.metrics.equals(whole.metrics)
    assert again.participation.equals(whole.participation)
    assert again.clients.equals(whole.clients)


@pytest.mark.parametrize("algorithm", ["fedau", "scaffold", {"type": "averaged", "inner": "mifa"}])
@pytest.mark.parametrize("finished", [True, False])
def test_a_run_goes_on_for_more_rounds(
    algorithm, finished, regression, results, killed_at, tmp_path
):
    """Its results are those of a run that had all rounds from the beginning."""
    fields = regression | {"algorithm": algorithm, "evaluation": {"every": 4}}
    ft.simulate(**fields, out=tmp_path / "whole")
    shorter = fields | {"rounds": 8}
    if finished:
        ft.simulate(**shorter, out=tmp_path / "run")
    else:
        killed_at(5, shorter, tmp_path / "run")
    longer = ft.simulate(**fields, out=tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    in_memory = ft.simulate(**fields)
    assert longer.metrics.equals(in_memory.metrics)
    assert longer.participation.equals(in_memory.participation)
    assert longer.clients.equals(in_memory.clients)
    assert ft.Experiment.load(tmp_path / "run" / "experiment.yaml").rounds == 12


@pytest.mark.parametrize("moment", ["before a file is in place", "after it is in place"])
def test_killed_at_any_write_of_more_rounds(moment, regression, results, tmp_path, monkeypatch):
    """The folder of a finished run always holds either that run or one under way."""
    fields = regression | {"evaluation": {"every": 3}, "rounds": 6}
    shorter = fields | {"rounds": 3}
    ft.simulate(**fields, out=tmp_path / "whole")
    for number in itertools.count():
        ft.simulate(**shorter, out=(out := tmp_path / f"killed-{number}"))
        again = {"resume": True}
        if not _killed_at_write(fields, out, [number], moment, monkeypatch, **again):
            break
        ft.simulate(**fields, out=out, **again)
        assert results(out) == results(tmp_path / "whole")
        assert not (out / "log").exists()
    assert number > 8


def test_fewer_rounds_than_the_folder_has(regression, tmp_path):
    ft.simulate(**regression, out=tmp_path / "run")
    before = contents(tmp_path)
    with pytest.raises(ft.InvalidInputError, match=r"rounds \(was 12, is 11\)"):
        ft.simulate(**(regression | {"rounds": 11}), out=tmp_path / "run", resume=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("rounds", [12, 20])
def test_a_finished_run_needs_its_last_checkpoint(rounds, regression, tmp_path):
    ft.simulate(**regression, out=tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "000000012.safetensors").unlink()
    with pytest.raises(ft.InvalidInputError, match="no intact checkpoint"):
        ft.simulate(**(regression | {"rounds": rounds}), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"PAR1")])
def test_more_rounds_need_the_log(damage, regression, tmp_path):
    """Without it the finished run stays what it was."""
    fields = regression | {"rounds": 8}
    whole = ft.simulate(**fields, out=tmp_path / "run")
    log = (tmp_path / "run" / "participation.parquet").read_bytes()
    damage(tmp_path / "run" / "participation.parquet")
    before = contents(tmp_path)
    with pytest.raises(ft.InvalidInputError, match=r"participation\.parquet that cannot be read"):
        ft.simulate(**regression, out=tmp_path / "run", resume=True)
    assert contents(tmp_path) == before
    (tmp_path / "run" / "participation.parquet").write_bytes(log)
    again = ft.simulate(**fields, out=tmp_path / "run", resume=True)
    assert again.metrics.equals(whole.metrics)


def test_a_run_under_way_again_has_no_table_of_its_former_end(regression, killed_at, tmp_path):
    """Without clients that are evaluated, nothing would replace it before the new end."""
    fields = regression | {"evaluation": {"clients": False}}
    ft.simulate(**(fields | {"rounds": 8}), out=tmp_path / "run")
    assert (tmp_path / "run" / "clients.parquet").exists()
    killed_at(11, fields, tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "clients.parquet").exists()


def test_a_run_is_killed_again_and_again(regression, results, killed_at, tmp_path):
    ft.simulate(**regression, out=tmp_path / "whole")
    for number, round in enumerate((1, 4, 5, 11)):
        killed_at(round, regression, tmp_path / "killed", resume=number > 0)
    ft.simulate(**regression, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_to_resume_what_never_began_is_to_begin(regression, results, tmp_path):
    ft.simulate(**regression, out=tmp_path / "whole")
    ft.simulate(**regression, out=tmp_path / "new", resume=True)
    assert results(tmp_path / "new") == results(tmp_path / "whole")


def test_a_run_in_a_folder_is_the_run_in_memory(regression, tmp_path):
    inside, outside = ft.simulate(**regression, out=tmp_path / "run"), ft.simulate(**regression)
    assert inside.model.tobytes() == outside.model.tobytes()
    assert inside.metrics.equals(outside.metrics)
    assert inside.participation.equals(outside.participation)
    assert inside.clients.equals(outside.clients)


def test_the_folder_tells_the_experiment(regression, tmp_path):
    ft.simulate(**regression, out=tmp_path / "run")
    again = ft.Experiment.load(tmp_path / "run" / "experiment.yaml")
    assert again == ft.Experiment.from_dict(regression)


@pytest.mark.skipif(sys.platform == "win32", reason="no name there has * or ?")
@pytest.mark.parametrize("name", ["~/run", "[a]/run", "a*[0-9]?"])
def test_names_of_folders_that_shells_and_libraries_expand(name, regression, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(home))
    monkeypatch.chdir(tmp_path)
    folder = home / "run" if name.startswith("~") else tmp_path / name
    first = ft.simulate(**regression, out=name)
    assert (folder / "summary.json").exists()
    assert not Path("~").exists()
    assert RunFolder(name).read_metrics().equals(first.metrics)
    again = ft.simulate(**regression, out=name, resume=True)
    assert again.participation.equals(first.participation)
    file = name + "/experiment.yaml"
    assert ft.Experiment.load(file) == ft.Experiment.from_dict(regression)


# Refusals: one sentence, and the folder as it was.


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_that_is_not_empty(regression, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    for resume in (False, True):
        with pytest.raises(ft.InvalidInputError, match=r"^out: .* is not empty; it holds no run"):
            ft.simulate(**regression, out=tmp_path, resume=resume)
    assert contents(tmp_path) == before


def test_a_file_instead_of_a_folder(regression, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ft.InvalidInputError, match=r"^out: .*file is a file; "):
        ft.simulate(**regression, out=tmp_path / "file")
    with pytest.raises(ft.InvalidInputError, match=r"^out: .* cannot be written \(.*\); "):
        ft.simulate(**regression, out=tmp_path / "file" / "below")


def test_a_folder_of_an_earlier_version_has_the_defaults_of_later_fields(
    regression, killed_at, tmp_path
):
    killed_at(8, regression, out := tmp_path / "run")
    file = out / "experiment.yaml"
    plain = yaml.safe_load(file.read_text())
    del plain["evaluation"]["last"], plain["dropout"]
    file.write_text(yaml.safe_dump(plain))
    with pytest.raises(ft.InvalidInputError, match=r"rounds \(was"):
        ft.simulate(**(regression | {"rounds": 9}), out=out, resume=True)
    resumed = ft.simulate(**regression, out=out, resume=True)
    np.testing.assert_array_equal(resumed.model, ft.simulate(**regression).model)


def test_another_experiment(regression, killed_at, tmp_path):
    killed_at(8, regression, tmp_path / "run")
    before = contents(tmp_path)
    other = regression | {"seed": 4, "local": regression["local"] | {"lr": 0.1}}
    with pytest.raises(ft.InvalidInputError) as error:
        ft.simulate(**other, out=tmp_path / "run", resume=True)
    said = str(error.value)
    assert said.startswith(f"resume: {tmp_path / 'run'} ")
    for difference in ("local.lr (was 0.05, is 0.1)", "seed (was 3, is 4)"):
        assert difference in said
    assert contents(tmp_path) == before


@pytest.mark.parametrize("resume", [True, "force"])
def test_the_name_and_the_checkpoints_may_change(resume, regression, killed_at, tmp_path):
    """After a lost hour, one wants to save more often."""
    killed_at(5, regression | {"name": "before"}, out := tmp_path / "run")
    changes = {"name": "after", "checkpoint": {"seconds": 0, "every": 1}}
    resumed = ft.simulate(**regression | changes, out=out, resume=resume)
    assert resumed.model.tobytes() == ft.simulate(**regression).model.tobytes()
    written = yaml.safe_load((out / "experiment.yaml").read_text())
    assert (written["name"], written["checkpoint"]["every"]) == ("after", 1)
    assert resumed.plain == written
    again = ft.simulate(**regression | {"name": "last"}, out=out, resume=resume)
    assert again.plain == yaml.safe_load((out / "experiment.yaml").read_text())
    assert again.plain["name"] == "last"


def test_a_folder_in_use(regression, tmp_path, monkeypatch):
    """The second run is refused while the first holds the folder, and changes nothing."""
    from fedtide.simulation.loop import Run

    said = []
    original = Run.round

    def round(run):
        original(run)
        if run.ended == 5 and not said:
            said.append("asked")
            with pytest.raises(ft.InvalidInputError) as error:
                ft.simulate(**regression, out=tmp_path / "run", resume=True)
            said.append(str(error.value))

    monkeypatch.setattr(Run, "round", round)
    ft.simulate(**regression, out=tmp_path / "run")
    out = tmp_path / "run"
    assert said[1].startswith(f"out: {out} is in use by another run; ")


def test_an_experiment_that_no_file_can_describe_needs_no_folder(regression, tmp_path):
    @dataclass(frozen=True)
    class Named(ft.algorithms.FedAvg):
        label: object = None

    ft.simulate(**regression | {"algorithm": Named()})
    for label in (None, threading.Lock()):  # the class, and then also what it holds
        with pytest.raises(ft.InvalidInputError, match=r"^out: .*; .*without a folder$"):
            ft.simulate(**regression | {"algorithm": Named(label=label)}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk(regression, results, tmp_path, monkeypatch):
    """The run ends with a sentence, leaves no draft behind, and goes on when there is room."""
    ft.simulate(**regression, out=tmp_path / "whole")

    fsync, files = os.fsync, itertools.count()

    def full(number):
        if next(files) >= 6:
            raise OSError(28, "No space left on device")
        fsync(number)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(
            ft.InvalidInputError, match=r"^out: .* cannot be written \(No space left"
        ):
            ft.simulate(**regression, out=tmp_path / "run")
    assert {file.name for file in (tmp_path / "run").rglob(".*")} <= {".lock"}
    ft.simulate(**regression, out=tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_a_copied_folder_goes_on(regression, results, killed_at, tmp_path):
    ft.simulate(**regression, out=tmp_path / "whole")
    killed_at(8, regression, tmp_path / "killed")
    shutil.copytree(tmp_path / "killed", tmp_path / "elsewhere")
    ft.simulate(**regression, out=tmp_path / "elsewhere", resume=True)
    assert results(tmp_path / "elsewhere") == results(tmp_path / "whole")
    there = yaml.safe_load((tmp_path / "elsewhere" / "experiment.yaml").read_text())
    assert there["rounds"] == 12


def test_resuming_with_the_threads_of_before_leaves_those_of_the_process_alone(
    tmp_path, set_threads
):
    """Also if the finished run is only read."""
    fields = {
        "problem": ft.problems.Quadratic.two_clients(),
        "participation": "full",
        "algorithm": "fedavg",
        "local": {"steps": 1, "lr": 0.1},
        "rounds": 3,
        "out": tmp_path / "run",
    }
    set_threads(2)
    ft.simulate(**fields)
    set_threads(1)
    ft.simulate(**fields, resume=True)
    assert torch.get_num_threads() == 1


def test_the_time_and_the_machines_of_all_parts_are_kept(
    regression, killed_at, tmp_path, monkeypatch
):
    """A round that was lost with its process is counted once, and a machine that stayed, too."""
    fields = regression | {"checkpoint": {"every": 1}, "trainer": "auto"}
    ticks = itertools.count()
    monkeypatch.setattr("fedtide.simulation.loop.time.perf_counter", lambda: next(ticks))
    for t, where in ((4, "a"), (8, "b"), (10, "b")):
        monkeypatch.setattr(
            "fedtide.simulation.process_settings.machine", lambda where=where: where
        )
        killed_at(t, fields, tmp_path / "run", resume=t > 4)
    result = ft.simulate(**fields, out=tmp_path / "run", resume=True)
    timings = json.loads((tmp_path / "run" / "timings.json").read_text())
    executions = timings.pop("executions")
    assert [part["machine"] for part in executions] == ["a", "b"]
    (trainer,) = {part["trainer"] for part in executions}
    assert timings.pop("trainer") == result.trainer
    assert result.trainer == f"{trainer}, as in the earlier part of the run"
    assert timings == {
        "rounds": 12,
        "training_seconds": 12,  # a tick in each round
        "evaluation_seconds": len(result.metrics),
        "rounds_per_second": 1,
    }
    monkeypatch.undo()
    assert ft.simulate(**fields, out=tmp_path / "run", resume=True).timings == timings


def test_processes_that_compute_no_round_are_not_among_the_executions(
    regression, killed_at, tmp_path, monkeypatch
):
    """One is killed as it reopens a finished run, another one only writes the results."""
    folder = tmp_path / "run"

    def run_on(machine, rounds):
        monkeypatch.setattr("fedtide.simulation.process_settings.machine", lambda: machine)
        ft.simulate(**regression | {"rounds": rounds}, out=folder, resume=True)
        executions = json.loads((folder / "timings.json").read_text())["executions"]
        return [part["machine"] for part in executions]

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("fedtide.simulation.runner.write_results", kill)
        with pytest.raises(Killed):
            run_on("a", 6)
    assert run_on("b", 6) == ["a"]
    killed_at(6, regression | {"rounds": 12}, folder, resume=True)  # on b
    assert run_on("a", 12) == ["a"]


def test_a_signal_at_any_moment_ends_a_run_after_the_round_that_it_saved(
    regression, tmp_path, monkeypatch
):
    """One that came after the question whether to save, and before whether to end, lost rounds."""

    class Late(Interruption):
        asked = 0

        @property
        def requested(self):
            self.asked += 1
            return self.asked > 3

        @requested.setter
        def requested(self, value):
            pass

    monkeypatch.setattr("fedtide.simulation.runner.Interruption", Late)
    with pytest.raises(Interrupted) as caught:
        ft.simulate(**regression, out=tmp_path / "run")
    kept = load_newest(tmp_path / "run" / "checkpoints")
    assert f"interrupted after round {kept.round} of 12, saved" in str(caught.value)
