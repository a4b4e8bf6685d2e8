"""Metrics of a run under way can be read from its folder at any time."""

import json
import math

import fedtide as ft
from fedtide.callbacks import Callback
from fedtide.simulation.run_folder import RunFolder


class Read(Callback):
    """Reads the folder at every evaluation, as another process would."""

    def __init__(self):
        self.tables = []

    def on_evaluation(self, run):
        self.tables.append(RunFolder(run.out).read_metrics())


def test_lines_are_standard_json_with_null_for_what_is_not_finite(tmp_path):
    def refuse(name):
        raise AssertionError(name)

    folder = RunFolder(tmp_path)
    folder.start_live_metrics([{"round": 0, "loss": math.inf}])
    folder.add_live_metrics({"round": 5, "loss": math.nan, "accuracy": 0.5})
    lines = folder.live_metrics.read_text().splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines] == [
        {"round": 0, "loss": None},
        {"round": 5, "loss": None, "accuracy": 0.5},
    ]
    assert folder.read_metrics().rows() == [(0, None, None), (5, None, 0.5)]


def test_a_resumed_run_forgets_the_metrics_after_its_checkpoint(regression, killed_at, tmp_path):
    """Killed after the evaluation of round 8 and the checkpoint of round 6."""
    fields = regression | {"evaluation": {"every": 2}}
    killed_at(8, fields, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.read_metrics()["round"].to_list() == [0, 2, 4, 6, 8]
    read = Read()
    result = ft.simulate(**fields, out=tmp_path / "run", resume=True, callbacks=[read])
    assert read.tables[0]["round"].to_list() == [0, 2, 4, 6, 8]
    assert read.tables[-1].equals(result.metrics)


def test_a_line_that_is_being_written_is_not_read(regression, killed_at, tmp_path):
    killed_at(8, regression, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    before = folder.read_metrics()
    with folder.live_metrics.open("a") as file:
        file.write('{"round": 10, "lo')
    assert folder.read_metrics().equals(before)
