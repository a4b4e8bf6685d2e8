"""Callbacks: what they see of a run, and how they end it, also after an interruption."""

import json
import sys

import pytest

import fedtide as ft
from fedtide.callbacks import Callback, EarlyStopping
from fedtide.simulation import Experiment


class Recorder(Callback):
    def __init__(self):
        self.calls = []

    def on_activity(self, activity):
        self.calls.append(("activity", activity))

    def on_start(self, run):
        self.calls.append(("start", run.round))

    def on_evaluation(self, run):
        self.calls.append(("evaluation", run.metrics[-1]["round"]))

    def on_round_end(self, run):
        self.calls.append(("round", run.round))

    def on_end(self, run):
        self.calls.append(("end", run.round))

    def on_error(self, run, error):
        self.calls.append(("error", type(error).__name__))


class StopAt(Callback):
    """Ends a run after a round."""

    def __init__(self, t):
        self.t = t

    def on_round_end(self, run):
        if run.round == self.t:
            run.stop("that is enough")


@pytest.mark.parametrize("in_folder", [False, True])
def test_callbacks_are_told_of_each_round_and_evaluation_in_order(in_folder, regression, tmp_path):
    recorder = Recorder()
    fields = regression | {"rounds": 6}
    ft.simulate(**fields, callbacks=[recorder], out=tmp_path / "run" if in_folder else None)
    assert recorder.calls == [
        ("activity", "preparing the problem"),
        ("activity", ""),
        ("start", 0),
        ("evaluation", 0),
        *[("round", t) for t in range(1, 5)],
        ("evaluation", 5),
        ("round", 5),
        ("evaluation", 6),
        ("round", 6),
        ("end", 6),
    ]


def test_a_view_shows_the_model_the_clients_and_the_experiment(regression):
    class Look(Callback):
        def on_end(self, run):
            self.seen = (run.model, run.clients, run.experiment, run.rounds, run.out)

    look = Look()
    result = ft.simulate(**regression, callbacks=[look])
    model, clients, *others = look.seen
    assert model.tobytes() == result.model.tobytes()
    assert clients.equals(result.clients)
    assert others == [Experiment.from_dict(regression), 12, None]


def test_watching_a_run_does_not_change_it(regression):
    class Disturb(Callback):
        def on_evaluation(self, run):
            run.metrics[-1].clear()

        def on_round_end(self, run):
            run.model[:] = 0

    watched, alone = (ft.simulate(**regression, callbacks=c) for c in ([Disturb()], []))
    assert watched.model.tobytes() == alone.model.tobytes()
    assert watched.metrics.equals(alone.metrics)


@pytest.mark.parametrize("t", [5, 7])
def test_a_stopped_run_is_a_shorter_run(t, regression):
    """It is evaluated at its end, whether an evaluation was due or not."""
    stopped = ft.simulate(**regression, callbacks=[StopAt(t)])
    shorter = ft.simulate(**(regression | {"rounds": t}))
    assert stopped.model.tobytes() == shorter.model.tobytes()
    assert stopped.metrics.equals(shorter.metrics)
    assert stopped.participation.equals(shorter.participation)
    assert stopped.clients.equals(shorter.clients)
    assert (stopped.stopped, shorter.stopped) == ("that is enough", "")


def test_a_run_killed_between_its_stop_and_its_results_stays_stopped(
    regression, results, tmp_path, monkeypatch
):
    ft.simulate(**regression, callbacks=[StopAt(7)], out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        # the first thing after the last checkpoint
        patch.setattr("fedtide.simulation.result_files._metrics_table", sys.exit)
        with pytest.raises(SystemExit):
            ft.simulate(**regression, callbacks=[StopAt(7)], out=tmp_path / "killed")
    resumed = ft.simulate(**regression, out=tmp_path / "killed", resume=True)
    assert resumed.stopped == "that is enough"
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_early_stopping_resumes_to_the_same_round(regression, results, killed_at, tmp_path):
    fields = regression | {"rounds": 200, "evaluation": {"every": 5}}
    stopping = {"callbacks": [EarlyStopping("loss", patience=2, min_delta=0.05)]}
    whole = ft.simulate(**fields, **stopping, out=tmp_path / "whole")
    ended = whole.metrics["round"][-1]
    assert 12 < ended < 200
    killed_at(ended - 1, fields, tmp_path / "killed", **stopping)
    ft.simulate(**fields, **stopping, out=tmp_path / "killed", resume=True)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def last_improvement(values, min_delta):
    """Return the index of the last value that beats all before it by more than min_delta."""
    kept = [0]
    for i, value in enumerate(values):
        if value < values[kept[-1]] - min_delta:
            kept.append(i)
    return kept[-1]


@pytest.mark.parametrize(("patience", "min_delta"), [(3, 0.0), (1, 0.02)])
def test_early_stopping_ends_when_the_metric_has_not_improved_for_so_long(
    patience, min_delta, regression
):
    fields = regression | {"rounds": 150, "evaluation": {"every": 2}}
    whole = ft.simulate(**fields)
    losses = whole.metrics["loss"].to_list()
    since = [i - last_improvement(losses[: i + 1], min_delta) for i in range(len(losses))]
    wanted = since.index(patience)
    stopped = ft.simulate(**fields, callbacks=[EarlyStopping("loss", patience, min_delta)])
    assert stopped.metrics["loss"].to_list() == losses[: wanted + 1]
    assert stopped.stopped == f"loss did not improve in {patience} evaluation{'s' * (patience > 1)}"


def test_invalid_callbacks_are_refused(regression):
    for field, make in [
        ("metric", lambda: [EarlyStopping("los")]),
        ("patience", lambda: [EarlyStopping(patience=0)]),
        ("callbacks", lambda: [print]),
    ]:
        with pytest.raises(ft.InvalidInputError, match=f"^{field}: "):
            ft.simulate(**regression, callbacks=make())


class RaiseAt(Callback):
    """Fails after a round."""

    def __init__(self, error, t=3):
        self.t, self.error = t, error

    def on_round_end(self, run):
        if run.round == self.t:
            raise self.error


def test_a_run_that_fails_says_so_in_its_folder_until_it_is_continued(regression, tmp_path):
    out, fields = tmp_path / "run", regression | {"rounds": 6}
    recorder = Recorder()
    with pytest.raises(KeyError):
        ft.simulate(**fields, out=out, callbacks=[recorder, RaiseAt(KeyError("boom"))])
    assert recorder.calls[-1] == ("error", "KeyError")
    failure = json.loads((out / "failure.json").read_text())
    assert failure["sentence"] == "KeyError: 'boom'"
    assert "on_round_end" in failure["trace"]
    assert not failure["permanent"]
    with pytest.raises(ft.InvalidInputError, match="KeyError: 'boom'"):
        ft.compare(out)
    continued = ft.simulate(**fields, out=out, resume=True)
    assert not (out / "failure.json").exists()
    assert (continued.model == ft.simulate(**fields).model).all()


def test_an_interrupted_run_has_not_failed(regression, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ft.simulate(**regression, out=tmp_path / "run", callbacks=[RaiseAt(KeyboardInterrupt())])
    assert not (tmp_path / "run" / "failure.json").exists()
