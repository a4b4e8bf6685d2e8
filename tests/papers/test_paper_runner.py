"""Planning, running, recording and comparing a published experiment."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedtide import InvalidInputError
from fedtide.errors import Interrupted
from fedtide.papers import plan
from fedtide.papers.judging import judge_claims
from fedtide.papers.paper_runner import run_paper
from fedtide.papers.paper_spec import parse_paper
from fedtide.papers.record import load_records, make_record, match_records, records_of
from fedtide.papers.rows import compare, find_number
from fedtide.simulation.experiment_files import merge

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
        {"statement": "", "measure": "loss", "method": "fast", "than": ["slow"], "cases": ["plain"]}
    ],
    "laptop": {
        "description": "shorter",
        "seeds": [1],
        "cases": ["plain"],
        "experiment": {"rounds": 2},
    },
}


@pytest.fixture(scope="module")
def paper():
    return parse_paper("999/test", PLAIN)


@pytest.fixture(scope="module")
def finished(paper, tmp_path_factory):
    """Return the folder of the records after all runs of the paper, and the records."""
    folder = tmp_path_factory.mktemp("finished")
    return folder / "records", run_paper(paper, plan(paper), folder / "out", folder / "records")


@pytest.fixture
def fast_run(paper):
    """Return one planned run."""
    (run,) = plan(paper, seeds=[1], methods=["fast"], cases=["plain"])
    return run


def change(run, changes):
    return replace(run, settings=merge(dict(run.settings), changes))


def without_time(records):
    """Return the records without what depends on the machine and the number of workers."""
    return [replace(record, seconds=0.0, execution={}) for record in records]


def keys(runs):
    return [(run.case, run.method, run.key.seed) for run in runs]


def test_plan_at_paper_scale(paper):
    assert keys(plan(paper)) == [
        ("plain", "fast", 1),
        ("plain", "slow", 1),
        ("plain", "fast", 2),
        ("plain", "slow", 2),
        ("long", "fast", 1),
        ("long", "fast", 2),
    ]


def test_recorded_runs_are_not_repeated(paper, finished, tmp_path):
    folder, records = finished
    assert run_paper(paper, plan(paper), tmp_path / "out", folder) == records
    assert not (tmp_path / "out").exists()


def test_divergence_is_recorded(paper, fast_run, tmp_path):
    wild = change(fast_run, {"local": {"lr": 1e200}})
    (record,) = run_paper(paper, [wild], tmp_path / "out", tmp_path / "records")
    assert record.measures == {"loss": None}
    assert record.stopped.startswith("local.lr: ")
    assert "inf after 1 round (clients 0, 1)" in record.stopped
    assert record.rounds == 1
    assert record.seconds >= 0


def test_interrupted_experiment_resumes(paper, finished, tmp_path):
    """The experiment is interrupted during its second of six runs."""

    def interrupt(progress):
        if sum(run.ended for run in progress.runs.values()) >= 6:
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        run_paper(paper, plan(paper), tmp_path / "out", tmp_path / "part", progress=interrupt)
    assert len(load_records(tmp_path / "part")) == 1
    records = run_paper(paper, plan(paper), tmp_path / "out", tmp_path / "part")
    assert without_time(records) == without_time(finished[1])


@pytest.mark.process
def test_two_workers_give_the_same_records(paper, finished, tmp_path):
    records = run_paper(paper, plan(paper), tmp_path / "out", tmp_path / "records", workers=2)
    assert without_time(records) == without_time(finished[1])


def test_failure_names_the_run(paper, fast_run, tmp_path):
    wrong = change(fast_run, {"selection": {"type": "uniform-of", "size": 9}})
    with pytest.raises(InvalidInputError, match=r"^plain/fast/seed-1\..*9"):
        run_paper(paper, [wrong], tmp_path / "out", tmp_path / "records")


def test_every_run_is_recorded(finished):
    """x halves its distance to 1/2 in each round: F after 4 rounds is 1/8 + (1/2)² 2⁻⁸ / 2."""
    folder, records = finished
    (fast, *_) = [r for r in records if r.method == "fast" and r.case == "plain"]
    assert fast.measures["loss"] == pytest.approx(1 / 8 + 0.25 / 2**8 / 2, rel=1e-6)
    assert fast.curve["round"] == [0, 1, 2, 3, 4]
    assert fast.settings["local"]["lr"] == 0.5
    assert [file.name for file in folder.glob("*.parquet")] == ["999.parquet"]
    assert load_records(folder) == sorted(records, key=lambda r: r.key)


def test_record_matches_only_runs_with_its_settings(fast_run, finished):
    records = finished[1]
    assert match_records([fast_run], records)
    assert not match_records([change(fast_run, {"local": {"lr": 0.25}})], records)
    execution = {"max_stack_bytes": 1000, "trainer": "stacked", "log": "used"}
    assert match_records([change(fast_run, execution)], records)


def outcome(paper, records, scale="paper"):
    """Return the verdict on the only claim of a paper."""
    (verdict,) = judge_claims(paper, compare(paper, records, scale), scale)
    return verdict


def test_comparison_of_published_and_measured_numbers(paper, finished):
    _, records = finished
    rows = compare(paper, records, "paper")
    assert [(row.case, row.method, len(row.records), row.planned) for row in rows] == [
        ("plain", "fast", 2, 2),
        ("plain", "slow", 2, 2),
        ("long", "fast", 2, 2),
    ]
    assert find_number(paper.published, ("plain", "fast"), "loss") == (0.13, 0.01)
    assert outcome(paper, records).outcome == "undecided"
    assert "2 seeds of the 3 needed" in outcome(paper, records).summary
    assert outcome(replace(paper, deterministic=True), records).outcome == "reproduced"
    assert outcome(paper, records, "laptop").outcome == "not tested"


def test_diverged_run_counts_as_the_paper_counts_it(paper, finished):
    """Without that it has no number, and no interval can be computed with the others."""
    lost = [
        replace(r, measures={"loss": None}) if (r.method, r.seed) == ("slow", 1) else r
        for r in finished[1]
    ]
    assert "no number from slow in 1" in outcome(paper, lost).summary
    guessing = {"loss": replace(paper.measures["loss"], diverged=9.0)}
    assert "no number" not in outcome(replace(paper, measures=guessing), lost).summary


def test_records_are_small_and_store_infinity_as_none(paper, fast_run, tmp_path):
    frame = pl.DataFrame({"round": range(1000), "loss": np.r_[np.inf, np.linspace(1, 0.1, 999)]})
    record = make_record(fast_run, paper.measures, frame, 1.23)
    records_of(tmp_path, "999/test").add([record])
    assert load_records(tmp_path, "999/test") == [record]
    assert 10 < len(record.curve["round"]) <= 30
    assert record.curve["loss"][0] is None
    assert record.curve["round"][-1] == 999
