"""Sweep specifications with methods and seeds, and strict execution of their runs."""

from pathlib import Path

import pytest

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


def test_a_method_can_be_left_out(sweep):
    methods = {"a": {}, "b": {"algorithm": "fedavg"}}
    (run,) = sweep(["methods.a=false"], methods=methods).runs
    assert run.experiment.algorithm == ft.algorithms.FedAvg()
    with pytest.raises(ft.InvalidInputError, match=r"^methods: not a mapping"):
        sweep(["methods.a=false", "methods.b=false"], methods=methods)


EACH = {"a": {"algorithm": "fedavg"}, "b": {"algorithm": {"type": "fedau"}, "local": {"lr": 0.3}}}
RATES = {"type": "bernoulli", "rates": 30}


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"seeds": []}, "seeds: "),
        ({"seeds": [1, "1"]}, "seeds: not a list of distinct numbers"),
        ({"seeds": [1.5]}, "seeds: 1.5 "),
        ({"methods": {"../a": {}}}, "methods: '../a' "),
        ({"methods": {"a": {"seed": 3}}}, "methods.a.seed: "),
        ({"method": EACH}, "method: unknown key; did you mean 'methods'?"),
        ({"methods": EACH | {"c": {"algorithm": "fedua"}}}, "methods.c.algorithm.type: unknown"),
        ({"methods": {"a": {"local": {"lr": 0.3}}}}, "algorithm: missing; "),
        ({"grid": {"participation.rates": [0.5, 2]}}, "grid.participation.rates: 2.0 "),
        ({"grid": {"local.lr": [0.1]}, "participation": RATES}, "participation.rates: 30.0 "),
    ],
)
def test_errors_name_the_part_of_the_file_that_they_are_in(changes, start, base):
    """No common algorithm, so that nothing is complete without a method."""
    plain = {key: value for key, value in base.items() if key != "algorithm"}
    with pytest.raises(ft.InvalidInputError) as error:
        Sweep.from_dict(plain | {"methods": EACH} | changes)
    assert str(error.value).startswith(start)


def test_a_swept_field_that_one_method_lacks_is_named_with_the_method(base):
    with pytest.raises(ft.InvalidInputError) as error:
        Sweep.from_dict(base | {"methods": EACH, "grid": {"algorithm.cutoff": [3]}})
    text = str(error.value)
    assert text.startswith("grid.algorithm.cutoff: unknown key; ")
    assert text.endswith("(in methods.a)")


def test_an_override_of_the_seed_replaces_the_seeds_of_the_file(sweep):
    assert [run.experiment.seed for run in sweep(["seed=3"], seeds=[1, 2]).runs] == [3]
    assert [run.experiment.seed for run in sweep(["seed=3"], methods=EACH).runs] == [3, 3]
    assert [run.experiment.seed for run in sweep(["seeds=[3]"], seeds=[1, 2]).runs] == [3]
    with pytest.raises(ft.InvalidInputError, match=r"^seed: None .* give a whole number$"):
        sweep(["seed="], seeds=[1, 2])


def test_runs_of_a_sweep_equal_single_runs(sweep, results, tmp_path):
    found = sweep(seeds=[1, 2], methods={"a": {}, "b": {"algorithm": "fedavg"}})
    folders = run(found, tmp_path / "out")
    for member, folder in zip(found.runs, folders, strict=True):
        alone = tmp_path / "alone" / member.path
        ft.simulate(**vars(member.experiment), out=alone)
        assert results(folder) == results(alone)


@pytest.mark.process
def test_a_strict_failure_stops_the_other_runs_and_is_raised(sweep, tmp_path):
    """The stopped runs are saved, to be resumed once the failure is fixed."""
    methods = {
        "long": {"rounds": 200_000},
        "fails": {"local": {"lr": 1e30}, "rounds": 50},
    }
    with pytest.raises(ft.InvalidInputError, match=r"^fails/seed-0\.local\.lr: .* is not finite"):
        run_sweep(sweep(methods=methods), tmp_path / "out", workers=2, strict=True)
    assert list((tmp_path / "out" / "long" / "seed-0" / "checkpoints").iterdir())
    assert not (tmp_path / "out" / "long" / "seed-0" / "summary.json").exists()
    with lock_folder(tmp_path / "out" / "long" / "seed-0", "out", "wait"):
        pass  # nobody holds it any more
