"""Runs under way in reports and comparisons: shown with their round, never mixed with finished."""

import shutil
import time

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import fedtide as ft
from fedtide.callbacks import Callback
from fedtide.cli.main import app
from fedtide.report.comparison import compare_conditions
from fedtide.report.grouping import arrange
from fedtide.report.loading import find_runs, load_runs


class Killed(BaseException):
    pass


class KillAt(Callback):
    def __init__(self, t):
        self.t = t

    def on_round_end(self, run):
        if run.round == self.t:
            raise Killed


class StopAt(Callback):
    def __init__(self, t):
        self.t = t

    def on_round_end(self, run):
        if run.round == self.t:
            run.stop("enough")


def begin(fields, t, out, **changes):
    """Run until round t; checkpoints are written every 5 rounds."""
    with pytest.raises(Killed):
        ft.simulate(
            **(fields | {"algorithm": "fedau", "checkpoint": {"every": 5}} | changes),
            callbacks=[KillAt(t)],
            out=out,
        )


def command(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def under_way(fields, tmp_path):
    """Return the folder of a run of 40 rounds: evaluated in round 16, saved in round 15."""
    begin(fields, 18, tmp_path / "live", name="live")
    return tmp_path / "live"


def test_a_run_under_way_is_the_beginning_of_the_whole(under_way, fields, tmp_path):
    (run,) = load_runs([under_way])
    ft.simulate(**fields, algorithm="fedau", name="live", out=tmp_path / "whole")
    (whole,) = load_runs([tmp_path / "whole"])
    assert not run.is_finished
    assert run.ended == 15
    assert run.metrics.equals(whole.metrics.filter(pl.col("round") <= 16))
    assert run.log().equals(whole.log().filter(pl.col("round") < 15))
    np.testing.assert_array_equal(run.cohort_sizes, whole.cohort_sizes[:15])
    counts = run.used_rows()["client"].value_counts().sort("client")["count"].to_numpy()
    used = run.clients["participation"].to_numpy() * 15
    np.testing.assert_allclose(used[used > 0], counts)


@pytest.mark.usefixtures("undrawn")
def test_a_mean_over_seeds_does_not_mix_runs_under_way_with_finished_ones(fields, tmp_path):
    begin(fields, 18, tmp_path / "seed-1", seed=1)
    begin(fields, 33, tmp_path / "seed-2", seed=2)
    shown, incomplete = find_runs([tmp_path])
    assert [run.ended for run in shown] == [15, 30]
    (groups,) = arrange(shown).values()
    assert list(groups) == ["fedau (round 16 of 40)"]
    assert incomplete == []
    command("report", tmp_path)
    same = fields | {"algorithm": "fedau", "checkpoint": {"every": 5}}
    ft.simulate(**same, seed=3, out=tmp_path / "seed-3")
    shown, incomplete = find_runs([tmp_path])
    assert [run.experiment["seed"] for run in shown] == [3]
    assert [run.state for run in incomplete] == ["unfinished", "unfinished"]
    assert [run.ended for run in incomplete] == [15, 30]


@pytest.mark.usefixtures("undrawn")
def test_a_stopped_run_is_reported_over_its_own_rounds(fields, tmp_path):
    """Also beside a seed that was not stopped: curves end where the first seed ends."""
    run = fields | {"algorithm": "fedau"}
    ft.simulate(**run, seed=1, callbacks=[StopAt(14)], out=tmp_path / "seed-1")
    ft.simulate(**run, seed=2, out=tmp_path / "seed-2")
    stopped, whole = load_runs([tmp_path])
    assert stopped.is_finished
    assert len(stopped.cohort_sizes) == stopped.ended == 14
    table = compare_conditions(arrange([stopped, whole]))
    assert table["seeds"].to_list() == [2]
    assert table["loss"][0] == pytest.approx(
        np.mean([stopped.metrics["loss"][-1], whole.metrics["loss"][-1]])
    )
    command("report", tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_watching_rewrites_the_page_until_the_run_has_ended(
    under_way, fields, tmp_path, monkeypatch
):
    page, seen = tmp_path / "page.html", []

    def sleep(seconds):
        seen.append((seconds, page.read_text()))
        changes = {"algorithm": "fedau", "name": "live", "checkpoint": {"every": 5}}
        ft.simulate(**fields, **changes, out=under_way, resume=True)

    monkeypatch.setattr(time, "sleep", sleep)
    command("report", under_way, "--html", page, "--watch", "2")
    ((seconds, first),) = seen
    assert seconds == 2
    assert '<meta http-equiv="refresh" content="2' in first
    assert "fedau (round 16 of 40)" in first
    last = page.read_text()
    assert "refresh" not in last
    assert "fedau (round" not in last


def test_a_folder_that_finishes_while_it_is_read_is_read(under_way, fields, monkeypatch, tmp_path):
    """Between the reading of its metrics and of its log."""
    finished = tmp_path / "copy"
    shutil.copytree(under_way, finished)
    changes = {"algorithm": "fedau", "name": "live", "checkpoint": {"every": 5}}
    ft.simulate(**fields, **changes, out=finished, resume=True)
    from fedtide.simulation.run_folder import RunFolder

    original, waiting = RunFolder.read_log, [True]

    def read_log(folder):
        if waiting and waiting.pop():
            shutil.rmtree(under_way)
            shutil.copytree(finished, under_way)
            raise FileNotFoundError
        return original(folder)

    monkeypatch.setattr(RunFolder, "read_log", read_log)
    (run,) = load_runs([under_way])
    assert run.is_finished
