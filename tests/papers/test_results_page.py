"""The results page: generated from the committed records, which match their planned runs."""

from pathlib import Path

import pytest

from fedtide.papers import load, load_records, names, plan
from fedtide.papers.paper_spec import SCALES
from fedtide.papers.results_page import render_results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records():
    return load_records(ROOT / "results")


def test_committed_page_is_up_to_date(records):
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == render_results(records), "run: fedtide papers --write docs/results.md"


def test_committed_records_match_their_planned_runs(records):
    planned = {
        run.key: run for name in names() for scale in SCALES for run in plan(load(name), scale)
    }
    for record in records:
        assert record.key in planned, record.key
        assert record.matches(planned[record.key]), record.key


def test_page_without_records():
    text = render_results([])
    assert "not run" in text
    assert "0 reproduced, 0 not reproduced" in text
    for name in names():
        assert f"## {name}" in text
