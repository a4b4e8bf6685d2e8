"""What a sweep's file asks for: grids, lists, bases, and how they are refused."""

import itertools
from pathlib import Path

import polars as pl
import pytest
import yaml

import fedtide as ft
from fedtide.sweep import Sweep, run_sweep

EXAMPLES = Path(__file__).parents[2] / "examples"


def values(found, *fields):
    """Return what the experiments of a sweep hold at these dotted fields."""

    def value(experiment, field):
        for name in field.split("."):
            experiment = getattr(experiment, name)
        return experiment

    return [tuple(value(member.experiment, field) for field in fields) for member in found.runs]


def test_a_grid_is_every_combination_with_every_seed(sweep):
    rates, cutoffs, seeds = [0.1, 0.2], [5, None, 50], [1, 2]
    found = sweep(grid={"local.lr": rates, "algorithm.cutoff": cutoffs}, seeds=seeds)
    asked = [(lr, k, seed) for seed in seeds for lr, k in itertools.product(rates, cutoffs)]
    assert values(found, "local.lr", "algorithm.cutoff", "seed") == asked
    assert [tuple(member.fields.values()) for member in found.runs] == asked
    assert found.runs[0].path == "local.lr=0.1,algorithm.cutoff=5/seed-1"
    assert found.runs[1].path == "local.lr=0.1,algorithm.cutoff=none/seed-1"
    assert len({member.path for member in found.runs}) == len(asked)


def test_everything_else_is_as_the_file_says(sweep, base):
    member = sweep(grid={"local.lr": [0.2]}).runs[0]
    wanted = base | {"local": base["local"] | {"lr": 0.2}, "name": "local.lr=0.2"}
    assert member.experiment == ft.Experiment.from_dict(wanted)


def test_a_list_is_run_point_by_point_under_every_method(sweep):
    found = sweep(
        methods={"a": {}, "b": {"algorithm": "fedavg"}},
        list=[{"local.lr": 0.1, "local.steps": 7}, {"name": "slow", "local.lr": 0.01}],
    )
    assert [member.path for member in found.runs] == [
        "a/local.lr=0.1,local.steps=7/seed-0",
        "a/slow/seed-0",
        "b/local.lr=0.1,local.steps=7/seed-0",
        "b/slow/seed-0",
    ]
    assert values(found, "local.lr", "local.steps") == [(0.1, 7), (0.01, 2)] * 2


def test_whole_parts_are_varied_under_labels(sweep):
    processes = {"rare": {"type": "bernoulli", "rates": 0.1}, "all": "full"}
    found = sweep(grid={"participation": processes})
    assert [member.path for member in found.runs] == [
        "participation=rare/seed-0",
        "participation=all/seed-0",
    ]
    assert found.runs[1].experiment.participation == ft.participation.Full()
    assert found.runs[1].fields == {"participation": "all", "seed": 0}


def test_what_no_folder_can_be_called_gets_a_fingerprint_that_stays(sweep):
    many = [[0.1] * 5, [0.2] * 5, {"type": "correlated", "alpha": 0.1}]
    paths = [m.path for m in sweep(grid={"participation.rates": many[:2]}).runs]
    again = [m.path for m in sweep(grid={"participation.rates": many[1::-1]}).runs]
    assert len(set(paths)) == 2
    assert paths == again[::-1]
    assert all("/seed-" in path and "[" not in path for path in paths)


def test_numbers_that_yaml_takes_for_words_are_numbers(sweep):
    found = sweep(grid={"local.lr": ["1e-3", 0.1]})
    assert [member.path.split("/")[0] for member in found.runs] == [
        "local.lr=0.001",
        "local.lr=0.1",
    ]
    assert [member.fields["local.lr"] for member in found.runs] == [0.001, 0.1]


def test_a_base_holds_where_the_file_is_silent(base, tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base | {"methods": {"a": {}}}))
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({"base": "base.yaml", "name": "more", "local": {"lr": 0.2}}))
    found = Sweep.load(file)
    assert found.name == "more"
    assert values(found, "local.lr", "local.steps", "rounds") == [(0.2, 2, 3)]


def test_methods_and_seeds_replace_those_of_the_base(base, tmp_path):
    below = base | {"methods": {"a": {}}, "seeds": [1, 2]}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(below))
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({"base": "base.yaml", "methods": {"b": {}, "c": {}}}))
    paths = [member.path for member in Sweep.load(file).runs]
    assert paths == ["b/seed-1", "c/seed-1", "b/seed-2", "c/seed-2"]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_can_be_read(file):
    assert Sweep.load(file).runs


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"grid": {}}, "grid: not fields with their values"),
        ({"grid": [1]}, "grid: not fields with their values"),
        ({"grid": {"local.lr": 0.1}}, "grid.local.lr: 0.1 is no list of values"),
        ({"grid": {"local.lr": []}}, "grid.local.lr: [] is no list of values"),
        ({"grid": {"local.lr": [0.1, 0.1]}}, "grid.local.lr: a value comes twice"),
        ({"grid": {"local.lrr": [1]}}, "grid.local.lrr: unknown key; did you mean 'lr'?"),
        ({"grid": {"locale.lr": [1]}}, "grid.locale: unknown key; did you mean 'local'?"),
        ({"grid": {"algorithm.cutof": [1]}}, "grid.algorithm.cutof: unknown key; did you mean"),
        ({"grid": {"local.lr": [0.1, -1]}}, "grid.local.lr: -1.0 is not a positive"),
        ({"grid": {"algorithm": ["fedua"]}}, "grid.algorithm.type: unknown 'fedua'; did you"),
        ({"grid": {"local..lr": [1]}}, "grid.local..lr: not the dotted name"),
        ({"grid": {"seed": [1, 2]}}, "grid.seed: it cannot be varied here; use `seeds`"),
        ({"grid": {"name": ["a"]}}, "grid.name: it cannot be varied here"),
        ({"grid": {"algorithm": {"a/b": "fedavg"}}}, "grid.algorithm: 'a/b' cannot be part"),
        ({"list": []}, "list: not a list of fields"),
        ({"list": [{"name": "a"}]}, "list[0]: {'name': 'a'} gives no field a value"),
        ({"list": [{"local.lrr": 1}]}, "list.local.lrr: unknown key; did you mean 'lr'?"),
        ({"list": [{"local.lr": 1}, {"local.lr": 1}]}, "list: two entries are alike"),
        (
            {"list": [{"local.lr": 1}], "grid": {"local.lr": [1]}},
            "grid.local.lr: the list gives it, too",
        ),
        ({"strategy": "two-stag"}, "strategy.type: unknown 'two-stag'; did you mean 'two-stage'?"),
        ({"strategy": {"type": "two-stage", "lr": [0]}}, "strategy.lr: [0.0] are not positive"),
        (
            {"strategy": {"type": "two-stage", "lr_field": "local.lrr"}},
            "strategy.local.lrr: unknown key; did you mean 'lr'?",
        ),
        (
            {"strategy": {"type": "two-stage", "server_lr_field": "algorithm.sever_lr"}},
            "strategy.server_lr_field: no method has 'algorithm.sever_lr'; did you mean "
            "'algorithm.server_lr'?",
        ),
        (
            {"strategy": "two-stage", "grid": {"local.lr": [0.1]}},
            "grid.local.lr: the strategy varies it, too",
        ),
    ],
)
def test_bad_files(changes, sentence, sweep):
    with pytest.raises(ft.InvalidInputError) as error:
        sweep(**changes)
    assert str(error.value).startswith(sentence)


def test_a_failure_is_noted_and_the_others_go_on(sweep, results, tmp_path):
    found = sweep(grid={"local.lr": [0.05, 1e30]}, seeds=[1, 2])
    out = tmp_path / "out"
    frame = run_sweep(found, out, workers=1)
    assert frame["status"].to_list() == ["done", "failed"] * 2
    assert frame["error"][1].startswith("local.lr: an update in round 0 is not finite")
    assert frame["loss"].is_null().to_list() == [False, True, False, True]
    assert frame["local.lr"].to_list() == [0.05, 1e30] * 2
    assert frame["seed"].to_list() == [1, 1, 2, 2]
    assert frame.equals(pl.read_parquet(out / "results.parquet"))
    last = pl.read_parquet(out / found.runs[0].path / "metrics.parquet").row(-1, named=True)
    assert frame["loss"][0] == last["loss"]


def test_one_that_cannot_begin_is_a_failure_too(sweep, tmp_path):
    """FedAU's groups are only known not to fit once the clients are there."""
    found = sweep(grid={"algorithm.groups": [None, [0, 1]]})
    frame = run_sweep(found, tmp_path / "out", workers=1)
    assert frame["status"].to_list() == ["done", "failed"]
    assert frame["error"][1].startswith("algorithm.groups: 2 group ids for 5 clients")


def test_what_ended_is_not_run_again_and_a_sweep_can_grow(sweep, tmp_path):
    def files(found):
        there = [tmp_path / "out" / member.path / "experiment.yaml" for member in found.runs]
        return [file.stat().st_mtime_ns for file in there]

    small = sweep(grid={"local.lr": [0.05, 1e30]})
    run_sweep(small, tmp_path / "out", workers=1)
    before = files(small)
    grown = run_sweep(
        sweep(grid={"local.lr": [0.01, 0.05, 1e30]}, seeds=[0, 1]), tmp_path / "out", workers=1
    )
    assert files(small) == before
    assert grown["status"].to_list() == ["done", "done", "failed"] * 2


def test_an_unexpected_error_is_tried_again(sweep, tmp_path, monkeypatch):
    from fedtide.simulation.loop import Run

    original = Run.round

    def broken(run):
        if run.ended == 1:
            raise OSError("no such luck")
        original(run)

    found = sweep(seeds=[1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(Run, "round", broken)
        frame = run_sweep(found, tmp_path / "out", workers=1)
        assert frame["error"].to_list() == ["OSError: no such luck"] * 2
    assert set(run_sweep(found, tmp_path / "out", workers=1)["status"]) == {"done"}


def test_folders_that_hold_something_else(sweep, tmp_path):
    found = sweep(seeds=[1, 2])
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    with pytest.raises(
        ft.InvalidInputError, match=r"full is not empty and holds no sweep; choose another$"
    ):
        run_sweep(found, full)
    run_sweep(found, tmp_path / "out", workers=1)
    changed = sweep(["rounds=4"], seeds=[1, 2])
    with pytest.raises(
        ft.InvalidInputError, match=r"holds another experiment: rounds \(3 there, 4 here\)"
    ):
        run_sweep(changed, tmp_path / "out")
