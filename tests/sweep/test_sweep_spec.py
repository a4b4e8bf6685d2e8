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


def test_a_seed_replaces_the_seeds_of_a_base_and_the_other_way_round(sweep, tmp_path):
    sweep(seed=9)
    (tmp_path / "one.yaml").write_text("base: file.yaml\nseeds: [1, 2]\n")
    assert [run.experiment.seed for run in Sweep.load(tmp_path / "one.yaml").runs] == [1, 2]
    (tmp_path / "two.yaml").write_text("base: one.yaml\nseed: 4\n")
    assert [run.experiment.seed for run in Sweep.load(tmp_path / "two.yaml").runs] == [4]


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


def test_a_method_can_be_left_out(sweep):
    methods = {"a": {}, "b": {"algorithm": "fedavg"}}
    (run,) = sweep(["methods.a=false"], methods=methods).runs
    assert run.experiment.algorithm == ft.algorithms.FedAvg()
    with pytest.raises(ft.InvalidInputError, match=r"^methods: not a mapping"):
        sweep(["methods.a=false", "methods.b=false"], methods=methods)


def test_false_can_be_the_value_of_one_of_a_methods_keys(sweep):
    methods = {"a": {}, "b": {"algorithm": "fedavg"}}
    found = sweep(["methods.b.compile=false"], methods=methods).runs
    assert [(run.path.split("/")[0], run.experiment.compile) for run in found] == [
        ("a", True),
        ("b", False),
    ]


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"seeds": []}, "seeds: "),
        ({"seeds": [1, 2, 1]}, "seeds: "),
        ({"seeds": [1, "1"]}, "seeds: "),
        ({"seeds": [-1]}, "seeds: -1 "),
        ({"seeds": [1, 1.0]}, "seeds: not a list of distinct numbers"),
        ({"seeds": [1.5]}, "seeds: 1.5 "),
        ({"seeds": [True]}, "seeds: "),
        ({"seed": -1, "methods": {"a": {}}}, "seed: -1 "),
        ({"methods": {}}, "methods: "),
        ({"methods": {"a": "fedavg"}}, "methods: "),
        ({"methods": {"a": None, "b": {}}}, "methods: "),
        ({"methods": {"a": False}}, "methods: "),
        ({"methods": {"../a": {}}}, "methods: '../a' "),
        ({"methods": {".a": {}}}, "methods: '.a' "),
        ({"methods": {"": {}}}, "methods: '' "),
        ({"list": [{"name": "a", "rounds": 1}, {"name": "a", "rounds": 2}]}, "list: 'a' is given"),
        ({"methods": {"a": {"local": {"lr": 0}}}}, "methods.a.local.lr: 0.0 "),
        ({"methods": {"a": {"seed": 3}}}, "methods.a.seed: "),
        ({"methods": {"a": {"name": "b"}}}, "methods.a.name: "),
        ({"methods": {"a": {"local.lr": 0.1}}}, "methods.a.local.lr: unknown key; "),
    ],
)
def test_a_bad_specification_is_refused(changes, start, sweep):
    with pytest.raises(ft.InvalidInputError) as error:
        sweep(**changes)
    assert str(error.value).startswith(start)


EACH = {"a": {"algorithm": "fedavg"}, "b": {"algorithm": {"type": "fedau"}, "local": {"lr": 0.3}}}
RATES = {"type": "bernoulli", "rates": 30}


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"rouns": 3}, "rouns: unknown key; did you mean 'rounds'?"),
        ({"rounds": 20.5}, "rounds: 20.5 "),
        ({"rounds": None}, "rounds: "),
        ({"participation": RATES}, "participation.rates: 30.0 "),
        ({"local": {"steps": 2, "lr": 0.1, "btach_size": 4}}, "local.btach_size: unknown key"),
        ({"methods": {"a": {"rouns": 3, "algorithm": "fedavg"}}}, "methods.a.rouns: unknown key"),
        ({"methods": EACH | {"c": {"algorithm": "fedua"}}}, "methods.c.algorithm.type: unknown"),
        ({"methods": EACH | {"c": {"algorithm": "mifa", "rounds": 0}}}, "methods.c.rounds: 0 "),
        ({"methods": {"a": {"local": {"lr": 0.3}}}}, "algorithm: missing; "),
        ({"methods": EACH | {"c": {"rounds": 2}}}, "methods.c.algorithm: missing; "),
        ({"grid": {"local.lr": [0.1]}, "rounds": 0}, "rounds: 0 "),
        (
            {"methods": EACH, "grid": {"participation.rates": [0.5, 2]}},
            "grid.participation.rates: 2.0 ",
        ),
        (
            {"methods": EACH, "participation": RATES, "grid": {"local.lr": [0.1]}},
            "participation.rates: 30.0 ",
        ),
    ],
)
def test_errors_name_the_part_of_the_file_that_they_are_in(changes, start, base, tmp_path):
    """No common algorithm, so that nothing is complete without a method."""
    plain = {key: value for key, value in base.items() if key != "algorithm"}
    with pytest.raises(ft.InvalidInputError) as error:
        Sweep.from_dict(plain | {"methods": EACH} | changes)
    assert str(error.value).startswith(start)


def test_an_empty_name_is_none(base):
    for seeds in ({}, {"seeds": [1]}):
        assert Sweep.from_dict(base | {"name": None} | seeds, "called").name == "called"


def test_seeds_are_whole_numbers_however_they_are_written(sweep):
    assert [run.path for run in sweep(seeds=[1.0, "2"]).runs] == ["small/seed-1", "small/seed-2"]
    assert sweep(seed=3.0, methods={"a": {}}).runs[0].path == "a/seed-3"


def test_a_method_is_blamed_for_a_conflict_with_what_all_share(base):
    """Either value may stand alone; the error names the one that all methods share."""
    shared = base | {"local": {"lr": 0.1, "steps": 2}}
    with pytest.raises(ft.InvalidInputError, match=r"^methods\.a\.local\."):
        Sweep.from_dict(shared | {"methods": {"a": {"local": {"epochs": 2}}, "b": {}}})


def test_a_swept_field_that_one_method_lacks_is_named_with_the_method(base):
    with pytest.raises(ft.InvalidInputError) as error:
        Sweep.from_dict(base | {"methods": EACH, "grid": {"algorithm.cutoff": [3]}})
    text = str(error.value)
    assert text.startswith("grid.algorithm.cutoff: unknown key; ")
    assert text.endswith("(in methods.a)")


@pytest.mark.parametrize(
    ("key", "meant"),
    [("seds", "seeds"), ("method", "methods"), ("gird", "grid"), ("lsit", "list"), ("rond", None)],
)
@pytest.mark.parametrize("alone", [True, False])
def test_misspelt_keys_of_a_sweep_are_recognised(key, meant, alone, base):
    plain = base | {key: [1]} | ({} if alone else {"methods": EACH})
    with pytest.raises(ft.InvalidInputError, match=f"^{key}: unknown key; ") as error:
        Sweep.from_dict(plain)
    assert meant is None or str(error.value).endswith(f"did you mean '{meant}'?")


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


def test_finished_runs_are_kept_and_the_rest_is_executed(sweep, results, tmp_path):
    found = sweep(seeds=[1, 2])
    whole = run(found, tmp_path / "whole")
    run(sweep(seeds=[1]), tmp_path / "part")
    done = tmp_path / "part" / "small" / "seed-1" / "summary.json"
    before = done.stat().st_mtime_ns
    folders = run(found, tmp_path / "part")
    assert done.stat().st_mtime_ns == before
    assert [results(folder) for folder in folders] == [results(folder) for folder in whole]


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


def test_a_sweep_with_a_failed_run_is_continued_and_extended(base, tmp_path):
    problem = {"type": "classification", "dataset": "digits", "partition": "iid", "clients": 5}
    plain = base | {"problem": problem}
    for clients in ([10, 2000], [10, 2000, 20]):
        grid = {"problem.clients": clients}
        frame = run_sweep(Sweep.from_dict(plain | {"grid": grid}), tmp_path, workers=1)
        status = dict(zip(frame["problem.clients"], frame["status"], strict=True))
        assert status == {n: "failed" if n == 2000 else "done" for n in clients}
