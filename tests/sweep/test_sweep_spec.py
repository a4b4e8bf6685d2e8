"""Sweep specifications with methods and seeds, and strict execution of their runs."""

from pathlib import Path

import pytest
import yaml

import fedtide as ft
from fedtide.locking import lock_folder
from fedtide.sweep import Sweep, run_sweep


def run(found, out):
    """Run a sweep in this process and return the folders of its runs."""
    frame = run_sweep(found, out, workers=1)
    assert set(frame["status"]) == {"done"}
    return [Path(folder) for folder in frame["folder"]]


def test_a_plain_experiment_is_a_sweep_of_one_run(sweep, base):
    found = sweep()
    assert found.name == "small"
    assert [member.path for member in found.runs] == [""]
    assert found.runs[0].experiment == ft.Experiment.from_dict(base)


def test_a_sweep_without_a_name_takes_that_of_its_file(base, tmp_path):
    file = tmp_path / "called.yaml"
    file.write_text(yaml.safe_dump({k: v for k, v in base.items() if k != "name"}))
    assert Sweep.load(file).name == "called"


def test_all_methods_of_a_seed_come_before_the_next_seed(sweep):
    methods = {"a": {}, "b": {"algorithm": "fedavg"}}
    found = sweep(seeds=[3, 1], methods=methods)
    assert [member.path for member in found.runs] == [
        "a/seed-3",
        "b/seed-3",
        "a/seed-1",
        "b/seed-1",
    ]
    assert [member.experiment.seed for member in found.runs] == [3, 3, 1, 1]
    assert [member.experiment.name for member in found.runs] == ["a", "b", "a", "b"]


def test_seeds_alone(sweep, base):
    found = sweep(seeds=[1, 2])
    assert [member.path for member in found.runs] == ["small/seed-1", "small/seed-2"]
    assert found.runs[1].experiment == ft.Experiment.from_dict(base | {"seed": 2})


def test_methods_merge_mappings_but_replace_those_with_a_type(sweep):
    methods = {
        "rate": {"local": {"lr": 0.3}},
        "type": {"algorithm": {"type": "fedau"}},
        "key": {"algorithm": {"cutoff": 9}},
        "deep": {"participation": {"rates": [0.1, 0.2, 0.3, 0.4, 0.5]}, "rounds": 7},
    }
    rate, whole, key, deep = [m.experiment for m in sweep(methods=methods, seed=4).runs]
    assert rate.local == ft.LocalTraining(steps=2, lr=0.3, batch_size=4)
    assert rate.algorithm == ft.algorithms.FedAU(cutoff=7, server_lr=2.0)
    assert whole.algorithm == ft.algorithms.FedAU()
    assert key.algorithm == ft.algorithms.FedAU(cutoff=9, server_lr=2.0)
    assert list(deep.participation.rates) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert (deep.rounds, rate.rounds) == (7, 3)
    assert {m.seed for m in (rate, whole, key, deep)} == {4}


def test_overrides_apply_to_all_methods(sweep):
    methods = {"a": {}, "b": {"algorithm": "fedavg"}}
    found = sweep(["rounds=9", "seeds=[5]"], seeds=[1, 2], methods=methods)
    assert [(m.experiment.rounds, m.experiment.seed) for m in found.runs] == [(9, 5), (9, 5)]


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"seeds": []}, "seeds: "),
        ({"seeds": [1, 2, 1]}, "seeds: "),
        ({"seeds": [1, "1"]}, "seeds: "),
        ({"seeds": [-1]}, "seed: -1 "),
        ({"methods": {}}, "methods: "),
        ({"methods": {"a": "fedavg"}}, "methods: "),
        ({"methods": {"../a": {}}}, "methods: '../a' "),
        ({"methods": {".a": {}}}, "methods: '.a' "),
        ({"methods": {"": {}}}, "methods: '' "),
        ({"methods": {"a": {"local": {"lr": 0}}}}, "methods.a.local.lr: 0.0 "),
        ({"methods": {"a": {"seed": 3}}}, "methods.a.seed: "),
        ({"methods": {"a": {"name": "b"}}}, "methods.a.name: "),
    ],
)
def test_a_bad_specification_is_refused(changes, start, sweep):
    with pytest.raises(ft.InvalidInputError) as error:
        sweep(**changes)
    assert str(error.value).startswith(start)


def test_runs_of_a_sweep_equal_single_runs(sweep, results, tmp_path):
    found = sweep(seeds=[1, 2], methods={"a": {}, "b": {"algorithm": "fedavg"}})
    folders = run(found, tmp_path / "out")
    for member, folder in zip(found.runs, folders, strict=True):
        alone = tmp_path / "alone" / member.path
        ft.simulate(**vars(member.experiment), out=alone)
        assert results(folder) == results(alone)


def test_finished_runs_are_kept_and_the_rest_is_executed(sweep, results, tmp_path):
    found = sweep(seeds=[1, 2])
    whole = run(found, tmp_path / "whole")
    run(sweep(seeds=[1]), tmp_path / "part")
    done = tmp_path / "part" / "small" / "seed-1" / "summary.json"
    before = done.stat().st_mtime_ns
    folders = run(found, tmp_path / "part")
    assert done.stat().st_mtime_ns == before
    assert [results(folder) for folder in folders] == [results(folder) for folder in whole]


def test_nothing_is_written_if_a_later_run_cannot_start(sweep, tmp_path):
    """The groups of FedAU are checked against the clients only when a run is prepared."""
    methods = {"a": {}, "b": {"algorithm": {"type": "fedau", "groups": [0, 1]}}}
    found = sweep(methods=methods)
    with pytest.raises(ft.InvalidInputError, match=r"^b/seed-0\.algorithm\.groups: "):
        run_sweep(found, tmp_path / "out", workers=1, strict=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_a_strict_failure_stops_the_other_runs_and_is_raised(sweep, tmp_path):
    """The stopped runs are saved, to be resumed once the failure is fixed."""
    methods = {
        "long": {"rounds": 200_000},
        "fails": {"local": {"lr": 1e30}, "rounds": 50},
    }
    with pytest.raises(ft.InvalidInputError, match=r"^local\.lr: .* is not finite \(clients"):
        run_sweep(sweep(methods=methods), tmp_path / "out", workers=2, strict=True)
    assert list((tmp_path / "out" / "long" / "seed-0" / "checkpoints").iterdir())
    assert not (tmp_path / "out" / "long" / "seed-0" / "summary.json").exists()
    with lock_folder(tmp_path / "out" / "long" / "seed-0", "out", "wait"):
        pass  # nobody holds it any more
