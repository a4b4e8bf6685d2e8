"""Grids, lists and bases of a sweep file, and sweeps with failing runs."""

import itertools

import numpy as np
import polars as pl
import pytest

import fedtide as ft
import fedtide.examples
from fedtide.locking import LOCK_FILE, lock_folder
from fedtide.sweep import Sweep, run_sweep
from fedtide.sweep.grid import Configuration, combine_points
from fedtide.sweep.result_table import read_results


def field_values(found, *fields):
    """Return the values of dotted fields in every experiment of a sweep."""

    def value(experiment, field):
        for name in field.split("."):
            experiment = getattr(experiment, name)
        return experiment

    return [tuple(value(member.experiment, field) for field in fields) for member in found.runs]


def test_a_grid_is_every_combination_with_every_seed(sweep):
    rates, cutoffs, seeds = [0.1, 0.2], [5, None, 50], [1, 2]
    found = sweep(grid={"local.lr": rates, "algorithm.cutoff": cutoffs}, seeds=seeds)
    asked = [(lr, k, seed) for seed in seeds for lr, k in itertools.product(rates, cutoffs)]
    assert field_values(found, "local.lr", "algorithm.cutoff", "seed") == asked
    assert [tuple(member.fields.values()) for member in found.runs] == asked
    assert found.runs[0].path == "local.lr=0.1,algorithm.cutoff=5/seed-1"
    assert found.runs[1].path == "local.lr=0.1,algorithm.cutoff=none/seed-1"
    assert len({member.path for member in found.runs}) == len(asked)


def test_every_list_entry_is_run_under_every_method(sweep):
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
    assert field_values(found, "local.lr", "local.steps") == [(0.1, 7), (0.01, 2)] * 2


def test_a_field_is_set_after_what_it_is_part_of(sweep):
    """Whatever the order in the file: YAML's mappings have none."""
    grid = {"algorithm.server_lr": [1.5, 3.0], "algorithm": ["fedau", "fedavg"]}
    listed = [{"local.lr": 0.25, "local": {"steps": 7, "lr": 0.5}}]
    runs = [run.experiment for run in sweep(grid=grid, list=listed).runs]
    found = {(type(run.algorithm).__name__, run.algorithm.server_lr) for run in runs}
    assert found == set(itertools.product(["FedAU", "FedAvg"], [1.5, 3.0]))
    assert {(run.local.lr, run.local.steps) for run in runs} == {(0.25, 7)}


def test_values_and_seeds_may_be_ranges_and_arrays(base):
    arrays = {"local.lr": np.logspace(-2, -1, 2), "local.steps": range(1, 3)}
    lists = {"local.lr": [0.01, 0.1], "local.steps": [1, 2]}
    found = Sweep.from_dict(base | {"grid": arrays, "seeds": range(2)})
    assert found == Sweep.from_dict(base | {"grid": lists, "seeds": [0, 1]})
    assert found == Sweep.from_dict(base | {"grid": arrays, "seeds": np.arange(2)})


def test_folders_are_named_by_labels_numbers_or_a_stable_hash(sweep):
    def names(field, values):
        return [run.path.removesuffix("/seed-0") for run in sweep(grid={field: values}).runs]

    processes = {"rare": {"type": "bernoulli", "rates": 0.1}, "all": "full"}
    assert names("participation", processes) == ["participation=rare", "participation=all"]
    assert names("local.lr", ["1e-3", 0.1]) == ["local.lr=0.001", "local.lr=0.1"]
    lists = [[0.1] * 5, [0.2] * 5]
    hashed = names("participation.rates", lists)
    assert len({*hashed}) == 2
    assert hashed == names("participation.rates", lists[::-1])[::-1]


def test_many_fields_give_folder_names_that_file_systems_allow():
    """The configurations differ in the last field."""
    fields = [f"algorithm.field_{'ä' * k}" for k in range(10)]
    grid = {field: [0.1234567890123456] for field in fields} | {"local.lr": [0.1, 0.2, 0.3]}
    labels = [Configuration("", {}, one, {}).label for one in combine_points(grid, None)]
    assert len(set(labels)) == 3
    assert max(len(label.encode()) for label in labels) == 200


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"grid": [1]}, "grid", "local.lr: [0.1, 0.3]"),
        ({"grid": {"local.lr": 0.1}}, "grid.local.lr", "[0.1, 0.3]"),
        ({"grid": {"local.lr": [0.1, 0.1]}}, "grid.local.lr", "twice"),
        ({"grid": {"seed": [1, 2]}}, "grid.seed", "`seeds`"),
        ({"grid": {"algorithm": {"a/b": "fedavg"}}}, "grid.algorithm", "'a/b'"),
        ({"list": [{"name": "a"}]}, "list[0]", "{local.lr: 0.1}"),
        ({"list": [{"local.lr": 1}], "grid": {"local.lr": [1]}}, "grid.local.lr", "list"),
        ({"strategy": "two-stag"}, "strategy.type", "'two-stage'"),
        ({"strategy": {"type": "two-stage", "lr": [0]}}, "strategy.lr", "positive"),
        (
            {"strategy": {"type": "two-stage", "server_lr_field": "algorithm.sever_lr"}},
            "strategy.server_lr_field",
            "'algorithm.server_lr'",
        ),
        ({"strategy": "two-stage", "grid": {"local.lr": [0.1]}}, "grid.local.lr", "strategy"),
    ],
)
def test_a_bad_grid_list_or_strategy_is_refused(changes, field, word, sweep):
    with pytest.raises(ft.InvalidInputError) as error:
        sweep(**changes)
    assert str(error.value).startswith(f"{field}: ")
    assert word in str(error.value)


def test_a_failure_is_recorded_and_the_other_runs_finish(sweep, results, tmp_path):
    found = sweep(grid={"local.lr": [0.05, 1e30]}, seeds=[1, 2])
    out = tmp_path / "out"
    frame = run_sweep(found, out, workers=1)
    assert frame["status"].to_list() == ["done", "failed"] * 2
    assert frame["error"][1].startswith("local.lr: ")
    assert frame["loss"].is_null().to_list() == [False, True, False, True]
    assert frame["local.lr"].to_list() == [0.05, 1e30] * 2
    assert frame["seed"].to_list() == [1, 1, 2, 2]
    assert frame.equals(pl.read_parquet(out / "results.parquet"))
    last = pl.read_parquet(out / found.runs[0].path / "metrics.parquet").row(-1, named=True)
    assert frame["loss"][0] == last["loss"]


def test_a_run_that_cannot_start_is_recorded_as_failed(sweep, tmp_path):
    """The groups of FedAU are checked against the clients only when a run is prepared."""
    found = sweep(grid={"algorithm.groups": [None, [0, 1]]})
    frame = run_sweep(found, tmp_path / "out", workers=1)
    assert frame["status"].to_list() == ["done", "failed"]
    assert frame["error"][1].startswith("algorithm.groups: ")


def test_ended_runs_are_not_repeated_when_a_sweep_grows(sweep, tmp_path):
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


def test_a_run_with_an_unexpected_error_is_retried_by_the_next_call(sweep, tmp_path, monkeypatch):
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


def test_a_sweep_goes_on_for_more_rounds(sweep, results, tmp_path):
    shorter, longer = (
        sweep([f"rounds={rounds}", "evaluation.every=3"], seeds=[1, 2]) for rounds in (3, 6)
    )
    whole = run_sweep(longer, tmp_path / "whole", workers=1)
    run_sweep(shorter, tmp_path / "out", workers=1)
    before = read_results(longer.runs, tmp_path / "out")
    assert before["status"].to_list() == ["unfinished"] * 2
    grown = run_sweep(longer, tmp_path / "out", workers=1)
    timed = ("folder", "rounds_per_second")
    assert grown.drop(timed).equals(whole.drop(timed))
    for run in longer.runs:
        assert results(tmp_path / "out" / run.path) == results(tmp_path / "whole" / run.path)


def test_a_folder_has_one_sweep_at_a_time(sweep, tmp_path):
    """A second one would report the runs of the first as failed, and replace its results."""
    out = tmp_path / "out"
    with lock_folder(out, "out", "wait"):  # is empty but for this
        with pytest.raises(ft.InvalidInputError, match=r"^out: .*out is in use by another run; "):
            run_sweep(sweep(seeds=[1, 2]), out, workers=1)
        assert [path.name for path in out.iterdir()] == [LOCK_FILE]
    assert set(run_sweep(sweep(seeds=[1, 2]), out, workers=1)["status"]) == {"done"}
    before = (out / "results.parquet").read_bytes()
    with lock_folder(out, "out", "wait"), pytest.raises(ft.InvalidInputError, match="is in use"):
        run_sweep(sweep(seeds=[1, 2, 3]), out, workers=1)
    assert (out / "results.parquet").read_bytes() == before


def test_results_show_the_value_in_force_of_every_field_that_the_list_varies(sweep, tmp_path):
    found = sweep(
        list=[
            {"name": "slow", "local.lr": 0.01},
            {"name": "long", "local.lr": 0.01, "local.steps": 7},
            {"name": "other", "algorithm.server_lr": 3.0},
        ],
        seeds=[1, 2],
    )
    table = read_results(found.runs, tmp_path)
    wanted = ["run", "name", "local.lr", "local.steps", "algorithm.server_lr", "seed", "status"]
    assert table.columns[: len(wanted)] == wanted
    base = found.runs[-1].experiment.local
    rows = table.filter(pl.col("seed") == 1).select(wanted[1:-2]).rows()
    assert rows == [
        ("slow", 0.01, base.steps, 2.0),
        ("long", 0.01, 7, 2.0),
        ("other", base.lr, base.steps, 3.0),
    ]
