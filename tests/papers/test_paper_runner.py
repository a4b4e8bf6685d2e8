"""Planning, running, recording and comparing a published experiment."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedtide import InvalidInputError
from fedtide.errors import Interrupted
from fedtide.papers import load, plan
from fedtide.papers.claim_judging import judge_claims
from fedtide.papers.paper_runner import run_paper
from fedtide.papers.paper_spec import parse_paper
from fedtide.papers.published_comparison import compare, format_measured
from fedtide.papers.record import (
    find_record,
    load_records,
    make_record,
    record_path,
    write_record,
)
from fedtide.papers.shared_runs import group_identical
from fedtide.papers.superseded import superseded
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
    return [(run.case, run.method, run.seed) for run in runs]


def test_plan_at_paper_scale(paper):
    assert keys(plan(paper)) == [
        ("plain", "fast", 1),
        ("plain", "slow", 1),
        ("plain", "fast", 2),
        ("plain", "slow", 2),
        ("long", "fast", 1),
        ("long", "fast", 2),
    ]


def test_plan_at_laptop_scale(paper):
    runs = plan(paper, "laptop")
    assert keys(runs) == [("plain", "fast", 1), ("plain", "slow", 1)]
    assert {run.resolved["rounds"] for run in runs} == {2}


def test_plan_of_chosen_seeds_and_methods(paper):
    assert keys(plan(paper, seeds=[7], methods=["slow"])) == [("plain", "slow", 7)]
    with pytest.raises(InvalidInputError, match=r"^methods: .*'fast'"):
        plan(paper, methods=["fats"])


def test_every_run_is_recorded(finished):
    """x halves its distance to 1/2 in each round: F after 4 rounds is 1/8 + (1/2)² 2⁻⁸ / 2."""
    folder, records = finished
    (fast, *_) = [r for r in records if r.method == "fast" and r.case == "plain"]
    assert fast.measures["loss"] == pytest.approx(1 / 8 + 0.25 / 2**8 / 2, rel=1e-6)
    assert fast.curve["round"] == [0, 1, 2, 3, 4]
    assert fast.settings["local"]["lr"] == 0.5
    assert load_records(folder) == sorted(records, key=lambda r: record_path(folder, r.key))


def test_recorded_runs_are_not_repeated(paper, finished, tmp_path):
    folder, records = finished
    assert run_paper(paper, plan(paper), tmp_path / "out", folder) == records
    assert not (tmp_path / "out").exists()


def test_record_matches_only_runs_with_its_settings(fast_run, finished):
    folder, _ = finished
    assert find_record(fast_run, folder) is not None
    assert find_record(change(fast_run, {"local": {"lr": 0.25}}), folder) is None
    execution = {"max_stack_bytes": 1000, "trainer": "stacked", "log": "used"}
    assert find_record(change(fast_run, execution), folder) is not None


def test_record_of_other_settings_is_not_counted_and_says_how_it_differs(paper, finished):
    _, records = finished
    shorter = replace(paper, experiment=dict(paper.experiment) | {"rounds": 3})
    rows = compare(shorter, records, "paper")
    assert sum(row.seeds for row in rows if row.case == "plain") == 0
    groups = superseded(shorter, records)
    assert {key: len(group) for key, group in groups.items()} == {
        ("paper", "`rounds` 4 (now 3)"): 4
    }
    fewer = replace(paper, seeds=[1])
    ((key, group),) = superseded(fewer, records).items()
    assert (key, len(group)) == (("paper", "no longer planned"), 3)


def test_divergence_is_recorded(paper, fast_run, tmp_path):
    wild = change(fast_run, {"local": {"lr": 1e200}})
    (record,) = run_paper(paper, [wild], tmp_path / "out", tmp_path / "records")
    assert record.measures == {"loss": None}
    assert record.stopped.startswith("local.lr: ")
    assert "inf after 1 round (clients 0, 1)" in record.stopped
    assert record.rounds == 1
    assert record.seconds >= 0


def test_divergence_in_the_first_round_is_recorded_with_its_trainer(paper, fast_run, tmp_path):
    wild = change(fast_run, {"local": {"lr": 1e200, "steps": 5}})
    (record,) = run_paper(paper, [wild], tmp_path / "out", tmp_path / "records")
    assert "in round 0" in record.stopped
    assert record.rounds == 0
    assert record.execution["trainer"] == "reference"


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


def test_comparison_of_published_and_measured_numbers(paper, finished):
    _, records = finished
    rows = compare(paper, records, "paper")
    assert [(row.case, row.method, row.seeds, row.planned) for row in rows] == [
        ("plain", "fast", 2, 2),
        ("plain", "slow", 2, 2),
        ("long", "fast", 2, 2),
    ]
    assert rows[0].cells["loss"].published == (0.13, 0.01)
    ((_, verdict),) = judge_claims(paper, rows, "paper")
    assert verdict.outcome == "undecided"
    assert "2 seeds of the 3 needed" in verdict.summary
    deterministic = replace(paper, deterministic=True)
    ((_, verdict),) = judge_claims(deterministic, rows, "paper")
    assert verdict.outcome == "reproduced"
    ((_, untested),) = judge_claims(paper, compare(paper, records, "laptop"), "laptop")
    assert untested.outcome == "not tested"


@pytest.mark.parametrize(("seconds", "planned", "needed"), [(30, 9, 5), (90, 9, 3), (30, 3, 3)])
def test_short_runs_need_more_seeds_if_they_are_planned(paper, finished, seconds, planned, needed):
    _, records = finished
    timed = [replace(record, seconds=float(seconds)) for record in records]
    longer = replace(paper, seeds=list(range(1, planned + 1)))
    ((_, verdict),) = judge_claims(longer, compare(longer, timed, "paper"), "paper")
    assert f"of the {needed} needed" in verdict.summary


def test_claim_about_a_case_that_the_laptop_leaves_out_is_partly_tested(paper, tmp_path):
    """The claim is about all cases; "long" has no method "slow", "plain" is run."""
    cases = {"plain": {}, "other": {"rounds": 5}}
    everywhere = replace(paper, cases=cases, claims=[replace(paper.claims[0], cases=None)])
    runs = plan(everywhere, "laptop", cases=["plain"])
    records = run_paper(everywhere, runs, tmp_path / "out", tmp_path / "records")
    ((_, verdict),) = judge_claims(everywhere, compare(everywhere, records, "laptop"), "laptop")
    assert verdict.outcome == "partly tested"


def test_printed_numbers_are_judged_at_full_scale_only(paper, finished):
    _, records = finished
    printed = replace(paper.claims[0], kind="printed", within=1.0, than=())
    claims = replace(paper, claims=[printed])
    ((_, full),) = judge_claims(claims, compare(claims, records, "paper"), "paper")
    ((_, laptop),) = judge_claims(claims, compare(claims, records, "laptop"), "laptop")
    assert (full.outcome, laptop.outcome) == ("undecided", "not tested")


def test_diverged_run_counts_as_the_paper_counts_it(paper, finished):
    """Without that it has no number, and no interval can be computed with the others."""
    _, records = finished
    lost = [
        replace(r, measures={"loss": None}) if (r.method, r.seed) == ("slow", 1) else r
        for r in records
    ]
    ((_, verdict),) = judge_claims(paper, compare(paper, lost, "paper"), "paper")
    assert "no number from slow in 1" in verdict.summary
    measures = {"loss": replace(paper.measures["loss"], diverged=9.0)}
    guessing = replace(paper, measures=measures)
    ((_, verdict),) = judge_claims(guessing, compare(guessing, lost, "paper"), "paper")
    assert "no number" not in verdict.summary


def test_measure_that_older_records_lack_is_not_a_failed_run(paper, finished):
    _, records = finished
    measures = dict(paper.measures) | {"new": replace(paper.measures["loss"], title="new")}
    later = replace(paper, measures=measures, claims=[replace(paper.claims[0], measure="new")])
    rows = compare(later, records, "paper")
    assert format_measured(rows[0].cells["new"], measures["new"]) == "not recorded"
    ((_, verdict),) = judge_claims(later, rows, "paper")
    assert verdict.outcome == "not tested"


def test_runs_with_the_same_settings_are_run_once(paper, tmp_path):
    """The case "same" is spelled differently, but is the case "plain"."""
    same = {"local": {"momentum": 0.0}, "trainer": "stacked"}
    twice = replace(paper, cases={"plain": {}, "same": same})
    ran = []
    records = run_paper(
        twice,
        plan(twice, seeds=[1]),
        tmp_path / "out",
        tmp_path / "records",
        progress=lambda progress: ran.append(len(progress.runs)),
    )
    assert set(ran) == {2}  # of four planned runs
    by_case = {case: [r for r in records if r.case == case] for case in twice.cases}
    for one, other in zip(by_case["plain"], by_case["same"], strict=True):
        assert one.shared_from is None
        assert other.shared_from == "/".join(map(str, one.key))
        assert one.measures == other.measures
        assert other.matches(next(r for r in plan(twice) if r.key == other.key))


@pytest.fixture
def with_same(paper):
    """Return the paper with another case that has the settings of "plain"."""
    return replace(paper, cases={"plain": {}, "same": {"local": {"momentum": 0.0}}})


def run_counted(paper, folder):
    """Return the records of a paper's runs of seed 1 by case and method, and how many were run."""
    ran = [0]
    records = run_paper(
        paper,
        plan(paper, seeds=[1]),
        folder / "out",
        folder / "records",
        progress=lambda progress: ran.append(len(progress.runs)),
    )
    return {(record.case, record.method): record for record in records}, max(ran)


def test_recorded_run_with_the_same_settings_is_not_repeated(paper, with_same, tmp_path):
    one_case = replace(with_same, cases={"plain": {}})
    assert run_counted(one_case, tmp_path)[1] == 2
    records, ran = run_counted(with_same, tmp_path)
    assert ran == 0
    for method in paper.methods:
        plain, same = records["plain", method], records["same", method]
        assert same.shared_from == "/".join(map(str, plain.key))
        assert (same.measures, same.curve, same.execution, same.seconds) == (
            plain.measures,
            plain.curve,
            plain.execution,
            plain.seconds,
        )


@pytest.mark.parametrize("take", ["last", "best"])
def test_record_is_shared_if_it_holds_the_measures_and_replaced_otherwise(
    paper, with_same, tmp_path, take
):
    """The best loss, unlike the last one, cannot be read off an earlier record."""
    measures = {"measured": replace(paper.measures["loss"], title="measured", take=take)}
    run_counted(replace(with_same, cases={"plain": {}}), tmp_path)
    records, ran = run_counted(replace(with_same, measures=measures), tmp_path)
    assert ran == (0 if take == "last" else 2)
    for method in paper.methods:
        plain, same = records["plain", method], records["same", method]
        best = same.measures["measured"]
        assert best == pytest.approx(min(loss for loss in same.curve["loss"]), rel=1e-4)
        shared = [(record.case, record.shared_from is not None) for record in (plain, same)]
        assert shared == [("plain", take == "best"), ("same", take == "last")]


def test_record_that_another_process_has_written_meanwhile_is_kept(with_same, tmp_path):
    """Otherwise each of the two records could say that it was shared from the other."""
    records, planned = tmp_path / "records", plan(with_same, seeds=[1])
    meanwhile = []

    def run_same(progress):
        if not meanwhile:
            meanwhile.append(None)
            same = [run for run in planned if run.case == "same"]
            meanwhile.extend(run_paper(with_same, same, tmp_path / "other", records))

    found = run_paper(with_same, planned, tmp_path / "out", records, progress=run_same)
    assert [record for record in found if record.case == "same"] == meanwhile[1:]
    assert all(record.shared_from is None for record in meanwhile[1:])
    assert all(record.shared_from is not None for record in found if record.case == "plain")


def test_run_of_another_experiment_gets_its_record_too():
    """Table 1, table D.1.1 and table D.3.1 of paper 001 share runs, each with its own measures."""
    (run,) = plan(load("001/cifar10"), "laptop", [1], ["fedau-50"], ["bernoulli"])
    ((first, *others),) = group_identical([run], [run])
    assert first is run
    shared = {(other.paper, other.scale, other.case) for other in others}
    assert ("001/client-spread", "laptop", "main") in shared
    assert ("001/correlation", "laptop", "alpha-0.1") in shared
    assert ("001/cutoffs", "laptop", "floor-0.02") in shared
    assert all(other.seed == 1 for other in others)


def test_record_says_what_decides_the_last_bits(finished):
    _, records = finished
    assert {r.execution["trainer"] for r in records} == {"reference"}
    assert all(r.execution["threads"] >= 1 for r in records)
    assert all(r.execution["instructions"] for r in records)


def test_record_of_a_run_that_was_continued_elsewhere(paper, fast_run):
    here = {"trainer": "stacked", "threads": 1, "machine": "two, 2 cores", "device": "a GPU"}
    elsewhere = {**here, "machine": "one, 16 cores", "device": "another GPU"}
    frame = pl.DataFrame({"round": [10], "loss": [0.5]})

    def record(*earlier):
        execution = here | ({"earlier": [*earlier]} if earlier else {})
        return make_record(fast_run, paper.measures, frame, 1.0, execution=execution)

    assert record().computed_on == "two, 2 cores, a GPU"
    assert record({**here, "trainer": "reference"}).computed_on == record().computed_on
    moved = record(elsewhere)
    assert moved.computed_on == "one, 16 cores, another GPU, then two, 2 cores, a GPU"
    assert (moved.machine, moved.execution["device"]) == ("two, 2 cores", "a GPU")


def test_records_are_small_and_store_infinity_as_none(paper, fast_run, tmp_path):
    frame = pl.DataFrame({"round": range(1000), "loss": np.r_[np.inf, np.linspace(1, 0.1, 999)]})
    record = make_record(fast_run, paper.measures, frame, 1.23)
    file = write_record(record, tmp_path)
    assert file.stat().st_size < 4000
    assert load_records(tmp_path) == [record]
    assert 10 < len(record.curve["round"]) <= 30
    assert record.curve["loss"][0] is None
    assert record.curve["round"][-1] == 999


def test_invalid_record_file_is_named(tmp_path):
    (tmp_path / "004").mkdir()
    (tmp_path / "004/x.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(InvalidInputError, match=r"^records: .*x\.json .*;"):
        load_records(tmp_path)


@pytest.mark.parametrize(
    ("changes", "prefix"),
    [
        ({"colour": 1}, "999/test: unknown key 'colour';"),
        ({"published": {"plane": {}}}, "999/test.published: unknown 'plane';"),
        ({"published": {"plain": {"fats": {}}}}, "999/test.published.plain: unknown 'fats';"),
        (
            {"claims": [{"statement": "", "measure": "lost", "method": "fast", "than": ["slow"]}]},
            "999/test.claims.0: unknown 'lost';",
        ),
    ],
)
def test_unknown_names_in_a_paper_file(changes, prefix):
    with pytest.raises(InvalidInputError) as error:
        parse_paper("999/test", PLAIN | changes)
    assert str(error.value).startswith(prefix)
