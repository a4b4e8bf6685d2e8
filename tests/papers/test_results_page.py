"""The results page: generated from the committed records, which match their planned runs."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from fedtide.papers import load, load_records, names, plan
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


def test_page_without_records():
    text = render_results([])
    assert "0 reproduced, 0 not reproduced, 0 undecided, 0 partly tested" in text
    for name in names():
        assert f"## {name}" in text
        missing = load(name).no_data
        reason = f"No data here: {missing}." if missing else "Not run with the planned settings."
        assert reason in text.partition(f"## {name}\n")[2][:400]


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
        **run.key._asdict(),
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
            seed=run.key.seed,
            settings=run.resolved,
            measures={"train": 1.0, "test": accuracy + 0.01 * run.key.seed},
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
