"""The results page: generated from the committed records, which match their planned runs."""

import re
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


def test_committed_records_match_their_planned_runs(records, page):
    """The page counts the matching records in the last cells of its rows: 5 of 5 / 1 of 1."""
    cells = re.findall(r"\| ((?:\d+ of \d+|–)(?: / (?:\d+ of \d+|–))?) \|$", page, re.MULTILINE)
    counted = sum(int(count) for cell in cells for count in re.findall(r"(\d+) of", cell))
    assert counted == len(records), unmatched(records)


def unmatched(records):
    """Return the keys of the records without a planned run of the same settings."""
    runs = {run.key: run for name in names() for scale in SCALES for run in plan(load(name), scale)}
    return [r.key for r in records if r.key not in runs or not r.matches(runs[r.key])]


def test_page_without_records():
    text = render_results([])
    assert "not run" in text
    assert "0 reproduced, 0 not reproduced" in text
    for name in names():
        assert f"## {name}" in text
