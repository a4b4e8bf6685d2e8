"""Runs logged to a real MLflow store, read back with MLflow alone."""

import json
import os
import shutil
import time

import numpy as np
import polars as pl
import pytest
import safetensors.numpy
import yaml

import fedtide as ft
from fedtide.simulation.run_folder import RunFolder
from fedtide.tracking import make_tracker

mlflow = pytest.importorskip("mlflow")

FIELDS = {
    "problem": {"type": "regression", "clients": 5, "samples": 50, "features": 3, "informative": 2},
    "participation": {"type": "bernoulli", "rates": 0.5},
    "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
    "algorithm": {"type": "fedau", "cutoff": 7},
    "rounds": 4,
    "evaluation": {"every": 2},
    "trainer": "reference",
}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Return a finished run in the default store: its folder, the tracker, its id."""
    out = tmp_path_factory.mktemp("runs") / "one"
    ft.simulate(**FIELDS, name="it's a", seed=3, out=out)
    tracks = make_tracker("mlflow", out, "experiment")
    return out, tracks, tracks.log_run(out, {"method": "fedau", "local.lr": 0.05})


def test_parameters_metrics_and_tags_can_be_read_back(tracked):
    out, tracks, run_id = tracked
    run = mlflow.MlflowClient(tracks.uri).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "it's a seed 3"
    assert run.data.params["algorithm.type"] == "fedau"
    assert run.data.params["algorithm.cutoff"] == "7"
    assert run.data.params["local.lr"] == "0.05"
    assert run.data.params["seed"] == "3"
    assert run.data.tags["sweep.method"] == "fedau"
    history = mlflow.MlflowClient(tracks.uri).get_metric_history(run_id, "loss")
    metrics = pl.read_parquet(out / "metrics.parquet")
    assert [one.step for one in history] == metrics["round"].to_list() == [0, 2, 4]
    assert [one.value for one in history] == metrics["loss"].to_list()


def test_artifacts_can_be_fetched(tracked, tmp_path):
    out, tracks, run_id = tracked
    fetched = mlflow.artifacts.download_artifacts(
        run_id=run_id, dst_path=str(tmp_path), tracking_uri=tracks.uri
    )
    assert (out.parent / "mlartifacts").is_dir()
    experiment = yaml.safe_load((tmp_path / "experiment.yaml").read_text())
    assert experiment == yaml.safe_load((out / "experiment.yaml").read_text())
    model = safetensors.numpy.load_file(f"{fetched}/model/model.safetensors")
    wanted = safetensors.numpy.load_file(out / "model.safetensors")
    assert {k: v.tolist() for k, v in model.items()} == {k: v.tolist() for k, v in wanted.items()}
    assert (tmp_path / "figures" / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_tracked_once_but_another_one_in_its_folder_as_well(tracked, tmp_path):
    out, tracks, run_id = tracked
    assert tracks.log_run(out) == run_id
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    former = tracks.log_run(copy)
    later = time.time() + 10  # of a run that replaced the former one
    os.utime(copy / "summary.json", (later, later))
    assert tracks.log_run(copy) not in (run_id, former)


@pytest.mark.process
def test_a_server_that_does_not_answer_is_given_up_within_a_minute(tmp_path, monkeypatch):
    """MLflow's own setting is more than four minutes, for each request."""
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    began = time.monotonic()
    with pytest.raises(ft.InvalidInputError, match=r"^track: the store http://127.0.0.1:9 "):
        make_tracker("mlflow:http://127.0.0.1:9", tmp_path / "out", "experiment")
    assert time.monotonic() - began < 60


def test_a_failed_run_is_tagged_with_its_error_and_replaced_when_tracked_again(tracked, tmp_path):
    _, tracks, _ = tracked
    out = tmp_path / "failed"
    with pytest.raises(ft.InvalidInputError):
        ft.simulate(**(FIELDS | {"local": {"steps": 2, "lr": 1e30}}), out=out)
    (out / "failure.json").write_text(json.dumps({"sentence": "local.lr: too high"}))
    client, run_id = mlflow.MlflowClient(tracks.uri), tracks.log_run(out)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["fedtide.failure"]) == ("FAILED", "local.lr: too high")
    again = tracks.log_run(out)
    assert again != run_id
    assert client.get_run(run_id).info.lifecycle_stage == "deleted"


def test_names_that_mlflow_refuses_do_not_keep_a_run_from_the_store(tracked, tmp_path):
    """Keys of the experiment may be the names of clients, and metrics may have any name."""
    _, tracks, _ = tracked
    names = ["ann@x", "b#1", "c//d", "e" * 300, "..", "Zoë"]
    rng = np.random.default_rng(0)
    data = pl.DataFrame({"x": rng.normal(size=60), "client": names * 10})
    problem = ft.problems.Supervised(
        train=data.with_columns(y=2 * pl.col("x")),
        inputs=["x"],
        target="y",
        clients="client",
        loss="mse",
        metrics={"error@1": ft.problems.Metric(distance, lower_is_better=True)},
    )
    rates = {name: 0.5 + i / 20 for i, name in enumerate(names)}
    participation = {"type": "bernoulli", "rates": rates}
    out = tmp_path / "one"
    given = FIELDS | {"problem": problem, "participation": participation, "seed": 1}
    result = ft.simulate(**given, out=out, callbacks=[tracks])
    run = mlflow.MlflowClient(tracks.uri).get_run(tracks.find_logged(RunFolder(out)))
    assert run.info.status == "FINISHED"
    assert run.data.params["participation.type"] == "bernoulli"
    assert run.data.params["participation.rates"].startswith("{'ann@x': 0.5, ")
    logged = run.data.metrics["train_error_1"]
    assert logged == pytest.approx(result.metrics["train_error@1"][-1])


def distance(outputs, targets):
    return (outputs.squeeze(-1) - targets).abs()
