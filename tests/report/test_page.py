"""The HTML page and the command that writes it."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.report import write_report
from fedtide.report.grouping import group_by_method
from fedtide.report.loading import load_runs
from fedtide.report.page import make_sections, render_page, verdict


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
    shutil.copytree(runs_folder / "plain" / "seed-1", tmp_path / "one")
    return tmp_path / "one"


def test_the_page_is_self_contained_and_names_every_method(folder):
    text = Outline(folder / "page.html").text
    for words in ("plain", "fedau", "known", "Who took part in which round", "L1 skew"):
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


def test_the_same_runs_give_the_same_page(folder, runs_folder):
    report(runs_folder, "--html", folder / "again.html", "--smooth", "0")
    assert (folder / "page.html").read_bytes() == (folder / "again.html").read_bytes()


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
    other = fields | {"problem": problem, "name": "other", "seed": 3, "rounds": 3}
    ft.simulate(**other, algorithm="fedavg", out=tmp_path / "other")
    sections = make_sections(load_runs([tmp_path]))
    assert {section.name: list(section.groups) for section in sections} == {
        "regression, features 3": ["plain"],
        "regression, features 4": ["other"],
    }
    report("one", "other", "--html", "page.html")
    page = Outline(tmp_path / "page.html")
    assert "2 different problems" in page.text
    assert page.levels[:3] == [1, 2, 3]
    assert (np.diff(page.levels) <= 1).all()
    with pytest.raises(ft.InvalidInputError, match=r"^target: .*2 different problems; "):
        report("one", "other", "--target", "loss=1")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("patience", "shown"), [({}, "8 rounds"), ({2: 4}, "8–16 rounds")])
def test_the_page_shows_the_completed_rounds(patience, shown, fields, tmp_path):
    for seed in (1, 2):
        stopping = ft.callbacks.EarlyStopping("loss", patience.get(seed, 2), min_delta=1e9)
        run = fields | {"algorithm": "fedavg", "seed": seed, "callbacks": [stopping]}
        ft.simulate(**run, out=tmp_path / str(seed))
    report(tmp_path)
    assert f"{shown} 8 clients" in " ".join(Outline(tmp_path / "report.html").text.split())


@pytest.mark.parametrize("participation", ["full", {"type": "bernoulli", "rates": 1e-9}])
def test_one_run_with_full_or_no_participation_has_a_page(participation, fields, tmp_path):
    changed = fields | {"participation": participation, "rounds": 3}
    ft.simulate(**changed, algorithm="fedavg", out=tmp_path)
    report(tmp_path)
    assert "One seed." in Outline(tmp_path / "report.html").text


@pytest.mark.usefixtures("undrawn")
def test_a_target_of_an_error_is_shown_as_a_number(one_run):
    report("one", "--target", "mse=0.75")
    text = Outline(one_run / "report.html").text
    assert "reach mse 0.75 at an evaluation" in text


@pytest.mark.parametrize("share", [float("nan"), -0.1, 2])
def test_smoothing_over_no_share_is_refused(share, runs_folder):
    with pytest.raises(ft.InvalidInputError, match=r"^smooth: .*; give 0\.01"):
        make_sections(load_runs([runs_folder]), smooth=share)


def test_a_method_has_one_colour_in_all_sections(runs_folder, fields, tmp_path):
    """One problem has the methods fedau and mine, the other mine and yours."""
    for name, features in (("fedau", 3), ("mine", 3), ("mine", 4), ("yours", 4)):
        problem = fields["problem"] | {"features": features}
        changed = fields | {"problem": problem, "rounds": 2, "name": name}
        ft.simulate(**changed, algorithm="fedavg", out=tmp_path / f"{name}-{features}")
    one, other = make_sections(load_runs([tmp_path]))
    assert [list(section.groups) for section in (one, other)] == [
        ["fedau", "mine"],
        ["mine", "yours"],
    ]
    drawn = []
    for section in (one, other):
        lines = section.figures["learning"][0].figure.axes[0].get_lines()
        drawn.append({line.get_label(): line.get_color() for line in lines})
    assert drawn[0]["mine"] == drawn[1]["mine"]
    assert len({*drawn[0].values(), *drawn[1].values()}) == 3


def test_folders_without_a_finished_run_are_refused(one_run):
    (one_run / "summary.json").unlink()
    with pytest.raises(ft.InvalidInputError, match=r"^report: .*; "):
        report("one")
    with pytest.raises(ft.InvalidInputError, match=r"^nowhere: .*; "):
        report("nowhere")


def test_the_verdict_names_the_best_method(runs_folder):
    groups = group_by_method(load_runs([runs_folder]))
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


@pytest.mark.parametrize("end", [NAN, INF])
@pytest.mark.parametrize("first", ["good", "bad"])
@pytest.mark.filterwarnings("error")
def test_a_method_that_diverged_is_neither_the_best_nor_as_good(end, first, ending):
    losses = {"good": [0.4, 0.5, 0.6], "bad": [end] * 3}
    groups = ending(**{name: losses[name] for name in sorted(losses, key=lambda n: n != first)})
    text = "good ends with the best loss: 0.5000 ± 0.1000. Diverged: bad (3 of 3 seeds)."
    assert verdict(groups) == text


def test_methods_that_all_diverged_have_no_best(ending):
    assert verdict(ending(a=[NAN, 1.0], b=[INF, INF])) == (
        "Diverged: a (1 of 2 seeds), b (2 of 2 seeds)."
    )


def test_the_verdict_compares_seed_by_seed(ending):
    """The worse method is so by 1.00 to 1.04 in every seed; the seeds differ by much more."""
    best = [10.0, 20.0, 30.0, 40.0, 50.0]
    worse = [loss + 1 + 0.01 * i for i, loss in enumerate(best)]
    assert "The worst is worse with" in verdict(ending(best=best, worse=worse))


@pytest.mark.parametrize(("gaps", "near"), [([1, 2, 3], True), ([2, 3, 4], False)])
def test_a_gap_is_clear_outside_the_interval_of_students_t(gaps, near, ending):
    """2 ± 2.48 and 3 ± 2.48, from a printed table: 4.303 / √3; both are beyond 2 errors."""
    groups = ending(best=[5.0, 6.0, 7.0], other=list(np.add([5, 6, 7], gaps)))
    assert ("Not clearly worse, compared seed by seed: other." in verdict(groups)) == near


def test_several_gaps_are_judged_together(ending):
    """3 ± 4.303/√3 is clear alone; among three, 3 ± 7.649/√3 = 4.42 is not."""
    ends = [8.0, 10.0, 12.0]  # of gaps 2, 3 and 4 on seeds that differ
    groups = ending(best=[6.0, 7.0, 8.0], b=ends, c=ends, d=[100.0, 101.0, 102.0])
    assert verdict(groups).endswith("Not clearly worse, compared seed by seed: b, c.")


def test_the_verdict_needs_two_common_seeds(ending):
    hint = "Fewer than two common seeds cannot tell whether that is more than chance."
    assert verdict(ending(a=[1.0], b=[2.0])).endswith(hint)
    apart = ending(a=[1.0, 1.1], b=[2.0, 2.1], first_seeds={"b": 3})
    assert verdict(apart).endswith(hint)
    mixed = ending(a=[1.0, 1.1], b=[2.0], c=[2.0, 2.1])
    assert verdict(mixed).endswith("Not clearly worse, compared seed by seed: b.")


@pytest.mark.filterwarnings("error")
def test_numbers_of_any_size_have_a_readable_verdict(ending):
    text = verdict(ending(a=[1e200, 2e200], b=[1e250, 3e250]))
    assert text.startswith("a ends with the best loss: 1.5e+200")
    assert len(text) < 150


@pytest.mark.usefixtures("undrawn")
def test_methods_of_one_colour_have_other_dashes_in_the_table(ending, tmp_path):
    groups = ending(**{f"method{i}": [1.0] for i in range(16)})
    sections = make_sections([run for group in groups.values() for run in group])
    (tmp_path / "page.html").write_text(render_page(sections, []), encoding="utf-8")
    lines = Outline(tmp_path / "page.html").lines
    assert len(lines) == len({*lines}) == 16
    assert len({colour for colour, _ in lines}) == 7


@pytest.mark.usefixtures("undrawn")
def test_runs_without_an_update_have_no_empty_figures(fields, tmp_path):
    """Updates of the method "bad" are dropped from some round on, those of "none" from the first.

    8 clients with a mean rate of 0.55 are 4.4 in a round.
    """
    for name, lr in (("bad", 1e12), ("good", 0.05), ("none", 1e200)):
        local = fields["local"] | {"lr": lr}
        changed = fields | {"name": name, "local": local, "on_nonfinite": "drop"}
        ft.simulate(**changed, algorithm="fedavg", out=tmp_path / "all" / name)
    (section,) = make_sections(load_runs([tmp_path / "all"]))
    assert [len(section.figures[key]) for key in ("participation", "influence")] == [6, 3]
    report(tmp_path / "all")
    text = " ".join(Outline(tmp_path / "all" / "report.html").text.split())
    assert re.search(r"0\.0–4\.\d clients per round", text)
    assert "0 clients in every round." in text
    (section,) = make_sections(load_runs([tmp_path / "all" / "none"]))
    assert section.figures["influence"] == []
    page = render_page([section], [])
    assert "Without influence and L1 skew: none. None of their updates was used." in page


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
                name=method,
                seed=seed,
                out=tmp_path / f"{method}-{seed}",
            )
    report(tmp_path)
    text = Outline(tmp_path / "report.html").text
    assert "Diverged: bad (2 of 2 seeds)." in text
    assert "± nan" not in text
    assert "bad 2 diverged" in " ".join(text.split())
    assert "nan" not in text.lower().split("the experiment")[0]


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("undrawn")
def test_the_default_target_leaves_out_methods_that_diverged(ending):
    groups = ending(a=[1.0, 2.0], b=[INF, 1.0], c=[NAN, NAN])
    (section,) = make_sections([run for group in groups.values() for run in group])
    assert section.target.level == 1.5
    assert [row.reached for row in section.target.rows] == [1, 1, 0]
    page = render_page([section], [])
    assert "reach loss 1.5 at" in page
    assert "± nan" not in page
    groups = ending(a=[INF], b=[NAN])
    (section,) = make_sections([run for group in groups.values() for run in group])
    assert "What it takes" not in render_page([section], [])


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
