"""Runs over clients with names: everything that is written, read or said names them."""

import numpy as np
import polars as pl
import pytest
import torch

import fedtide as ft
from fedtide.participation import write_log
from fedtide.report.loading import load_runs
from fedtide.report.weight_replay import history

USERS = [f"user_{n:04}" for n in range(200)]


@pytest.fixture
def data(tmp_path):
    """Return a folder with a sample of each class of each of 200 users, in mixed order."""
    folder, draw = tmp_path / "data", np.random.default_rng(0)
    folder.mkdir()
    features = draw.normal(size=(400, 3)).astype(np.float32)
    order = draw.permutation(400)
    train = {"image": features.tolist(), "label": order % 2, "user": np.repeat(USERS, 2)[order]}
    pl.DataFrame(train).write_parquet(folder / "train.parquet")
    pl.DataFrame(train).head(20).write_parquet(folder / "test.parquet")
    return folder


def experiment(data, **changes):
    return {
        "problem": {
            "type": "classification",
            "dataset": str(data),
            "clients": 200,
            "partition": {"type": "natural", "column": "user"},
        },
        "participation": {"type": "bernoulli", "rates": 0.05},
        "algorithm": "fedavg",
        "local": {"steps": 2, "lr": 0.1, "batch_size": 1},
        "rounds": 6,
        "seed": 1,
        "trainer": "reference",
        "evaluation": {"every": 3},
    } | changes


def test_a_trace_of_two_users_trains_these_two(data, tmp_path):
    trace = pl.DataFrame({"client": ["user_0199", "user_0150"], "start": [0, 0], "end": [9, 3]})
    trace.write_csv(tmp_path / "trace.csv")
    participation = {"type": "trace", "file": str(tmp_path / "trace.csv"), "round_seconds": 1}
    result = ft.simulate(**experiment(data, participation=participation))
    both, last = ["user_0150", "user_0199"], ["user_0199"]
    expected = [(t, user) for t in range(6) for user in (both if t < 3 else last)]
    assert result.participation.select("round", "client").rows() == expected
    trained = result.clients.filter(pl.col("participation") > 0)
    assert trained["client"].to_list() == both
    # The same as a run over the samples of these two alone.
    rows = pl.read_parquet(data / "train.parquet").filter(pl.col("user").is_in(both))
    only = tmp_path / "only"
    only.mkdir()
    rows.write_parquet(only / "train.parquet")
    (only / "test.parquet").write_bytes((data / "test.parquet").read_bytes())
    alone = experiment(only, participation=participation)
    alone["problem"]["clients"] = 2
    alone["local"] = {"steps": 2, "lr": 0.1}
    full = experiment(data, participation=participation, local=alone["local"])
    assert (ft.simulate(**alone).model == ft.simulate(**full).model).all()


def test_names_are_the_same_in_every_file_and_figure(data, tmp_path):
    """Run, log, audit, replay, trace and report, by name and bit for bit."""
    out = tmp_path / "run"
    first = ft.simulate(**experiment(data), out=out)
    assert first.clients["client"].to_list() == USERS
    assert pl.read_parquet(out / "clients.parquet")["client"].to_list() == USERS
    log = pl.read_parquet(out / "participation.parquet")
    assert log.equals(first.participation)
    assert set(log["client"]) <= set(USERS)
    samples = dict(first.clients.select("client", "samples").rows())
    assert set(samples.values()) == {2}

    # The audit of the folder has the same clients and counts.
    audit = ft.audit(out)
    seen = log.filter(pl.col("stage") == "used").group_by("client").len()
    counted = audit.clients().select("client", "rounds").filter(pl.col("rounds") > 0)
    assert dict(counted.rows()) == dict(seen.rows())
    assert list(audit.to_dict()["rates"]) == USERS
    assert len(audit.to_dict()["never_seen_clients"]) == 200 - len(seen)

    # A replay of the log, from Parquet or CSV, is the same run.
    write_log(tmp_path / "log.csv", log)
    for file in (out / "participation.parquet", tmp_path / "log.csv"):
        again = ft.simulate(**experiment(data, participation={"type": "replay", "log": str(file)}))
        assert (again.model == first.model).all()
        assert again.participation.equals(log)
        assert again.clients.drop("rate").equals(first.clients.drop("rate"))

    # The report names clients, and finds their weights: 200 / |S_t| for plain averaging.
    (run,) = load_runs([out])
    found = history(run)
    sizes = log.group_by("round").len().sort("round")["len"].to_numpy()
    expected = [200 / sizes[t] for t in log["round"]]
    ids = [USERS.index(name) for name in log["client"]]
    assert run.used_rows()["client"].to_list() == ids
    order = np.lexsort((found.clients, found.rounds))
    assert found.clients[order].tolist() == ids
    assert found.weights[order] == pytest.approx(expected / (np.sum(expected) / 6 / 200))

    # A folder whose log names other clients is refused.
    first.clients.head(3).write_parquet(out / "clients.parquet")
    with pytest.raises(ft.InvalidInputError, match=r"^.*participation.parquet: no client .*; "):
        history(load_runs([out])[0])


SIX = {f"user_{n:04}": 0.1 * (n + 1) for n in (5, 0, 3, 1, 4, 2)}
SETTINGS = {
    "rates": lambda values: {"participation": {"type": "bernoulli", "rates": values}},
    "groups": lambda values: {"algorithm": {"type": "fedau", "groups": values}},
    "objective": lambda values: {"objective": values},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_values_by_name_are_those_of_a_list_in_order(data, tmp_path, setting):
    rows = pl.read_parquet(data / "train.parquet").filter(pl.col("user").is_in([*SIX]))
    rows.write_parquet(data / "train.parquet")
    as_groups = {user: int(10 * rate) % 3 for user, rate in SIX.items()}
    values = as_groups if "groups" in setting else dict(SIX)
    run = experiment(data)
    run["problem"]["clients"] = 6
    listed = ft.simulate(**run | SETTINGS[setting]([values[user] for user in sorted(values)]))
    named = run | SETTINGS[setting](values) | {"out": tmp_path / "out"}
    assert np.array_equal(ft.simulate(**named).model, listed.model)
    assert np.array_equal(ft.simulate(**named, resume=True).model, listed.model)
    stranger = SETTINGS[setting](values | {"user_0009": 1})
    with pytest.raises(ft.InvalidInputError, match="no client is called 'user_0009'"):
        ft.simulate(**run | stranger)
    del values["user_0003"]
    with pytest.raises(ft.InvalidInputError, match="nothing for 'user_0003'"):
        ft.simulate(**run | SETTINGS[setting](values))


def test_a_resumed_run_is_the_same(data, tmp_path, killed_at, results):
    fields = experiment(data, checkpoint={"every": 2})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ft.simulate(**fields, out=whole)
    killed_at(5, fields, parts)
    assert pl.read_parquet(parts / "log" / "000000004.parquet").schema["client"] == pl.String
    resumed = ft.simulate(**fields, out=parts, resume=True)
    assert results(parts) == results(whole)
    assert ft.simulate(**fields, out=parts, resume=True).participation.equals(resumed.participation)


@pytest.mark.parametrize("kinds", [(int, str), (str, int)])
def test_test_samples_belong_to_clients_whose_names_are_written_alike(kinds):
    """Client 9 has test samples 1 and 4, and 10 has 0; 77 is a stranger."""
    train, test = (
        [kind(name) for name in names]
        for kind, names in zip(kinds, ([10, 9, 10, 9], [10, 9, 77, 77, 9]), strict=True)
    )
    x = np.arange(5, dtype=np.float32)
    problem = ft.problems.Supervised(
        train=pl.DataFrame({"x": x[:4], "y": 0 * x[:4], "user": train}),
        test=pl.DataFrame({"x": x, "y": 0 * x, "user": test}),
        inputs=["x"],
        target="y",
        clients="user",
        model=torch.nn.Linear(1, 1, bias=False),
        loss="mse",
    )
    task = problem.prepare(0, torch.device("cpu"), torch.float64)
    losses = task.evaluate(torch.ones(1, dtype=torch.float64)).clients["test_loss"]
    expected = {"9": (1**2 + 4**2) / 2, "10": 0.0}
    names = map(str, task.population.names.tolist())
    assert dict(zip(names, losses.tolist(), strict=True)) == expected
