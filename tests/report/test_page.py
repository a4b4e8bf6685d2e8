"""The HTML page and the command that writes it."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.report import write_report
from fedtide.report.grouping import arrange
from fedtide.report.loading import load_runs
from fedtide.report.page import make_report, render_page
from fedtide.report.verdict import verdict


class Outline(HTMLParser):
    """Collects a page's links, ids and texts, and checks that its tags are closed."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids, self.words, self.open = [], [], [], []
        self.levels, self.cells, self.lines = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)
        assert all(link.startswith(("#", "data:")) for link in self.links)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.levels += [int(tag[1])] if tag in ("h1", "h2", "h3", "h4") else []
        self.cells += [found.get("scope")] if tag == "th" else []
        self.lines += [(found["stroke"], found["stroke-dasharray"])] if tag == "line" else []
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

    @property
    def text(self):
        return " ".join(self.words)


def report(*arguments):
    """Run the command and return its output."""
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def folder(runs_folder, tmp_path_factory):
    """Return a folder with the page of all runs and its figures."""
    folder = tmp_path_factory.mktemp("report")
    output = report(runs_folder, "--html", folder / "page.html", "--figures", folder / "figures")
    assert "not in the figures" not in output
    return folder


@pytest.fixture
def one_run(runs_folder, tmp_path, monkeypatch):
    """Return a copy of one run, in the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs_folder / "fedavg" / "seed-1", tmp_path / "one")
    return tmp_path / "one"


def test_the_page_is_self_contained_and_names_every_method(folder):
    text = Outline(folder / "page.html").text
    for words in ("fedavg", "fedau", "known-rates", "Who took part in which round", "L1 skew"):
        assert words in text


def test_headings_leave_out_no_level_and_head_cells_say_what_they_head(folder):
    page = Outline(folder / "page.html")
    assert page.levels[0] == 1
    assert (np.diff(page.levels) <= 1).all()
    assert {*page.cells} == {"col", "row"}


def test_every_figure_is_saved_as_png_and_pdf(folder):
    files = list((folder / "figures").iterdir())
    names = {file.stem for file in files}
    assert {"curves-loss", "raster-0", "cohorts-0", "objective", "weights-time"} <= names
    assert len(files) == 2 * len(names)
    for file in files:
        head = file.read_bytes()[:8]
        assert head.startswith(b"\x89PNG" if file.suffix == ".png" else b"%PDF")


@pytest.mark.usefixtures("undrawn")
def test_failed_and_unfinished_runs_are_listed(one_run, tmp_path):
    for name in ("two", "three"):
        shutil.copytree(one_run, tmp_path / name)
        (tmp_path / name / "summary.json").unlink()
    failure = '{"sentence": "local.lr: <too> high", "permanent": true, "trace": ""}'
    (tmp_path / "two" / "failure.json").write_text(failure)
    output = report(".")
    text = Outline(tmp_path / "report.html").text
    assert "2 of 3 runs are not in the figures." in text
    assert "unfinished" in text
    assert "local.lr: <too> high" in text
    assert "40 of 40" in text  # the rounds of their last checkpoints
    assert "not in the figures: 1 failed and 1 unfinished" in output


@pytest.mark.usefixtures("undrawn")
def test_each_problem_has_its_own_section(one_run, fields, tmp_path):
    problem = fields["problem"] | {"features": 4}
    other = fields | {"problem": problem, "seed": 3}
    ft.simulate(**other, algorithm="fedavg", out=tmp_path / "other")
    sections = make_report(load_runs([tmp_path])).sections
    assert {section.name: list(section.groups) for section in sections} == {
        "regression, features 3": ["fedavg"],
        "regression, features 4": ["fedavg"],
    }
    report("one", "other", "--html", "page.html")
    page = Outline(tmp_path / "page.html")
    assert "under 2 conditions" in page.text
    assert page.levels[:4] == [1, 2, 2, 3]
    assert (np.diff(page.levels) <= 1).all()


@pytest.mark.usefixtures("undrawn")
def test_methods_are_ranked_under_each_condition(fields, tmp_path):
    """The panels show all conditions on the same axes, and a method in the same colour."""
    for rates, algorithm, seed in product((0.5, 0.9), ("fedavg", "fedau"), (1, 2)):
        run = fields | {"participation": {"type": "bernoulli", "rates": rates}, "rounds": 8}
        out = tmp_path / f"{rates}-{algorithm}-{seed}"
        ft.simulate(**run, algorithm=algorithm, seed=seed, out=out)
    found = make_report(runs := load_runs([tmp_path]))
    (figure,) = found.overview
    assert [section.name for section in found.sections] == [
        "regression, rates 0.5",
        "regression, rates 0.9",
    ]
    colours = []
    for section, panel in zip(found.sections, figure.figure.axes, strict=True):
        ends = {
            method: np.mean([run.metrics["loss"][-1] for run in group])
            for method, group in section.groups.items()
        }
        assert set(ends) == {"fedavg", "fedau"}
        assert verdict(section.groups).startswith(f"{min(ends, key=ends.get)} ends with the best")
        assert panel.get_title() == section.name
        colours.append({line.get_label(): line.get_color() for line in panel.get_lines()})
    assert colours[0] == colours[1]
    assert len({panel.get_ylim() for panel in figure.figure.axes}) == 1
    assert set(ft.compare(tmp_path).frame["condition"]) == {s.name for s in found.sections}
    (alone,) = make_report([run for run in runs if run.fields["algorithm"] == "fedau"]).sections
    assert list(alone.groups) == ["fedau, rates 0.5", "fedau, rates 0.9"]


def test_the_verdict_names_the_best_method(runs_folder):
    (groups,) = arrange(load_runs([runs_folder])).values()
    ends = {m: [run.metrics["loss"][-1] for run in group] for m, group in groups.items()}
    best = min(ends, key=lambda method: sum(ends[method]))
    assert verdict(groups).startswith(f"{best} ends with the best loss: {sum(ends[best]) / 2:.4f}")


@pytest.fixture(scope="module")
def ending(runs_folder):
    """Return a function that gives methods whose runs end with these losses, one per seed."""
    run = load_runs([runs_folder])[0]

    def make(first_seeds=None, **losses):
        return {
            method: [
                replace(
                    run,
                    experiment=run.experiment | {"name": method, "seed": seed},
                    metrics=pl.DataFrame({"round": [0, 40], "loss": [9.0, loss]}),
                )
                for seed, loss in enumerate(ends, (first_seeds or {}).get(method, 1))
            ]
            for method, ends in losses.items()
        }

    return make


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("end", "first"), [(NAN, "good"), (INF, "bad")])
@pytest.mark.filterwarnings("error")
def test_a_method_that_diverged_is_neither_the_best_nor_as_good(end, first, ending):
    losses = {"good": [0.4, 0.5, 0.6], "bad": [end] * 3}
    groups = ending(**{name: losses[name] for name in sorted(losses, key=lambda n: n != first)})
    text = "good ends with the best loss: 0.5000 ± 0.1000. Diverged: bad (3 of 3 seeds)."
    assert verdict(groups) == text


@pytest.mark.parametrize(("gaps", "near"), [([1, 2, 3], True), ([2, 3, 4], False)])
def test_a_gap_is_clear_outside_the_interval_of_students_t(gaps, near, ending):
    """2 ± 2.48 and 3 ± 2.48, from a printed table: 4.303 / √3; both are beyond 2 errors."""
    groups = ending(best=[5.0, 6.0, 7.0], other=list(np.add([5, 6, 7], gaps)))
    assert ("Not clearly worse, compared seed by seed: other." in verdict(groups)) == near


def test_several_gaps_are_judged_together(ending):
    """3 ± 4.303/√3 is clear alone; among three, 3 ± 7.649/√3 = 4.42 is not."""
    ends = [8.0, 10.0, 12.0]  # of gaps 2, 3 and 4 on seeds that differ
    groups = ending(best=[6.0, 7.0, 8.0], b=ends, c=ends, d=[100.0, 101.0, 102.0])
    assert verdict(groups).endswith("Not clearly worse, compared seed by seed: b; c.")


def test_the_verdict_needs_three_common_seeds(ending):
    hint = "Fewer than three common seeds cannot tell whether that is more than chance."
    assert verdict(ending(a=[1.0, 1.1], b=[2.0, 2.1])).endswith(hint)
    apart = ending(a=[1.0, 1.1, 1.2], b=[2.0, 2.1, 2.2], first_seeds={"b": 4})
    assert verdict(apart).endswith(hint)
    mixed = ending(a=[1.0, 1.1, 1.2], b=[2.0, 2.1], c=[2.0, 2.1, 2.2])
    assert verdict(mixed).endswith("Not clearly worse, compared seed by seed: b.")


@pytest.mark.usefixtures("undrawn")
def test_runs_without_an_update_have_no_empty_figures(fields, tmp_path):
    """Updates of the method "bad" are dropped from some round on, those of "none" from the first.

    8 clients with a mean rate of 0.55 are 4.4 in a round.
    """
    for name, lr in (("bad", 1e12), ("good", 0.05), ("none", 1e200)):
        local = fields["local"] | {"lr": lr}
        changed = fields | {"local": local, "on_nonfinite": "drop"}
        ft.simulate(**changed, algorithm="fedavg", out=tmp_path / "all" / name)
    (section,) = make_report(load_runs([tmp_path / "all"])).sections
    assert [len(section.figures[key]) for key in ("participation", "influence")] == [6, 3]
    report(tmp_path / "all")
    text = " ".join(Outline(tmp_path / "all" / "report.html").text.split())
    assert re.search(r"0\.0–4\.\d clients per round", text)
    assert "0 clients in every round." in text
    alone = make_report(load_runs([tmp_path / "all" / "none"]))
    assert alone.sections[0].figures["influence"] == []
    page = render_page(alone)
    assert "Without influence and L1 skew: fedavg. None of their updates was used." in page


@pytest.mark.filterwarnings("error")
def test_runs_that_diverged_have_a_page(tmp_path):
    for method, lr in (("good", 0.1), ("bad", 1e12)):
        for seed in (1, 2):
            ft.simulate(
                problem={"type": "quadratic", "matrices": [[[1.0]], [[2.0]]], "centers": [[0], [1]]}
                | {"start": [5.0]},
                participation="full",
                algorithm="fedavg",
                local={"steps": 2, "lr": lr},
                rounds=3,
                on_nonfinite="drop",
                seed=seed,
                out=tmp_path / f"{method}-{seed}",
            )
    report(tmp_path)
    text = Outline(tmp_path / "report.html").text
    assert "Diverged: fedavg, lr 1e+12 (2 of 2 seeds)." in text
    assert "± nan" not in text
    assert "fedavg, lr 1e+12 2 diverged" in " ".join(text.split())
    assert "nan" not in text.lower().split("the experiment")[0]


def test_a_weighted_objective_is_not_called_the_mean_over_clients(fields, tmp_path):
    run = fields | {"participation": "full", "algorithm": "fedavg", "rounds": 3}
    clients = len(ft.simulate(**run).clients)
    weights = [10.0, *[1.0] * (clients - 1)]
    result = ft.simulate(**run, objective=weights, out=tmp_path / "weighted")
    last = result.metrics.row(-1, named=True)
    assert last["participation_loss"] == pytest.approx(last["loss"]), "everybody took part"
    text = repr(ft.compare(tmp_path / "weighted"))
    assert "objective" in text
    assert "client mean" not in text
    write_report(tmp_path / "page.html", tmp_path / "weighted")
    page = (tmp_path / "page.html").read_text()
    assert "the objective with the experiment" in page
    assert "the mean over clients, which is the goal" not in page
