"""Runs over clients with names: everything that is written, read or said names them."""

import numpy as np
import polars as pl
import pytest
import torch

import fedtide as ft
from fedtide.participation import write_log
from fedtide.plotting.saving import figure_svg
from fedtide.plotting.style import method_styles
from fedtide.report.figures.client_influence import influence_figures
from fedtide.report.grouping import group_by_method
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

    # So is a run over a trace in which the same clients are there at the same time.
    trace = log.select("client", start="round", end=pl.col("round") + 1)
    trace.write_csv(tmp_path / "trace.csv")
    process = {"type": "trace", "file": str(tmp_path / "trace.csv"), "round_seconds": 1}
    again = ft.simulate(**experiment(data, participation=process))
    assert (again.model == first.model).all()
    assert again.participation.equals(log)

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
    "groups": lambda values: {
        "participation": {"type": "group-cycle", "groups": values, "rounds": 1}
    },
    "groups of FedAU": lambda values: {"algorithm": {"type": "fedau", "groups": values}},
    "weights": lambda values: {"participation": {"type": "weighted", "size": 2, "weights": values}},
    "objective": lambda values: {"objective": values},
    "known rates": lambda values: {"algorithm": {"type": "known-rates", "rates": values}},
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


def test_the_ledger_of_a_federation_is_replayed_by_name(data, tmp_path):
    """A ledger with the rounds of a run, exported to a file, makes the same run."""
    pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")
    from fedtide.flower.ledger.ledger import Entry, Ledger, read_ledger

    first = ft.simulate(**experiment(data))
    log = first.participation
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(url)
    for t in range(6):
        rows = log.filter(pl.col("round") == t)
        entries = [Entry(c, s, w) for c, s, w in rows.select("client", "stage", "weight").rows()]
        ledger.commit(t, entries, time=t)
    ledger.close()
    exported = tmp_path / "ledger.parquet"
    write_log(exported, read_ledger(url))
    again = ft.simulate(**experiment(data, participation={"type": "replay", "log": str(exported)}))
    assert (again.model == first.model).all()
    roster = first.clients.select("client")
    assert ft.audit(url, roster=roster).clients()["client"].to_list() == USERS


def test_the_report_labels_clients_by_name(data, tmp_path):
    """Names are no mathematics, no HTML, and not too long for a title."""
    names = ["$x_{$", "<b>bold</b>", "user_" + "x" * 60]
    users = pl.Series("user", [names[n % 3] for n in range(400)])
    for split in ("train", "test"):
        file = data / f"{split}.parquet"
        frame = pl.read_parquet(file)
        frame.with_columns(users.head(len(frame))).write_parquet(file)
    rates = [0.9, 0.6, 0.4]
    fields = experiment(data, rounds=12, participation={"type": "bernoulli", "rates": rates})
    fields["problem"]["clients"] = 3
    ft.simulate(**fields, out=tmp_path / "run")
    runs = load_runs([tmp_path / "run"])
    groups = group_by_method(runs)
    figures = influence_figures(groups, method_styles(groups))
    figure = {f.name: f for f in figures}["weights-time"].figure
    titles = [panel.get_title() for panel in figure.axes]
    assert sorted(title.split(",")[0] for title in titles) == sorted(
        ["client $x_{$", "client <b>bold</b>", "client user_xxxxxxxxxxxx…"]
    )
    svg = figure_svg(figure, "weights", "weights")
    assert "client $x_{$, p = 0.9" in svg
    assert "<b>bold" not in svg


def test_a_resumed_run_is_the_same(data, tmp_path, killed_at, results):
    fields = experiment(data, checkpoint={"every": 2})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ft.simulate(**fields, out=whole)
    killed_at(5, fields, parts)
    assert pl.read_parquet(parts / "log" / "000000004.parquet").schema["client"] == pl.String
    resumed = ft.simulate(**fields, out=parts, resume=True)
    assert results(parts) == results(whole)
    assert ft.simulate(**fields, out=parts, resume=True).participation.equals(resumed.participation)


def test_divergence_names_the_clients(data):
    fields = experiment(data, local={"steps": 50, "lr": 1e38, "batch_size": 1})
    with pytest.raises(ft.InvalidInputError, match=r"\(clients 'user_\d{4}'(, 'user_\d{4}')*"):
        ft.simulate(**fields)


@pytest.mark.parametrize("kinds", [(int, int), (int, str), (str, int), (str, str)])
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
