"""The results pages: generated from the committed records, which match their planned runs."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from fedtide.papers import load, load_records, plan
from fedtide.papers.results_page import render_results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records():
    return load_records(ROOT / "results")


@pytest.fixture(scope="module")
def pages(records):
    return render_results(records)


def row(page, experiment, statement):
    """Return the row of a claim in the section of an experiment."""
    section = page.partition(f"\n## {experiment}\n")[2].partition("\n## ")[0]
    (line,) = re.findall(rf"^\| {re.escape(statement)}.*$", section, re.MULTILINE)
    return line


def test_committed_pages_are_up_to_date(pages):
    for paper, page in pages.items():
        name = f"results-{paper}.md" if paper else "results.md"
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == page, "run: fedtide papers --write docs/results.md"


def test_the_readme_has_its_totals(pages):
    (total,) = re.findall(r"^All papers: (.*?)\.", pages[""], re.MULTILINE)
    count = {name: int(n) for n, name in re.findall(r"(\d+) ([a-z ]+?)(?: \(|,|$)", total)}
    with_data = sum(n for name, n in count.items() if name != "without data")
    said = (
        f"of {with_data} claims with data, {count['reproduced']} are reproduced and "
        f"{count['not reproduced']} are not"
    )
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


def test_numbers_on_the_page_are_those_of_the_records(records, pages):
    """002/fashion-mnist, five seeds, of which the interval has t = 2.776."""
    runs = {
        (r.method, r.seed): r.measures["test"]
        for r in records
        if (r.paper, r.scale) == ("002/fashion-mnist", "paper")
    }
    d = [runs["amplified-scaffold", seed] - runs["scaffold", seed] for seed in range(1, 6)]
    mean, half = statistics.mean(d), 2.776 * statistics.stdev(d) / 5**0.5
    text = f"amplified-scaffold − scaffold = {mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"
    assert text in pages["002"]
    known = [
        r.measures["test"]
        for r in records
        if (r.paper, r.scale, r.case, r.method) == ("001/cifar10", "paper", "bernoulli", "fedau-50")
    ]
    (line,) = re.findall(
        r"^\| test accuracy %: bernoulli: full scale .*$", pages["001"], re.MULTILINE
    )[:1]
    assert f"| {statistics.mean(known):.1f} ± {statistics.stdev(known):.1f} |" in line


def test_decided_failure_at_full_scale_counts_although_other_runs_are_missing(records):
    """Laptop runs that confirm a claim do not hide full-scale runs that refute it."""
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
    statement = "Amplified SCAFFOLD has the best test accuracy"
    refuted = row(render_results([*laptop, *full])["002"], "002/cifar10", statement)
    assert "Why not: " in refuted
    assert refuted.index("**not reproduced**") < refuted.index("**reproduced**")
    confirmed = row(render_results(laptop)["002"], "002/cifar10", statement)
    assert "**reproduced**" in confirmed
    assert "not reproduced" not in confirmed


def test_the_round_from_which_a_claim_holds_is_that_of_the_curves(records, pages):
    """002/cifar10 at full scale, from its records: Amplified SCAFFOLD against the other four.

    t = 4.303 for three seeds; the interval of every difference in training loss is below 0. If the
    last evaluation of one method is turned round, no round is named.
    """
    paper = [r for r in records if r.paper == "002/cifar10"]
    curves = {(r.method, r.seed): r.curve for r in paper if r.scale == "paper"}
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
    statement = "Amplified SCAFFOLD has the least training loss"
    assert f"; from round {since:,} of 12,000 on |" in row(pages["002"], "002/cifar10", statement)
    turned = [
        replace(r, curve=r.curve | {"train_loss": [*r.curve["train_loss"][:-1], 9.0]})
        if (r.method, r.scale) == ("amplified-scaffold", "paper")
        else r
        for r in paper
    ]
    line = row(render_results(turned)["002"], "002/cifar10", statement)
    assert "**reproduced**" in line
    assert "from round" not in line
