"""A run that is killed at any moment goes on and ends bit for bit as if it had not been."""

import itertools
import os
import random
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from tests.algorithms.methods import BOUNDED, METHODS

import fedtide as ft
from fedtide.errors import Interrupted
from fedtide.simulation.checkpoint import load_newest
from fedtide.simulation.early_end import Interruption
from fedtide.simulation.loop import Run


class Killed(BaseException):
    pass


@pytest.mark.parametrize("method", [*METHODS, *BOUNDED], ids=repr)
def test_every_method(method, regression, results, killed_at, tmp_path):
    fields = regression | {"algorithm": method}
    fields["problem"] |= {"clients": 4}
    ft.simulate(**fields, out=tmp_path / "whole")
    killed_at(random.Random(repr(method)).randrange(12), fields, tmp_path / "killed")
    ft.simulate(**fields, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


OTHERS = {
    "chains": {"participation": {"type": "markov", "rates": 0.4}},
    "groups": {"participation": {"type": "group-cycle", "groups": 2, "rounds": 3}},
    "permutations": {"participation": {"type": "permutation", "size": 2}},
    "a selection that remembers": {"selection": {"type": "least-served", "size": 2, "period": 5}},
    "selection and dropout": {
        "selection": {"type": "uniform-of", "size": 2},
        "dropout": {"type": "random", "probability": 0.5},
    },
    "a network that drops": {
        "problem": {
            "type": "classification",
            "dataset": "digits",
            "clients": 6,
            "partition": {"type": "dirichlet", "alpha": 0.3},
            "augment": ["flip"],
            "model": {"type": "cnn", "channels": [], "hidden": [4], "dropout": 0.5},
        },
    },
    "noise": {"problem": {"type": "lower-bound-4d"}, "local": {"steps": 3, "lr": 0.01}},
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
    "a clock": {
        "participation": {"type": "sessions", "rates": 0.5, "length": 40.0},
        "selection": {"type": "longest-absent", "size": 4},
        "timing": {
            "policy": {"type": "synchronous", "size": 3, "close_after": 2, "deadline": 60.0},
            "devices": {"seconds_per_sample": 2.0, "jitter": 0.5},
        },
    },
    "rarely evaluated": {"evaluation": {"every": 0}, "log": "used"},
    "steps taken together": {"trainer": "stacked"},
    "saved by the clock, that is never": {"checkpoint": {"seconds": 1e9}},
    "saved always": {"checkpoint": {"every": 1}},
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

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(type(out), "replace", replace)
        ft.simulate(**fields, out=out, **how)
        return False
    return True


def test_writing_checkpoints_takes_a_twentieth_of_the_time(tmp_path, monkeypatch):
    """On a clock by which a round takes a second, and a checkpoint 25."""
    clock, written = [0.0], []

    def slow_save(folder, checkpoint):
        clock[0] += 25
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
        rounds=1500,
        evaluation={"every": 0},
        out=tmp_path / "run",
    )
    assert written[0] == 0
    assert written[-1] == 1500
    between = np.diff(written[:-1])  # the last one ends the run
    assert all(between >= 500)
    assert all(between <= 510)


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


@pytest.mark.parametrize(
    ("algorithm", "finished"), [("fedau", True), ("fedau", False), ("scaffold", True)]
)
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


def test_killed_at_any_write_of_more_rounds(regression, results, tmp_path, monkeypatch):
    """The folder of a finished run always holds either that run or one under way."""
    fields = regression | {"evaluation": {"every": 3}, "rounds": 6}
    ft.simulate(**fields, out=tmp_path / "whole")
    for number in itertools.count():
        ft.simulate(**fields | {"rounds": 3}, out=(out := tmp_path / f"killed-{number}"))
        if not _killed_at_write(fields, out, [number], "after", monkeypatch, resume=True):
            break
        ft.simulate(**fields, out=out, resume=True)
        assert results(out) == results(tmp_path / "whole")
        assert not (out / "log").exists()
    assert number > 8


def test_more_rounds_need_the_log(regression, tmp_path):
    """Without it the finished run stays what it was."""
    fields = regression | {"rounds": 8}
    whole = ft.simulate(**fields, out=tmp_path / "run")
    log = (tmp_path / "run" / "participation.parquet").read_bytes()
    (tmp_path / "run" / "participation.parquet").write_bytes(b"PAR1")
    before = contents(tmp_path)
    with pytest.raises(ft.InvalidInputError, match=r"participation\.parquet that cannot be read"):
        ft.simulate(**regression, out=tmp_path / "run", resume=True)
    assert contents(tmp_path) == before
    (tmp_path / "run" / "participation.parquet").write_bytes(log)
    again = ft.simulate(**fields, out=tmp_path / "run", resume=True)
    assert again.metrics.equals(whole.metrics)


def test_a_run_is_killed_again_and_again(regression, results, killed_at, tmp_path):
    ft.simulate(**regression, out=tmp_path / "whole")
    for number, round in enumerate((1, 4, 5, 11)):
        killed_at(round, regression, tmp_path / "killed", resume=number > 0)
    ft.simulate(**regression, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


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


def test_the_name_and_the_checkpoints_may_change(regression, killed_at, tmp_path):
    """After a lost hour, one wants to save more often."""
    killed_at(5, regression | {"name": "before"}, out := tmp_path / "run")
    changes = {"name": "after", "checkpoint": {"seconds": 0, "every": 1}}
    resumed = ft.simulate(**regression | changes, out=out, resume=True)
    assert resumed.model.tobytes() == ft.simulate(**regression).model.tobytes()
    written = yaml.safe_load((out / "experiment.yaml").read_text())
    assert (written["name"], written["checkpoint"]["every"]) == ("after", 1)
    assert resumed.plain == written


def test_a_folder_in_use(regression, tmp_path, monkeypatch):
    """The second run is refused while the first holds the folder, and changes nothing."""
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
