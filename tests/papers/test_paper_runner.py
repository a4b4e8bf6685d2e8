"""Running what is planned: recorded once, resumed, and judged by what is on disk."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedtide import InvalidInputError
from fedtide.papers import plan
from fedtide.papers.paper_runner import recorded, run_all
from fedtide.papers.paper_spec import paper_of
from fedtide.papers.published_comparison import compare, verdicts
from fedtide.papers.record import load_records, record_file, record_of, write_record
from fedtide.simulation.interruption import Interrupted
from fedtide.sweep.grid import merged

PLAIN = {
    "title": "two clients",
    "reference": "none",
    "minutes": {"paper": 1, "laptop": 1},
    "seeds": [1, 2],
    "experiment": {
        "problem": {"type": "quadratic", "matrices": [[[1.0]], [[1.0]]], "centers": [[0.0], [1.0]]},
        "participation": {"type": "full"},
        "local": {"steps": 1, "lr": 0.5},
        "rounds": 4,
        "dtype": "float64",
        "trainer": "reference",
        "evaluation": {"every": 1},
    },
    "cases": {"plain": {}, "long": {"rounds": 6, "methods": {"slow": None}}},
    "methods": {
        "fast": {"algorithm": {"type": "fedavg"}},
        "slow": {"algorithm": {"type": "fedavg", "server_lr": 0.5}},
    },
    "measures": {"loss": {"metric": "loss"}},
    "published": {"plain": {"fast": {"loss": [0.13, 0.01]}}},
    "claims": [
        {"says": "", "measure": "loss", "method": "fast", "than": ["slow"], "cases": ["plain"]}
    ],
    "laptop": {"says": "shorter", "seeds": [1], "cases": ["plain"], "experiment": {"rounds": 2}},
}


@pytest.fixture
def paper():
    return paper_of("999/test", PLAIN)


def keys(runs):
    return [(run.case, run.method, run.seed) for run in runs]


def test_the_plan_at_full_scale(paper):
    assert keys(plan(paper)) == [
        ("plain", "fast", 1),
        ("plain", "slow", 1),
        ("plain", "fast", 2),
        ("plain", "slow", 2),
        ("long", "fast", 1),
        ("long", "fast", 2),
    ]


def test_the_plan_on_a_laptop(paper):
    runs = plan(paper, "laptop")
    assert keys(runs) == [("plain", "fast", 1), ("plain", "slow", 1)]
    assert {run.resolved["rounds"] for run in runs} == {2}


def test_parts_of_a_plan(paper):
    assert keys(plan(paper, seeds=[7], methods=["slow"])) == [("plain", "slow", 7)]
    with pytest.raises(InvalidInputError, match=r"^methods: unknown 'fats'; did you mean 'fast'\?"):
        plan(paper, methods=["fats"])


def test_running_records_every_run_and_no_run_twice(paper, tmp_path):
    """x halves its distance to 1/2 in each round: F after 4 rounds is 1/8 + (1/2)² 2⁻⁸ / 2."""
    records = run_all(paper, plan(paper), tmp_path / "out", tmp_path / "records")
    (fast, *_) = [r for r in records if r.method == "fast" and r.case == "plain"]
    assert fast.measures["loss"] == pytest.approx(1 / 8 + 0.25 / 2**8 / 2, rel=1e-6)
    assert fast.curve["round"] == [0, 1, 2, 3, 4]
    assert fast.settings["local"]["lr"] == 0.5
    assert load_records(tmp_path / "records") == sorted(
        records, key=lambda r: record_file(tmp_path, r.key)
    )
    changed = list((tmp_path / "out").rglob("summary.json"))
    for file in changed:
        file.unlink()
    again = run_all(paper, plan(paper), tmp_path / "out", tmp_path / "records")
    assert again == records
    assert not list((tmp_path / "out").rglob("summary.json"))  # nothing was run again


def test_a_record_of_other_settings_does_not_count(paper, tmp_path):
    runs = plan(paper, seeds=[1], methods=["fast"], cases=["plain"])
    run_all(paper, runs, tmp_path / "out", tmp_path / "records")
    assert recorded(runs[0], tmp_path / "records") is not None
    other = replace(runs[0], settings=merged(dict(runs[0].settings), {"local": {"lr": 0.25}}))
    assert recorded(other, tmp_path / "records") is None
    how = {"max_stack_bytes": 1000, "trainer": "stacked", "log": "used"}
    same = replace(runs[0], settings=merged(dict(runs[0].settings), how))
    assert recorded(same, tmp_path / "records") is not None


def test_what_diverges_is_recorded_as_such(paper, tmp_path):
    (run,) = plan(paper, seeds=[1], methods=["fast"], cases=["plain"])
    wild = replace(run, settings=merged(dict(run.settings), {"local": {"lr": 1e200}}))
    (record,) = run_all(paper, [wild], tmp_path / "out", tmp_path / "records")
    assert record.measures == {"loss": None}
    assert record.stopped == "local.lr: the loss is inf after 1 rounds (clients 0, 1)"


def test_an_interrupted_experiment_goes_on_where_it_was(paper, tmp_path):
    """6 runs; it ends while the second one runs, whose record is not there then."""
    whole = run_all(paper, plan(paper), tmp_path / "a", tmp_path / "whole")

    def interrupt(board):
        if board.ended >= 6:
            raise Interrupted("asked to end")

    with pytest.raises(Interrupted):
        run_all(paper, plan(paper), tmp_path / "b", tmp_path / "part", progress=interrupt)
    assert len(load_records(tmp_path / "part")) == 1
    rest = run_all(paper, plan(paper), tmp_path / "b", tmp_path / "part")
    assert [replace(r, seconds=0.0) for r in rest] == [replace(r, seconds=0.0) for r in whole]


def test_two_at_a_time_are_as_one_by_one(paper, tmp_path):
    one = run_all(paper, plan(paper), tmp_path / "a", tmp_path / "one")
    two = run_all(paper, plan(paper), tmp_path / "b", tmp_path / "two", workers=2)
    assert [replace(r, seconds=0.0) for r in two] == [replace(r, seconds=0.0) for r in one]


def test_what_cannot_be_run_is_said(paper, tmp_path):
    (run,) = plan(paper, seeds=[1], methods=["fast"], cases=["plain"])
    wrong = replace(
        run, settings=merged(dict(run.settings), {"selection": {"type": "uniform-of", "size": 9}})
    )
    with pytest.raises(InvalidInputError, match=r"^plain/fast/seed-1\..*9"):
        run_all(paper, [wrong], tmp_path / "out", tmp_path / "records")


def test_published_against_measured(paper, tmp_path):
    records = run_all(paper, plan(paper), tmp_path / "out", tmp_path / "records")
    rows = compare(paper, records, "paper")
    assert [(row.case, row.method, row.seeds, row.planned) for row in rows] == [
        ("plain", "fast", 2, 2),
        ("plain", "slow", 2, 2),
        ("long", "fast", 2, 2),
    ]
    assert rows[0].cells["loss"].published == (0.13, 0.01)
    ((_, verdict),) = verdicts(paper, rows)
    assert verdict.word == "reproduced"
    ((_, untested),) = verdicts(paper, compare(paper, records, "laptop"))
    assert untested.word == "not tested"


def test_records_are_small_and_survive_what_json_cannot_say(paper, tmp_path):
    (run,) = plan(paper, seeds=[1], methods=["fast"], cases=["plain"])
    frame = pl.DataFrame({"round": range(1000), "loss": np.r_[np.inf, np.linspace(1, 0.1, 999)]})
    record = record_of(run, paper.measures, frame, 1.23)
    file = write_record(record, tmp_path)
    assert file.stat().st_size < 4000
    assert load_records(tmp_path) == [record]
    assert 10 < len(record.curve["round"]) <= 30
    assert record.curve["loss"][0] is None
    assert record.curve["round"][-1] == 999


def test_a_file_that_is_no_record_is_named(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(InvalidInputError, match=r"^records: .*x\.json is no record of a run"):
        load_records(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"colour": 1}, "999/test: unknown key 'colour'"),
        ({"published": {"plane": {}}}, "999/test.published: unknown 'plane'; did you mean 'plain'"),
        ({"published": {"plain": {"fats": {}}}}, "999/test.published.plain: unknown 'fats'"),
        (
            {"claims": [{"says": "", "measure": "lost", "method": "fast", "than": ["slow"]}]},
            "999/test.claims.0: unknown 'lost'; did you mean 'loss'",
        ),
    ],
)
def test_files_that_name_what_is_not_there(changes, sentence):
    with pytest.raises(InvalidInputError) as error:
        paper_of("999/test", PLAIN | changes)
    assert str(error.value).startswith(sentence)
