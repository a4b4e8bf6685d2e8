"""The progress of runs: speed and remaining time without compiling, and what is printed where."""

import io

import pytest
from rich.console import Console

import fedtide as ft
from fedtide.activity import COMPILING
from fedtide.simulation import progress as progress_bars
from fedtide.simulation.progress import Progress, ProgressBars, RunStatus


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


def test_lines_without_a_terminal_say_what_is_compiled_and_the_remaining_time(clock, capsys):
    """The first round that ends here counts neither as a round nor as time."""
    with ProgressBars("name") as bars:
        progress = Progress(bars)
        progress.add("one", 400)
        progress.start("one")
        progress.set_status("one", RunStatus(COMPILING))
        assert capsys.readouterr().err == "name: round 0 of 400, compiling the local steps\n"
        clock.now += 25
        progress.set_status("one", RunStatus(ended=120, loss=0.7))
        assert capsys.readouterr().err == "name: round 120 of 400, loss 0.7\n"
        for ended in range(121, 142):
            clock.now += 0.5
            progress.set_status("one", RunStatus(ended=ended, loss=0.7))
        assert capsys.readouterr().err == (
            "name: round 141 of 400, 2.00 rounds/s, loss 0.7, 0:02:10 left\n"
        )


def test_bars_of_several_seeds_end_complete(terminal, regression):
    fields = {key: value for key, value in regression.items() if key != "seed"}
    ft.simulate(**fields, seeds=[1, 2], name="mine")
    assert "24/24" in terminal.getvalue()


def test_progress_false_draws_nothing_in_a_terminal(terminal, regression):
    ft.simulate(**regression, progress=False)
    assert terminal.getvalue() == ""


def test_without_a_terminal_nothing_is_printed_unless_asked(regression, capsys, monkeypatch):
    monkeypatch.setattr(progress_bars, "_LINE_SECONDS", 0.0)
    ft.simulate(**regression)
    assert capsys.readouterr() == ("", "")
    ft.simulate(**regression, progress=True)
    assert "run: round 12 of 12" in capsys.readouterr().err
