"""TensorBoard, read back from its files, and Weights & Biases: live and from folders."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import fedtide as ft
from fedtide.callbacks import Callback
from fedtide.simulation.run_folder import RunFolder
from fedtide.tracking import TensorBoardTracker, Tracker, WandbTracker, make_tracker

FIELDS = {
    "problem": {"type": "regression", "clients": 5, "samples": 50, "features": 3, "informative": 2},
    "participation": {"type": "bernoulli", "rates": 0.5},
    "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
    "algorithm": {"type": "fedau", "cutoff": 7},
    "rounds": 4,
    "evaluation": {"every": 2},
    "trainer": "reference",
    "name": "mine",
    "seed": 3,
}


class Fails(Callback):
    def on_round_end(self, run):
        if run.round == 3:
            raise ZeroDivisionError("no luck")


# TensorBoard


@pytest.fixture
def tensorboard():
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder):
        """Return the scalars (round, value) by name, and the texts by name."""
        events = EventAccumulator(str(folder)).Reload()
        scalars = {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
        texts = {
            tag.removesuffix("/text_summary"): events.Tensors(tag)[0].tensor_proto.string_val[0]
            for tag in events.Tags()["tensors"]
        }
        return scalars, {name: text.decode() for name, text in texts.items()}

    return read


def rows(result, name):
    """Return what a tracker should have logged of a metric."""
    table = result.metrics.select("round", name).drop_nulls()
    return [(t, pytest.approx(value)) for t, value in table.rows()]


@pytest.mark.parametrize("live", [True, False])
def test_tensorboard_has_every_metric_and_the_experiment(live, tensorboard, tmp_path):
    tracker, out = TensorBoardTracker(tmp_path / "tensorboard"), tmp_path / "runs" / "one"
    callbacks = [tracker] if live else []
    result = ft.simulate(**FIELDS, out=out, callbacks=callbacks)
    assert tracker.log_run(out) == str(tmp_path / "tensorboard" / "runs" / "one")
    assert len(list((tmp_path / "tensorboard").rglob("events*"))) == 1
    scalars, texts = tensorboard(tmp_path / "tensorboard" / "runs" / "one")
    assert set(scalars) == set(result.metrics.columns) - {"round"}
    for name in scalars:
        assert scalars[name] == rows(result, name)
    assert "cutoff: 7" in texts["experiment"]


def test_tensorboard_notes_failures_and_a_resumed_run_replaces_them(tensorboard, tmp_path):
    tracker, out = TensorBoardTracker(tmp_path / "tb"), tmp_path / "one"
    with pytest.raises(ZeroDivisionError):
        ft.simulate(**FIELDS, out=out, callbacks=[tracker, Fails()])
    assert tensorboard(tmp_path / "tb" / "one")[1]["failure"] == "no luck"
    result = ft.simulate(**FIELDS, out=out, callbacks=[tracker], resume=True)
    scalars, texts = tensorboard(tmp_path / "tb" / "one")
    assert "failure" not in texts
    assert scalars["loss"] == rows(result, "loss")


# Weights & Biases


@pytest.fixture
def wandb(monkeypatch):
    """Replace the library, which needs an account, by one that keeps what it is told."""

    def init(**given):
        file = Path(given["dir"], f"wandb/offline-run/run-{given['id']}.wandb")

        def finish(exit_code):
            file.parent.mkdir(parents=True)
            file.write_text("")
            library.exit_code = exit_code

        library.config, library.rows, library.summary = given["config"], [], {}
        log = lambda row, step: library.rows.append((step, row))  # noqa: E731
        return SimpleNamespace(log=log, summary=library.summary, finish=finish)

    library = ModuleType("wandb")
    library.init, library.Settings = init, dict
    monkeypatch.setitem(sys.modules, "wandb", library)
    return library


@pytest.mark.parametrize("live", [True, False])
def test_wandb_has_every_metric_and_the_configuration(live, wandb, tmp_path):
    tracker, out = WandbTracker("project", tmp_path / "wb"), tmp_path / "one"
    result = ft.simulate(**FIELDS, out=out, callbacks=[tracker] if live else [])
    if not live:
        tracker.log_run(out, {"method": "fedau"})
    assert [(step, row["loss"]) for step, row in wandb.rows] == rows(result, "loss")
    assert wandb.config["algorithm.cutoff"] == 7
    assert (wandb.config.get("method"), wandb.exit_code) == (None if live else "fedau", 0)
    assert wandb.summary["rounds_per_second"] > 0
    assert tracker.log_run(out) == tracker.find_logged(RunFolder(out))


def test_wandb_notes_failures(wandb, tmp_path):
    with pytest.raises(ZeroDivisionError):
        ft.simulate(**FIELDS, callbacks=[WandbTracker("project", tmp_path), Fails()])
    assert (wandb.summary["failure"], wandb.exit_code) == ("no luck", 1)


# Both


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("tensorboard", r"'fedtide\[tensorboard\]'"),
        ("wandb", r"'fedtide\[wandb\]'"),
        ("wb", "'wb'"),
    ],
)
def test_an_unknown_tracker_or_a_missing_library_is_refused(wanted, problem, tmp_path, monkeypatch):
    for name in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ft.InvalidInputError, match=f"^track: .*{problem}"):
        make_tracker(wanted, tmp_path / "runs", "experiment")


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("mlflow", "sqlite:///{beside}/mlflow.db"),
        ("mlflow:sqlite:///{beside}/other.db", "sqlite:///{beside}/other.db"),
        ("tensorboard", "{beside}/tensorboard"),
        ("tensorboard:here", "here"),
    ],
)
def test_stores_lie_beside_the_runs_unless_others_are_named(wanted, place, tmp_path, monkeypatch):
    monkeypatch.setattr("fedtide.tracking.selection.MlflowTracker", Named)
    monkeypatch.setattr("fedtide.tracking.selection.TensorBoardTracker", Named)
    tracker = make_tracker(wanted.format(beside=tmp_path), tmp_path / "runs", "x")
    assert str(tracker.place) == place.format(beside=tmp_path)


class Named:
    def __init__(self, place, *_):
        self.place = place


class Memory(Tracker):
    """A store in memory that is away while `fails` is among the names of what is asked of it."""

    def __init__(self):
        self.fails, self.rounds, self.calls = set(), [], []

    def _asked(self, what):
        self.calls.append(what)
        if what in self.fails:
            raise ConnectionError(f"no answer to {what}\nfor an hour")

    def open(self, run):
        self._asked("open")
        self.rounds.clear()
        return "id"

    def log(self, rows):
        self._asked("log")
        self.rounds += [row["round"] for row in rows]

    def close(self, folder, failure):
        self._asked(f"close: {failure}")

    def find_logged(self, folder):
        return None


class Outage(Callback):
    """The store is away between two rounds."""

    def __init__(self, store, begin, end):
        self.store, self.begin, self.end = store, begin, end

    def on_round_end(self, run):
        self.store.fails = {"log", "close: "} if self.begin <= run.round < self.end else set()


@pytest.mark.parametrize(("begin", "end"), [(1, 3), (0, 4), (1, 9)])
def test_a_run_survives_its_store_and_missing_evaluations_follow(begin, end, caplog, tmp_path):
    store, out = Memory(), tmp_path / "one"
    result = ft.simulate(
        **FIELDS | {"evaluation": {"every": 1}},
        out=out,
        callbacks=[store, Outage(store, begin, end)],
    )
    assert result.metrics["round"].to_list() == [0, 1, 2, 3, 4]
    assert store.rounds == ([0, 1, 2, 3, 4] if end <= 4 else [0, 1])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "track: the store fails (ConnectionError: no answer to log), the run goes on; "
        f"log_run('{out}') logs it afterwards"
    )
    store.fails = set()
    store.log_run(out)
    assert store.rounds[-5:] == [0, 1, 2, 3, 4]
