"""The page and its command: what is on it, and how it refuses."""

import re
import shutil
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.report.loading import group_by_method, load_runs
from fedtide.report.page import parts, verdict


class Outline(HTMLParser):
    """Collects what a page links to, its ids, its texts, and whether its tags are closed."""

    def __init__(self):
        super().__init__()
        self.links, self.ids, self.words, self.open = [], [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.links += [found[name] for name in ("href", "src", "xlink:href") if name in found]
        self.ids += [found["id"]] if "id" in found else []
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in ("meta", "br", "img", "link"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def report(monkeypatch, tmp_path):
    """Return a function that runs the command and gives its page's outline and its output."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        done = CliRunner().invoke(app, ["report", *map(str, arguments)])
        if done.exception is not None:
            raise done.exception
        page = re.search(r"report: (\S+?)(;|$)", done.output, re.MULTILINE).group(1)
        outline = Outline()
        outline.feed((tmp_path / page).read_text(encoding="utf-8"))
        return outline, done.output

    return command


def test_the_page_needs_nothing_else_and_says_what_is_known(report, runs_folder, tmp_path):
    outline, output = report(runs_folder, "--html", "page.html", "--figures", "figures")
    assert outline.open == []
    assert all(link.startswith(("#", "data:")) for link in outline.links)
    assert len(set(outline.ids)) == len(outline.ids)
    text = " ".join(outline.words)
    for words in ("plain", "fedau", "known", "Who took part in which round", "L1 skew"):
        assert words in text
    assert "not in the figures" not in output
    names = {file.stem for file in (tmp_path / "figures").iterdir()}
    assert {"curves-loss", "raster-0", "cohorts-0", "objective", "weights-time"} <= names
    for file in (tmp_path / "figures").iterdir():
        head = file.read_bytes()[:8]
        assert head.startswith(b"\x89PNG" if file.suffix == ".png" else b"%PDF")


def test_the_same_runs_give_the_same_page(report, runs_folder, tmp_path):
    report(runs_folder, "--html", "one.html")
    report(runs_folder, "--html", "two.html", "--smooth", "0")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_runs_that_have_not_ended_well_are_listed(report, runs_folder, tmp_path):
    shutil.copytree(runs_folder, tmp_path / "runs")
    for method in ("plain", "known"):
        (tmp_path / "runs" / method / "seed-2" / "summary.json").unlink()
    failed = tmp_path / "runs" / "known" / "seed-2" / "failure.json"
    failed.write_text('{"sentence": "local.lr: <too> high", "lasting": true, "trace": ""}')
    outline, output = report("runs")
    text = " ".join(outline.words)
    assert "2 of 6 runs are not in the figures." in text
    assert "unfinished" in text
    assert "local.lr: <too> high" in text
    assert "40 of 40" in text  # what their last checkpoints know
    assert "not in the figures: 1 failed and 1 unfinished" in output


def test_different_problems_stand_one_after_another(report, runs_folder, fields, tmp_path):
    problem = fields["problem"] | {"features": 4}
    other = fields | {"problem": problem, "name": "plain", "seed": 3}
    ft.simulate(**other, algorithm="fedavg", out=tmp_path / "other")
    found = parts(load_runs([runs_folder, tmp_path / "other"]))
    assert [part.name for part in found] == ["regression, features 3", "regression, features 4"]
    assert [list(part.groups) for part in found][1] == ["plain"]
    outline, _ = report(runs_folder, "other", "--html", "page.html")
    assert "cannot be compared" in " ".join(outline.words)
    assert len(set(outline.ids)) == len(outline.ids)
    with pytest.raises(
        ft.InvalidInputError, match=r"^target: the runs are of 2 different problems"
    ):
        report(runs_folder, "other", "--target", "loss=1")


@pytest.mark.parametrize("participation", ["full", {"type": "bernoulli", "rates": 0.0}])
def test_pages_of_one_run(participation, report, fields):
    changed = fields | {"participation": participation, "rounds": 3}
    ft.simulate(**changed, algorithm="fedavg", out="one")
    outline, _ = report("one")
    assert outline.open == []


def test_nothing_to_show(report, runs_folder, tmp_path):
    shutil.copytree(runs_folder / "plain" / "seed-1", tmp_path / "one")
    (tmp_path / "one" / "summary.json").unlink()
    with pytest.raises(ft.InvalidInputError, match=r"^report: no run has ended well"):
        report("one")
    with pytest.raises(ft.InvalidInputError, match=r"^nowhere: holds no run"):
        report("nowhere")


def test_the_verdict_names_the_best_and_who_is_within_error(runs_folder):
    groups = group_by_method(load_runs([runs_folder]))
    ends = {m: [run.metrics["loss"][-1] for run in group] for m, group in groups.items()}
    best = min(ends, key=lambda method: sum(ends[method]))
    assert verdict(groups).startswith(f"{best} ends with the best loss: {sum(ends[best]) / 2:.4f}")
