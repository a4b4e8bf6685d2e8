"""The results page: generated from the committed records, which match their planned runs."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from fedtide.papers import load, load_records, names, plan
from fedtide.papers.paper_spec import SCALES
from fedtide.papers.results_page import render_results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records():
    return load_records(ROOT / "results")


@pytest.fixture(scope="module")
def page(records):
    return render_results(records)


def test_committed_page_is_up_to_date(page):
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == page, "run: fedtide papers --write docs/results.md"


def test_the_readme_has_its_totals(page):
    (total,) = re.findall(r"^All papers: (.*?)\. We count", page, re.MULTILINE)
    count = {name: int(n) for n, name in re.findall(r"(\d+) ([a-z ]+?)(?: \(|,|$)", total)}
    with_data = sum(n for name, n in count.items() if name != "without data")
    said = (
        f"of {with_data} claims with data, {count['reproduced']} are reproduced and "
        f"{count['not reproduced']} are not"
    )
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


def test_only_records_of_planned_runs_are_counted(records, page):
    """The page counts them in the last cells of its rows: 5 of 5 / 1 of 1.

    The other records have the earlier settings of two groups of experiments, which it lists.
    """
    cells = re.findall(r"\| ((?:\d+ of \d+|–)(?: / (?:\d+ of \d+|–))?) \|$", page, re.MULTILINE)
    counted = sum(int(count) for cell in cells for count in re.findall(r"(\d+) of", cell))
    others = unmatched(records)
    assert counted == len(records) - len(others)
    assert f"{counted} of {len(records)} records are of planned runs" in page
    assert {key[0][:3] for key in others} <= {"001", "002"}
    for paper, scale in {key[:2] for key in others}:
        section = page.partition(f"\n## {paper}\n")[2].partition("\n## ")[0]
        listed = section.partition("Earlier runs at")[2]
        seeds = sum(map(int, re.findall(r"\| (\d+) \|$", listed, re.MULTILINE)))
        assert seeds == sum(key[:2] == (paper, scale) for key in others), paper


def unmatched(records):
    """Return the keys of the records without a planned run of the same settings."""
    runs = {run.key: run for name in names() for scale in SCALES for run in plan(load(name), scale)}
    return [r.key for r in records if r.key not in runs or not r.matches(runs[r.key])]


def test_page_without_records():
    text = render_results([])
    assert "0 reproduced, 0 not reproduced, 0 undecided, 0 partly tested" in text
    for name in names():
        assert f"## {name}" in text
        missing = load(name).no_data
        reason = f"No data here: {missing}." if missing else "Not run with the planned settings."
        assert reason in text.partition(f"## {name}\n")[2][:400]


def test_outcomes_in_the_tables_add_up_to_the_counts(page):
    """Each counted claim is in one of the lists, and none of the checks is."""
    (counts,) = re.findall(r"^All papers: (.*?)\.", page, re.MULTILINE)
    full = [int(number) for number in re.findall(r" \((\d+) at full scale\)", counts)]
    counts = re.sub(r" \(.*?\)", "", counts)
    count = {outcome: int(number) for number, outcome in re.findall(r"(\d+) ([a-z ]+)", counts)}
    claims = page.partition("\n## Claims\n")[2].partition("\n## Checks\n")[0]
    assert len(re.findall(r"^\| \[\d", claims, re.MULTILINE)) == sum(
        number for outcome, number in count.items() if outcome not in ("not tested", "without data")
    )
    assert len(re.findall("^    - ", claims, re.MULTILINE)) == count["not tested"]
    waiting = re.findall(r"^- \[.*No data here: .*\. (\d+) claims", claims, re.MULTILINE)
    assert sum(map(int, waiting)) == count["without data"]
    total = sum(claim.check is None for name in names() for claim in load(name).claims)
    assert sum(count.values()) == total
    findings = page.partition("\n## Findings\n")[2].partition("\n## ")[0]
    assert len(re.findall("^- Holds: ", findings, re.MULTILINE)) == count["reproduced"]
    failures = re.findall("^- Does not hold: .* Why: ", findings, re.MULTILINE)
    assert len(failures) == count["not reproduced"]
    assert len(re.findall(r", full scale\)\.(?: Why: .*)?$", findings, re.MULTILINE)) == sum(full)


def test_experiments_without_data_are_not_offered_as_runs(page):
    offered = page.partition("\n## Runs that would decide more\n")[2].partition("\n## ")[0]
    assert "| 001/cifar10 |" in offered
    for name in names():
        if load(name).no_data is not None:
            assert name not in offered


def test_claims_are_judged_as_others_once_the_data_are_there(records):
    """A record of 001/svhn: its claims wait for runs, not for data."""
    run = plan(load("001/svhn"), "laptop")[0]
    record = replace(
        records[0],
        paper=run.paper,
        scale=run.scale,
        case=run.case,
        method=run.method,
        seed=run.seed,
        settings=run.resolved,
        measures={"train": 50.0, "test": 50.0},
        curve={},
    )
    page = render_results([record])
    assert "No data here: SVHN." not in page
    assert "| 001/svhn | 8 |" in page
    assert "No data here: CIFAR-100. 7 claims wait for it." in page


def test_intervals_on_the_page_are_those_of_the_records(records, page):
    """Amplified SCAFFOLD against SCAFFOLD, 002/fashion-mnist, five seeds: t = 2.776."""
    runs = {
        (r.method, r.seed): r.measures["test"]
        for r in records
        if (r.paper, r.scale) == ("002/fashion-mnist", "paper")
    }
    d = [runs["amplified-scaffold", seed] - runs["scaffold", seed] for seed in range(1, 6)]
    mean, half = statistics.mean(d), 2.776 * statistics.stdev(d) / 5**0.5
    text = f"amplified-scaffold − scaffold = {mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"
    assert text in page


def test_decided_failure_at_full_scale_counts_although_other_runs_are_missing(records):
    """Laptop runs that confirm a claim do not hide full-scale runs that refute it."""
    statement = "Amplified SCAFFOLD has the best test accuracy"
    laptop = [r for r in records if (r.paper, r.scale) == ("002/cifar10", "laptop")]
    full = [
        replace(
            next(r for r in laptop if r.method == run.method),
            scale="paper",
            seed=run.seed,
            settings=run.resolved,
            measures={"train": 1.0, "test": accuracy + 0.01 * run.seed},
        )
        for run in plan(load("002/cifar10"), "paper")
        for accuracy in [{"amplified-scaffold": 10.0, "fedavg": 50.0}.get(run.method)]
        if accuracy is not None
    ]
    page = render_results([*laptop, *full])
    assert f"- Does not hold: {statement}" in page
    assert f"- Holds: {statement}" in render_results(laptop)


def test_the_round_from_which_a_claim_holds_is_that_of_the_curves(records, page):
    """002/cifar10 at full scale, from its records: Amplified SCAFFOLD against the other four.

    t = 4.303 for three seeds; the interval of every difference in training loss is below 0.
    """
    curves = {
        (r.method, r.seed): r.curve
        for r in records
        if (r.paper, r.scale) == ("002/cifar10", "paper")
    }
    rounds = curves["fedavg", 1]["round"]

    def holds(i):
        for other in ("fedavg", "fedprox", "scaffold", "amplified-fedavg"):
            ours, theirs = (
                [curves[method, seed]["train_loss"][i] for seed in (1, 2, 3)]
                for method in ("amplified-scaffold", other)
            )
            d = [a - b for a, b in zip(ours, theirs, strict=True)]
            if statistics.mean(d) + 4.303 * statistics.stdev(d) / 3**0.5 >= 0:
                return False
        return True

    since = next(t for i, t in enumerate(rounds) if all(map(holds, range(i, len(rounds)))))
    (line,) = re.findall(
        r"- Holds: Amplified SCAFFOLD has the least training loss .*002/cifar10.*", page
    )
    assert f"; from round {since:,} of 12,000 on (" in line


def test_of_a_claim_that_no_longer_holds_at_the_last_evaluation_no_round_is_named(records):
    """The measure is the same, but the last evaluation of one method is turned round."""
    paper = [r for r in records if (r.paper, r.scale) == ("002/cifar10", "paper")]
    turned = [
        replace(r, curve=r.curve | {"train_loss": [*r.curve["train_loss"][:-1], 9.0]})
        if r.method == "amplified-scaffold"
        else r
        for r in paper
    ]
    (line,) = re.findall(
        r"- Holds: Amplified SCAFFOLD has the least training loss .*002/cifar10.*",
        render_results(turned),
    )
    assert "from round" not in line
