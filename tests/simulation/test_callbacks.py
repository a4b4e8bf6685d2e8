"""Callbacks: what they see of a run, and how they end it, also after an interruption."""

import json
import math
from dataclasses import replace

import pytest

import fedtide as ft
from fedtide.callbacks import Callback, EarlyStopping
from fedtide.problems import Evaluation
from fedtide.simulation import Experiment
from fedtide.simulation.loop import Run


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


def test_an_error_of_a_callback_in_an_activity_does_not_outlive_its_run(regression):
    class Fails(Callback):
        def on_activity(self, activity):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        ft.simulate(**regression, callbacks=[Fails()])
    recorder = Recorder()
    ft.simulate(**regression, callbacks=[recorder])
    assert [what for kind, what in recorder.calls if kind == "activity"][-1] == ""


def test_a_view_shows_the_model_the_clients_and_the_experiment(regression):
    seen = []

    class Look(Callback):
        def on_end(self, run):
            seen.append((run.model, run.clients, run.experiment, run.rounds, run.out))

    result = ft.simulate(**regression, callbacks=[Look()])
    ((model, clients, experiment, rounds, out),) = seen
    assert model.tobytes() == result.model.tobytes()
    assert clients.equals(result.clients)
    assert (experiment, rounds, out) == (Experiment.from_dict(regression), 12, None)


def test_watching_a_run_does_not_change_it(regression):
    class Disturb(Callback):
        def on_evaluation(self, run):
            last = run.metrics[-1]
            assert last.pop("round") == run.round
            last["loss"] *= 100
            for row in run.metrics:
                row.clear()
            run.metrics[-1:][0].clear()
            run.metrics.clear()
            assert json.dumps(run.metrics)

        def on_round_end(self, run):
            run.model[:] = 0

    watched, alone = (
        ft.simulate(**regression, callbacks=callbacks) for callbacks in ([Disturb()], [])
    )
    assert watched.model.tobytes() == alone.model.tobytes()
    assert watched.metrics.equals(alone.metrics)


def test_a_callback_sees_no_change_of_another(regression):
    class Change(Callback):
        def on_evaluation(self, run):
            run.metrics[-1]["loss"] = -1.0

    seen = []

    class Look(Callback):
        def on_evaluation(self, run):
            seen.append(run.metrics[-1]["loss"])

    result = ft.simulate(**regression, callbacks=[Change(), Look()])
    assert seen == result.metrics["loss"].to_list()


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


def test_a_run_has_at_least_one_round(regression):
    class Never(Callback):
        def on_start(self, run):
            run.stop("at once")

    assert ft.simulate(**regression, callbacks=[Never()]).metrics["round"][-1] == 1


def test_a_stopped_run_in_a_folder_is_finished_and_is_read_again(regression, tmp_path):
    out = tmp_path / "run"
    first = ft.simulate(**regression, callbacks=[StopAt(7)], out=out)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["rounds"], summary["stopped"]) == (7, "that is enough")
    again = ft.simulate(**regression, out=out, resume=True)
    assert again.stopped == first.stopped
    assert again.model.tobytes() == first.model.tobytes()
    assert again.metrics.equals(first.metrics)
    assert again.state is not None


def test_a_run_killed_between_its_stop_and_its_results_stays_stopped(
    regression, results, tmp_path, monkeypatch
):
    ft.simulate(**regression, callbacks=[StopAt(7)], out=tmp_path / "whole")

    class Killed(BaseException):
        pass

    def killed(run):
        raise Killed

    with monkeypatch.context() as patch:
        # the first thing after the last checkpoint
        patch.setattr("fedtide.simulation.result_files._metrics_table", killed)
        with pytest.raises(Killed):
            ft.simulate(**regression, callbacks=[StopAt(7)], out=tmp_path / "killed")
    ft.simulate(**regression, out=tmp_path / "killed", resume=True)
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


@pytest.mark.parametrize(("patience", "min_delta"), [(1, 0.0), (3, 0.0), (1, 0.02)])
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


@pytest.mark.parametrize(
    ("metric", "given", "declared", "is_stopped"),
    [
        ("loss", None, False, False),
        ("loss", False, False, True),
        ("figure", None, False, True),
        ("figure", None, True, False),
        ("figure", False, True, True),
    ],
)
def test_the_direction_of_a_metric_is_given_or_the_problems_or_its_names(
    metric, given, declared, is_stopped, regression, monkeypatch
):
    """A figure falls as the loss does; that is no improvement where higher is better."""
    original = Run._evaluate

    def evaluate(run):
        found = original(run)
        metrics = {**found.metrics, "figure": found.metrics["loss"]}
        lower = frozenset({"figure"} if declared else ())
        return Evaluation(metrics, found.clients, lower)

    monkeypatch.setattr(Run, "_evaluate", evaluate)
    stopping = EarlyStopping(metric, patience=1, lower_is_better=given)
    assert bool(ft.simulate(**regression, callbacks=[stopping]).stopped) == is_stopped


def test_values_that_are_not_numbers_are_no_improvement(regression, monkeypatch):
    original = Run._evaluate

    def evaluate(run):
        found = original(run)
        return replace(found, metrics={**found.metrics, "error": math.nan if run.ended else 1.0})

    monkeypatch.setattr(Run, "_evaluate", evaluate)
    result = ft.simulate(**regression, callbacks=[EarlyStopping("error", patience=2)])
    assert result.metrics["round"].to_list() == [0, 5, 10]


def test_invalid_callbacks_are_refused(regression):
    with pytest.raises(ft.InvalidInputError, match=r"^metric: .*'los'; did you mean 'loss'"):
        ft.simulate(**regression, callbacks=[EarlyStopping("los")])
    with pytest.raises(ft.InvalidInputError, match=r"^patience: 0 "):
        EarlyStopping(patience=0)
    with pytest.raises(ft.InvalidInputError, match=r"^callbacks: .*; .*in a list"):
        ft.simulate(**regression, callbacks=[print])


def test_an_error_in_a_callback_ends_the_run_with_that_error(regression, tmp_path):
    class Fails(Callback):
        def on_round_end(self, run):
            if run.round == 8:
                raise ZeroDivisionError

    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        ft.simulate(**regression, callbacks=[recorder, Fails()], out=tmp_path / "run")
    assert recorder.calls[-1] == ("error", "ZeroDivisionError")
    ft.simulate(**regression, out=tmp_path / "run", resume=True)


class RaiseAt(Callback):
    """Fails after a round."""

    def __init__(self, t):
        self.t = t

    def on_round_end(self, run):
        if run.round == self.t:
            raise KeyError("boom")


def test_a_run_that_fails_says_so_in_its_folder_until_it_is_continued(regression, tmp_path):
    """Reports said that it had not ended."""
    out, fields = tmp_path / "run", regression | {"rounds": 6}
    with pytest.raises(KeyError):
        ft.simulate(**fields, out=out, callbacks=[RaiseAt(3)])
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
    class Interrupting(Callback):
        def on_round_end(self, run):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ft.simulate(**regression, out=tmp_path / "run", callbacks=[Interrupting()])
    assert not (tmp_path / "run" / "failure.json").exists()
