"""The progress of runs: speed and remaining time without compiling, and what is printed where."""

import io

import pytest
from rich.console import Console

import fedtide as ft
from fedtide.activity import COMPILING, MEASURING, activity, listen
from fedtide.callbacks import Callback
from fedtide.simulation import progress_bars
from fedtide.simulation.progress_bars import Pace, ProgressBars, format_seconds
from fedtide.simulation.run_progress import Progress, RunProgress


class Runs:
    """Stands for a sweep with these runs."""

    def __init__(self, **runs):
        self.runs = runs


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(progress_bars.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def terminal(monkeypatch):
    """Let the bars be drawn in a terminal of 120 columns; return what is written there."""
    screen = io.StringIO()

    def console(stderr):
        assert stderr
        return Console(file=screen, force_terminal=True, width=120, color_system=None)

    monkeypatch.setattr(progress_bars, "Console", console)
    return screen


def test_the_first_round_and_compiling_count_neither_as_rounds_nor_as_time():
    """A second shape is compiled during the fourth round."""
    pace, seconds_per_round, compiling = Pace(), 0.5, 40.0
    now = 0.0
    pace.update(now, 0, True)
    now += compiling + seconds_per_round
    pace.update(now, 1, False)
    assert pace.rate is None
    for t in range(2, 8):
        if t == 4:
            pace.update(now, t - 1, True)
            now += compiling
            pace.update(now, t - 1, False)
        now += seconds_per_round
        pace.update(now, t, False)
        assert pace.rate == pytest.approx(1 / seconds_per_round)
    assert pace.seconds_left(100) == pytest.approx(50)


def test_no_remaining_time_is_shown_before_a_second_was_measured():
    pace = Pace()
    for i in range(5):
        pace.update(i / 10, i + 1, False)
    assert pace.seconds_left(10) is None
    pace.update(2.0, 20, False)
    assert pace.seconds_left(10) == pytest.approx(10 / (19 / 2))


def test_rounds_before_a_resumption_are_not_counted():
    run = RunProgress(400)
    run.start()
    run.update(120, None)
    run.update(130, None)
    assert (run.observed, run.left) == (10, 270)
    run.start()  # its worker was lost: it continues from its last checkpoint
    run.update(120, None)
    run.update(125, None)
    assert (run.observed, run.left) == (15, 275)
    run.finish("done")
    assert (run.observed, run.ended, run.left) == (290, 400, 0)


def test_a_run_that_had_finished_is_not_counted():
    run = RunProgress(400)
    run.finish("done")
    assert (run.observed, run.ended) == (0, 400)


def test_a_failed_run_has_ended_no_further_round():
    run = RunProgress(5)
    run.start()
    run.finish("failed")
    assert (run.ended, run.left) == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "1 s"), (59, "59 s"), (61, "1 min 1 s"), (86_400, "24 h 0 min")]
)
def test_durations_have_two_units(seconds, text):
    assert format_seconds(seconds) == text


def test_lines_without_a_terminal_say_what_is_compiled_and_a_sane_remaining_time(clock, capsys):
    run = RunProgress(400)
    runs = Runs(one=run)
    with ProgressBars("name") as bars:
        run.start()
        bars(runs)
        run.activity = COMPILING
        bars(runs)
        assert capsys.readouterr().err == "name: round 0 of 400, compiling the local steps\n"
        clock.now += 25
        run.activity = ""
        run.update(0, None)
        run.update(1, 0.7)
        bars(runs)
        assert capsys.readouterr().err == "name: round 1 of 400, loss 0.7\n"
        for t in range(2, 24):
            clock.now += 0.5
            run.update(t, 0.7)
            bars(runs)
        assert capsys.readouterr().err == (
            "name: round 22 of 400, 2.00 rounds/s, loss 0.7, 3 min 9 s left\n"
        )


def test_a_load_that_fails_prints_no_rounds(clock, capsys):
    run = RunProgress(5)
    with ProgressBars("name") as bars:
        run.start()
        bars(Runs(one=run))
        clock.now += 60
        run.finish("failed")
        bars(Runs(one=run))
    assert capsys.readouterr().err == "name: round 0 of 5, failed\n"


def test_several_runs_are_counted(clock, capsys):
    runs = {name: RunProgress(10) for name in "abc"}
    for name, state in (("a", "done"), ("b", "failed")):
        runs[name].start()
        runs[name].finish(state)
    clock.now += 60
    with ProgressBars("name") as bars:
        bars._last_line = 0.0
        bars(Runs(**runs))
    assert capsys.readouterr().err == (
        "name: round 10 of 30, 1 done, 0 running, 1 failed of 3 runs\n"
    )


def test_bars_are_drawn_in_a_terminal(terminal, regression):
    ft.simulate(**regression, name="mine")
    text = terminal.getvalue()
    assert "mine" in text
    assert "12/12" in text


def test_bars_of_several_seeds_name_the_seed_and_end_complete(terminal, regression):
    fields = {key: value for key, value in regression.items() if key != "seed"}
    ft.simulate(**fields, seeds=[1, 2], name="mine")
    text = terminal.getvalue()
    assert "24/24" in text
    assert "2 done" in text


def test_progress_false_draws_nothing_in_a_terminal(terminal, regression):
    ft.simulate(**regression, progress=False)
    assert terminal.getvalue() == ""


def test_without_a_terminal_nothing_is_printed_unless_asked(regression, capsys, monkeypatch):
    monkeypatch.setattr(progress_bars, "_LINE_SECONDS", 0.0)
    ft.simulate(**regression)
    assert capsys.readouterr() == ("", "")
    ft.simulate(**regression, progress=True)
    assert "run: round 12 of 12" in capsys.readouterr().err


@pytest.mark.parametrize("finished", [[1], [1, 2]])
def test_seeds_that_had_finished_are_shown_as_done(finished, regression, tmp_path, monkeypatch):
    fields = {key: value for key, value in regression.items() if key != "seed"}
    ft.simulate(**fields, seeds=finished, out=tmp_path)
    shown = []
    original = Progress.finish

    def finish(progress, name, state):
        original(progress, name, state)
        shown.append({name: one.state for name, one in progress.runs.items()})

    monkeypatch.setattr(Progress, "finish", finish)
    ft.simulate(**fields, seeds=[1, 2, 3], out=tmp_path, resume=True, progress=True)
    assert shown[-1] == dict.fromkeys(["seed 1", "seed 2", "seed 3"], "done")


def test_a_failing_run_is_shown_as_failed(terminal, regression):
    class Fails(Callback):
        def on_round_end(self, run):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ft.simulate(**regression, callbacks=[Fails()])
    assert "failed" in terminal.getvalue()


def test_activities_may_be_nested():
    said = []
    with listen(said.append), activity("outer"), activity(MEASURING):
        pass
    assert said == ["outer", MEASURING, "outer", ""]


@pytest.mark.compile
def test_compiling_is_announced(regression):
    said = []

    class Listen(Callback):
        def on_activity(self, activity):
            said.append(activity)

    one = {"trainer": "compiled", "participation": {"type": "uniform", "size": 1}, "rounds": 1}
    ft.simulate(**(regression | one), callbacks=[Listen()])
    assert COMPILING in said
