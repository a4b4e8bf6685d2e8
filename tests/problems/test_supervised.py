"""Supervised problems on data of every kind, against closed forms and plain PyTorch."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import r2_score, roc_auc_score
from torch import nn
from torch.nn import functional

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.problems import Dirichlet, Metric, SetMetric, SharedPool, Supervised
from fedtide.problems.losses import LOSSES
from fedtide.problems.partitions import StoredShards
from fedtide.simulation.experiment import BUILDER

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
USERS = np.array([f"user_{n:02d}" for n in range(12)])
ROWS = 240
OWNERS = np.concatenate([np.arange(12), RNG.integers(0, 12, ROWS - 12)])
FEATURES = RNG.normal(size=(ROWS, 3)).astype(np.float32)
NUMBERS = FEATURES @ np.array([1.0, -2.0, 0.5], dtype=np.float32) + 1
CLASSES = np.array(["cat", "dog", "eel"])[FEATURES.argmax(1)]
LOCAL = ft.LocalTraining(steps=3, batch_size=4, lr=0.05)


def columns() -> dict:
    return {
        "a": FEATURES[:, 0],
        "b": FEATURES[:, 1],
        "c": FEATURES[:, 2],
        "number": NUMBERS,
        "kind": CLASSES.tolist(),
        "user": USERS[OWNERS].tolist(),
    }


def lists():
    return columns() | {"list": FEATURES}


def linear(outputs=1, inputs=3):
    return lambda: nn.Linear(inputs, outputs)


def prepare(problem, seed=0, dtype=torch.float64):
    return problem.prepare(seed, CPU, dtype)


def regression(train=None, **fields):
    given_fields = {
        "train": columns() if train is None else train,
        "inputs": ["a", "b", "c"],
        "target": "number",
        "clients": "user",
        "model": linear(),
        "loss": "mse",
    }
    return Supervised(**given_fields | fields)


def run(problem, **fields):
    given_fields = {
        "participation": ft.participation.Bernoulli(0.5),
        "algorithm": ft.algorithms.FedAU(),
        "local": LOCAL,
        "rounds": 6,
        "evaluation": {"every": 3},
        "trainer": "reference",
    }
    return ft.simulate(problem=problem, **given_fields | fields)


class TensorRows(torch.utils.data.Dataset):
    """A map-style data set of mappings."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return {name: column[row] for name, column in columns().items()}


def write(path, suffix):
    frame = pl.DataFrame(columns())
    file = path / f"t{suffix}"
    frame.write_parquet(file) if suffix == ".parquet" else frame.write_csv(file)
    return file


SOURCES = {
    "arrays": lambda path: columns(),
    "pandas": lambda path: pd.DataFrame(columns()),
    "hugging-face": lambda path: Dataset.from_dict(columns()),
    "torch": lambda path: TensorRows(),
    "parquet": lambda path: write(path, ".parquet"),
    "csv": lambda path: write(path, ".csv"),
}


def test_a_folder_holds_training_and_test_samples(tmp_path):
    frame = pl.DataFrame(columns())
    frame.write_csv(tmp_path / "train.csv")
    frame[:30].write_parquet(tmp_path / "test.parquet")
    task = prepare(regression(tmp_path))
    assert (len(task.data.train), len(task.data.test)) == (ROWS, 30)
    (tmp_path / "train.csv").unlink()
    with pytest.raises(InvalidInputError, match=r"^train: the folder .* has no train.parquet"):
        prepare(regression(tmp_path))


def test_clients_are_counted_and_named_by_their_column():
    task = prepare(regression())
    assert task.population.clients == len(USERS)
    np.testing.assert_array_equal(task.population.names, USERS)
    np.testing.assert_array_equal(task.population.samples, np.bincount(OWNERS))
    for n in range(len(USERS)):
        held = np.sort(task.data.shards.held_by(n))
        np.testing.assert_array_equal(held, np.flatnonzero(n == OWNERS))


def test_a_full_round_of_regression_is_the_mean_gradient_step_of_plain_pytorch():
    problem = regression()
    local = ft.LocalTraining(steps=1, lr=0.1)
    result = run(
        problem, participation="full", algorithm="fedavg", local=local, rounds=1, dtype="float64"
    )
    start = prepare(problem).module(prepare(problem).start)
    x, y = torch.tensor(FEATURES).double(), torch.tensor(NUMBERS).double()
    gradients = []
    for n in range(len(USERS)):
        own = torch.tensor(n == OWNERS)
        start.zero_grad()
        functional.mse_loss(start(x[own]).squeeze(1), y[own]).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in start.parameters()]))
    before = torch.cat([p.detach().flatten() for p in start.parameters()])
    expected = before - 0.1 * torch.stack(gradients).mean(0)
    np.testing.assert_allclose(result.model, expected.numpy(), rtol=0, atol=1e-12)


def test_losses_equal_those_of_pytorch():
    outputs, numbers = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64)
    classes = torch.tensor([0, 1, 2, 1, 0])
    pairs = {
        "mse": functional.mse_loss(outputs, numbers, reduction="none").mean(1),
        "mae": functional.l1_loss(outputs, numbers, reduction="none").mean(1),
        "huber": functional.huber_loss(outputs, numbers, reduction="none").mean(1),
        "bce": functional.binary_cross_entropy_with_logits(outputs, numbers, reduction="none").mean(
            1
        ),
    }
    for name, expected in pairs.items():
        torch.testing.assert_close(LOSSES[name](outputs, numbers), expected)
    torch.testing.assert_close(
        LOSSES["cross_entropy"](outputs, classes),
        functional.cross_entropy(outputs, classes, reduction="none"),
    )


def test_next_token_loss_ignores_padding_and_the_last_output():
    logits = torch.randn(2, 4, 7, dtype=torch.float64)
    tokens, mask = torch.randint(7, (2, 4)), torch.tensor([[True] * 4, [True, True, False, False]])
    expected = [
        functional.cross_entropy(logits[0, :3], tokens[0, 1:]),
        functional.cross_entropy(logits[1, :1], tokens[1, 1:2]),
    ]
    torch.testing.assert_close(LOSSES["next_token"](logits, tokens, mask), torch.stack(expected))


def test_the_accuracy_of_the_next_token_is_called_accuracy():
    """Logits that always say the token after the present one, on tokens that count up or repeat."""
    successor = nn.Embedding.from_pretrained(torch.eye(9).roll(1, dims=1) * 9, freeze=False)
    rows = {"x": [[1, 2, 3, 4], [5, 6], [7, 7]], "client": [0, 0, 1]}
    for metrics in (None, ["accuracy"]):
        fields = {"model": successor, "target": None, "loss": "next_token", "metrics": metrics}
        task = prepare(Supervised(rows, test=rows, **fields))
        assert task.evaluate(task.start).metrics["test_accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(InvalidInputError, match="the last token is only a target"):
        prepare(Supervised(rows, **fields | {"model": Shortened}))


class Shortened(nn.Embedding):
    """Logits for all tokens but the last one."""

    def __init__(self):
        super().__init__(9, 9)

    def forward(self, tokens):
        return super().forward(tokens[:, :-1])


def test_text_labels_are_encoded_in_sorted_order_and_kept():
    task = prepare(regression(target="kind", loss="cross_entropy", model=linear(3)))
    codes = np.searchsorted(["cat", "dog", "eel"], CLASSES)
    np.testing.assert_array_equal(task.data.train.target.numpy(), codes)
    assert task.class_names == ("cat", "dog", "eel")
    np.testing.assert_allclose(task.population.class_shares.sum(1), 1)


def test_text_with_two_values_is_a_binary_target():
    binary = columns() | {"answer": np.where(NUMBERS > 1, "yes", "no").tolist()}
    task = prepare(regression(binary, target="answer", loss="bce"))
    np.testing.assert_array_equal(task.data.train.target.numpy(), (NUMBERS > 1).astype(float))
    evaluation = task.evaluate(torch.zeros(4, dtype=torch.float64))
    assert evaluation.metrics["train_accuracy"] == pytest.approx((NUMBERS <= 1).mean())


def test_several_inputs_reach_forward_in_order_or_by_name():
    class Ratings(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(4, 2), nn.Embedding(5, 2)

        def forward(self, user, item):
            return (self.users(user) * self.items(item)).sum(1)

    rows = {
        "u": RNG.integers(0, 4, 60),
        "i": RNG.integers(0, 5, 60),
        "stars": RNG.normal(size=60),
        "user": np.arange(60) % 3,
    }
    shared = {"train": rows, "target": "stars", "clients": "user", "model": Ratings, "loss": "mse"}
    by_name = run(Supervised(inputs={"item": "i", "user": "u"}, **shared))
    in_order = run(Supervised(inputs={"user": "u", "item": "i"}, **shared))
    np.testing.assert_allclose(by_name.model, in_order.model, rtol=1e-5)


def test_sequences_of_different_lengths_reach_the_network_and_the_loss_with_a_mask():
    lengths = RNG.integers(1, 6, 40)
    tokens = [RNG.integers(1, 9, size).tolist() for size in lengths]
    seen = []

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(9, 3)

        def forward(self, tokens, mask):
            embedded = self.embedding(tokens) * mask.unsqueeze(-1)
            return embedded.sum(1) / mask.sum(1, keepdim=True)

    def loss(outputs, target, mask):
        seen.append(mask)
        return functional.cross_entropy(outputs, target, reduction="none")

    rows = {"text": tokens, "label": RNG.integers(0, 3, 40), "who": np.arange(40) % 4}
    problem = Supervised(
        train=rows, inputs="text", target="label", clients="who", model=Mean, loss=loss, metrics={}
    )
    task = prepare(problem)
    weights = task.layout.unflatten(task.start)["embedding.weight"]
    expected = [
        functional.cross_entropy(weights[t].mean(0)[None], torch.tensor(label)[None])
        for t, label in zip(tokens, rows["label"], strict=True)
    ]
    actual = task.evaluate(task.start).metrics["train_loss"]
    assert actual == pytest.approx(float(torch.stack(expected).mean()))
    assert seen[0].shape == (2, 5)
    assert np.isfinite(run(problem, local=LOCAL).model).all()


class Attentive(nn.Module):
    """A network with an argument that is called as in the networks of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 3)

    def forward(self, input_ids, attention_mask=None):
        assert attention_mask.dtype == torch.int64
        embedded = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        return embedded.sum(1) / attention_mask.sum(1, keepdim=True)


@pytest.mark.parametrize("inputs", ["text", {"input_ids": "text"}])
def test_the_mask_reaches_networks_that_call_it_attention_mask(inputs):
    lengths = RNG.integers(1, 6, 40)
    tokens = [RNG.integers(1, 9, size).tolist() for size in lengths]
    rows = {"text": tokens, "label": np.arange(40) % 3, "who": np.arange(40) % 4}
    fields = {"target": "label", "clients": "who", "model": Attentive}
    task = prepare(Supervised(rows, inputs=inputs, **fields))
    weights = task.layout.unflatten(task.start)["embedding.weight"]
    expected = functional.cross_entropy(
        torch.stack([weights[row].mean(0) for row in tokens]), torch.tensor(rows["label"])
    )
    found = task.evaluate(task.start).metrics["train_loss"]
    assert found == pytest.approx(float(expected))
    assert np.isfinite(run(Supervised(rows, inputs=inputs, **fields), local=LOCAL).model).all()


@pytest.mark.parametrize("named", [True, False])
def test_a_mask_of_the_users_own_takes_the_place_of_that_of_padding(named):
    tokens = [[1, 2], [3, 4, 5], [6]]
    rows = {
        "text": tokens,
        "seen": [[1, 0], [0, 1, 1], [1]],
        "label": [0, 1, 2],
        "who": [0, 0, 1],
    }
    columns = {"input_ids": "text", "attention_mask": "seen"}
    inputs = columns if named else list(columns.values())
    task = prepare(Supervised(rows, inputs=inputs, target="label", clients="who", model=Attentive))
    weights = task.layout.unflatten(task.start)["embedding.weight"]
    means = torch.stack([weights[1], weights[4:6].mean(0), weights[6]])
    expected = functional.cross_entropy(means, torch.tensor(rows["label"]))
    found = task.evaluate(task.start).metrics["train_loss"]
    assert found == pytest.approx(float(expected))


def test_test_parts_of_clients_are_measured_on_their_own_samples():
    rows, tests = pd.DataFrame(columns()), pd.DataFrame(columns()).iloc[50:170]
    result = run(regression(rows, test=tests, metrics=["mae"]), rounds=3)
    weight, bias = result.model[:3], result.model[3]
    errors = np.abs(FEATURES @ weight + bias - NUMBERS)[50:170]
    owners = OWNERS[50:170]
    expected = [errors[owners == n].mean() if (owners == n).any() else np.nan for n in range(12)]
    np.testing.assert_allclose(result.clients["test_mae"].to_numpy(), expected, rtol=1e-4)
    assert result.metrics["test_mae"][-1] == pytest.approx(errors.mean(), rel=1e-4)


def test_a_test_set_of_strangers_alone_is_refused():
    tests = pd.DataFrame(columns()).iloc[:20].assign(user="stranger")
    with pytest.raises(InvalidInputError, match=r"^test: no client of train .*stranger"):
        prepare(regression(test=tests))


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8), st.floats(0.05, 0.9), st.integers(0, 9)
)
def test_held_out_samples_are_a_share_of_every_client_and_never_all(sizes, share, seed):
    owners = np.repeat(np.arange(len(sizes)), sizes)
    rows = {"x": np.arange(len(owners), dtype=np.float32)[:, None], "y": np.zeros(len(owners))}
    problem = Supervised(
        train={**rows, "client": owners}, test=share, model=linear(1, 1), loss="mse"
    )
    if all(min(round(share * m), m - 1) == 0 for m in sizes):
        return  # nothing is held out
    task = prepare(problem, seed=seed)
    expected = [m - min(round(share * m), m - 1) for m in sizes]
    assert task.population.samples.tolist() == expected
    kept, held = (part.inputs[0].flatten().tolist() for part in (task.data.train, task.data.test))
    assert sorted(kept + held) == list(range(len(owners)))
    for value, owner in zip(held, task.data.test_owners, strict=True):
        assert owners[int(value)] == owner
    for n in range(len(sizes)):
        own = task.data.shards.held_by(n)
        assert {owners[int(kept[s])] for s in own} == {n}


def test_metrics_say_whether_lower_is_better():
    def bias(outputs, target):
        return outputs.squeeze(-1) - target

    metrics = {"mae": "mae", "bias": Metric(bias, lower_is_better=False)}
    evaluation = prepare(regression(metrics=metrics)).evaluate(torch.zeros(4, dtype=torch.float64))
    assert evaluation.lower_is_better == {"loss", "mae"}
    assert evaluation.metrics["train_bias"] == pytest.approx(-NUMBERS.mean(), rel=1e-5)


def test_uneven_classes_get_balanced_accuracy():
    kinds = np.array(["common"] * 18 + ["rare"] * 2)
    rows = {"x": np.zeros((20, 1)), "y": kinds.tolist(), "client": np.arange(20) % 2}
    problem = Supervised(train=rows, test=rows, model=linear(2, 1))
    task = prepare(problem)
    always_common = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    metrics = task.evaluate(always_common).metrics
    assert metrics["test_accuracy"] == pytest.approx(0.9)
    assert metrics["test_balanced_accuracy"] == pytest.approx(0.5)


def test_the_given_network_is_copied_and_its_parameters_are_the_start():
    net = nn.Linear(3, 1)
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    result = run(regression(model=net), record_iterates=True)
    np.testing.assert_array_equal(result.iterates[0], before.numpy())
    torch.testing.assert_close(torch.cat([p.flatten() for p in net.parameters()]), before)


def test_uint8_images_are_standardised_and_other_integers_stay():
    images = RNG.integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    rows = {"x": images, "y": np.arange(20) % 2, "client": np.arange(20) % 2}
    task = prepare(Supervised(train=rows, model="logistic"))
    torch.testing.assert_close(
        task.data.train.inputs[0], torch.tensor(images).double() / 255 * 2 - 1
    )
    task = prepare(Supervised(train=rows, model="logistic", normalise=(0.0, 1.0)))
    torch.testing.assert_close(task.data.train.inputs[0], torch.tensor(images).double() / 255)


MISTAKES = {
    "metric-called-like-a-column": ({"metrics": {"loss": "mae"}}, "metrics: 'loss' is the name"),
    "no-partition": ({"clients": 5}, "partition: missing"),
    "two-divisions": (
        {"partition": SharedPool(samples=5)},
        "partition: it has no effect if clients is a column",
    ),
    "unknown-loss": ({"loss": "mes"}, "loss: unknown 'mes'; did you mean 'mse'"),
    "unknown-column": ({"inputs": ["a", "z"]}, "inputs: .*'z'"),
    "text-input": ({"inputs": "kind"}, "inputs: .*text.*'3%' into 0.03"),
    "text-for-numbers": ({"target": "kind"}, "target: .*text.*cross_entropy"),
    "numbers-for-classes": ({"loss": "cross_entropy"}, "target: .*for numbers a loss"),
    "wrong-width": (
        {"target": "kind", "loss": "cross_entropy", "model": linear(2)},
        r"model: .*\(2, C\) with C = 3, got \(2, 2\); set the last layer's width",
    ),
    "loss-not-per-sample": (
        {"loss": lambda z, y: ((z.squeeze(1) - y) ** 2).mean()},
        r"loss: .*one number per sample, shape \(2,\)",
    ),
    "loss-that-fails": ({"loss": lambda z, y: z @ z}, "loss: it fails on outputs of shape"),
    "recurrent": (
        {"inputs": "list", "train": lists(), "model": lambda: nn.LSTM(3, 1, batch_first=True)}
        | {"loss": "mse"},
        "model: it returns a tuple; return the logits or predictions alone",
    ),
    "nothing-held-out": (
        {"train": columns() | {"user": np.arange(ROWS)}, "test": 0.4},
        "test: a share of 0.4 .*holds out none",
    ),
    "narrower-test": (
        {"train": lists(), "test": lists() | {"list": FEATURES[:, :2]}, "inputs": "list"},
        "test: its input 0 has another shape",
    ),
    "partition-without-classes": (
        {"target": ["a", "number"], "clients": 4, "partition": Dirichlet(0.1), "model": linear(2)},
        "partition: Dirichlet divides samples by class",
    ),
    "missing-client": (
        {"train": columns() | {"user": [None, *columns()["user"][1:]]}},
        r"clients: .*1 of 240 values is missing \(the first in row 0\)",
    ),
    "infinite-input": (
        {"train": columns() | {"a": np.where(np.arange(ROWS) == 5, np.inf, FEATURES[:, 0])}},
        "inputs: column 'a' .*row 5",
    ),
    "class-that-training-lacks": (
        {"test": pd.DataFrame(columns()).assign(kind="fox"), "target": "kind"}
        | {"loss": "cross_entropy", "model": linear(3)},
        "target: .*fox",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_common_mistakes_are_named_with_their_field(case):
    fields, pattern = MISTAKES[case]
    with pytest.raises(InvalidInputError, match=f"^{pattern}"):
        prepare(regression(**fields))


class Repeating(ft.problems.Partition):
    """Gives all clients the first samples, without saying so."""

    def split(self, labels, clients, seed, columns=None):
        return StoredShards.from_lists([np.arange(50)] * clients)


@pytest.mark.parametrize("partition", [SharedPool(samples=100), Repeating()])
def test_no_share_of_samples_that_clients_share_is_held_out(partition):
    with pytest.raises(InvalidInputError, match=r"^test: .*; give a table of test samples"):
        prepare(regression(clients=8, partition=partition, test=0.3))


def test_columns_that_are_not_used_may_hold_anything():
    unused = {"day": pd.date_range("2020-01-01", periods=ROWS), "note": [None] * ROWS}
    rows = pd.DataFrame(columns() | unused)
    assert prepare(regression(rows)).population.clients == len(USERS)
    natural = regression(rows, clients=12, partition=ft.problems.Natural("user"))
    assert prepare(natural).population.names.tolist() == USERS.tolist()


def test_the_fingerprint_follows_the_content_and_not_the_source(tmp_path):
    same = {regression(SOURCES[kind](tmp_path)).fingerprint() for kind in SOURCES if kind != "csv"}
    assert len(same) == 1
    changed = columns() | {"number": np.where(np.arange(ROWS) == 9, 0, NUMBERS)}
    assert regression(changed).fingerprint() not in same
    moved = columns() | {"user": np.roll(USERS[OWNERS], 1).tolist()}
    assert regression(moved).fingerprint() not in same


class Squeezed(nn.Module):
    """Gives (B,) instead of (B, 1)."""

    def __init__(self, outputs=1):
        super().__init__()
        self.linear = nn.Linear(3, outputs)

    def forward(self, x):
        return self.linear(x).squeeze(-1)


@pytest.mark.parametrize("target", ["number", ["number"]])
@pytest.mark.parametrize("model", [linear(), Squeezed])
def test_a_missing_dimension_of_one_never_pairs_outputs_with_all_targets(model, target):
    expected = prepare(regression()).evaluate(torch.ones(4, dtype=torch.float64)).metrics["loss"]
    task = prepare(regression(model=model, target=target))
    assert task.evaluate(torch.ones(4, dtype=torch.float64)).metrics["loss"] == pytest.approx(
        expected, rel=1e-12
    )


def test_a_metric_of_a_file_says_whether_lower_is_better():
    plain = {"mine": {"function": "fedtide.problems.losses:mae", "lower_is_better": False}}
    evaluation = prepare(regression(metrics=plain)).evaluate(torch.zeros(4, dtype=torch.float64))
    assert "mine" not in evaluation.lower_is_better
    named = prepare(regression(metrics=["fedtide.problems.losses:mae"]))
    assert "train_mae" in named.evaluate(torch.zeros(4, dtype=torch.float64)).metrics
    with pytest.raises(InvalidInputError, match=r"^metrics: 'mine' needs the keys"):
        regression(metrics={"mine": {"function": "mae"}})


class Networks(ft.callbacks.Callback):
    """Keeps the network of every evaluation."""

    def __init__(self):
        self.networks = []

    def on_evaluation(self, view):
        self.networks.append(view.module())


def rank_sum(outputs, targets):
    """The area under the ROC curve, from the ranks of the positive samples (Mann & Whitney)."""
    ranks = outputs.argsort().argsort() + 1.0
    positives = targets.sum()
    pairs = positives * (len(targets) - positives)
    return (ranks[targets > 0].sum() - positives * (positives + 1) / 2) / pairs


def test_metrics_of_the_whole_test_set_are_those_of_scikit_learn_by_hand():
    table = pd.DataFrame(columns() | {"high": (NUMBERS > 1).astype(float)})
    metrics = {
        "auc": SetMetric(rank_sum),
        "r2_of_logits": SetMetric(lambda outputs, targets: r2_score(targets, outputs)),
        "accuracy": "accuracy",
    }
    problem = regression(table, target="high", loss="bce", test=0.3, metrics=metrics)
    seen = Networks()
    result = run(problem, seed=4, callbacks=[seen], evaluation={"every": 1})
    held_out = table.iloc[result.held_out]
    assert len(held_out) == sum(round(0.3 * m) for m in np.bincount(OWNERS))
    inputs = torch.tensor(held_out[["a", "b", "c"]].to_numpy())
    assert len(seen.networks) == len(result.metrics) == 7
    for network, row in zip(seen.networks, result.metrics.iter_rows(named=True), strict=True):
        scores = network(inputs).detach().squeeze(1).numpy()
        assert row["test_auc"] == pytest.approx(roc_auc_score(held_out["high"], scores))
        assert row["test_r2_of_logits"] == pytest.approx(r2_score(held_out["high"], scores))
        assert row["test_accuracy"] == pytest.approx(((scores > 0) == held_out["high"]).mean())
    assert "train_auc" not in result.metrics.columns


def test_metrics_of_the_whole_test_set_in_a_file():
    problem = regression(metrics={"r2": SetMetric(rank_sum)}, test=0.2)
    plain = BUILDER.to_plain(problem, in_memory=True)["metrics"]["r2"]
    assert plain["type"] == "set"
    mean = {"type": "set", "function": f"{__name__}:mean_error"}
    task = prepare(regression(metrics={"mean_error": mean, "mae": "mae"}, test=0.2))
    evaluation = task.evaluate(torch.ones(4, dtype=torch.float64))
    assert evaluation.metrics["test_mean_error"] == pytest.approx(evaluation.metrics["test_mae"])
    assert "mean_error" in evaluation.lower_is_better
    with pytest.raises(InvalidInputError, match=r"^metrics\.mean_error: .*; give test, such as 0"):
        prepare(regression(metrics={"mean_error": mean}))


def mean_error(outputs, targets):
    return (outputs - targets).abs().mean()


def test_metrics_of_the_whole_test_set_get_the_mask_of_sequences():
    tokens = [[1, 2, 3], [4], [5, 6], [7, 8]]
    rows = {"x": tokens, "y": tokens, "client": [0, 0, 1, 1]}
    seen = []

    def count(outputs, targets, mask):
        seen.append((outputs.shape, targets[mask].tolist()))
        return mask.sum()

    model = lambda: nn.Sequential(nn.Embedding(9, 2), nn.Linear(2, 9))  # noqa: E731
    metrics = {"tokens": SetMetric(count)}
    task = prepare(Supervised(rows, test=rows, model=model, metrics=metrics))
    assert task.evaluate(task.start).metrics["test_tokens"] == 8
    assert seen == [((4, 3, 9), [1, 2, 3, 4, 5, 6, 7, 8])]


SEQUENCE = {"client": [0, 1], "x": [[1, 1, 1], [2]]}


def tags(labels):
    model = lambda: nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 2))  # noqa: E731
    return Supervised(train={**SEQUENCE, "y": labels}, model=model, metrics={})


def test_a_class_per_position_counts_no_padding():
    task = prepare(tags([[0, 1, 1], [1]]))
    net = task.module(task.start)
    expected = [
        functional.cross_entropy(net(torch.tensor([x]))[0], torch.tensor(y))
        for x, y in ((SEQUENCE["x"][0], [0, 1, 1]), (SEQUENCE["x"][1], [1]))
    ]
    mean = torch.stack(expected).mean().item()
    assert task.evaluate(task.start).metrics["train_loss"] == pytest.approx(mean, rel=1e-6)


MASKS = {
    "x": RNG.normal(size=(6, 3, 4, 4)).astype(np.float32),
    "y": RNG.integers(0, 3, (6, 4, 4)),
    "client": [0, 0, 0, 1, 1, 1],
}


@pytest.mark.parametrize("width", [2, 3])
def test_classes_of_positions_come_last(width):
    """torch's cross_entropy has them second; indexing the wrong dimension may even succeed."""

    class Segmentation(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.layer, self.dim = nn.Conv2d(3, width, 1), dim

        def forward(self, x):
            return self.layer(x).movedim(1, self.dim)

    wrong = Supervised(MASKS, model=lambda: Segmentation(1), metrics={})
    with pytest.raises(InvalidInputError, match=r"^model: .*\(2, 4, 4, C\).*movedim\(1, -1\)"):
        prepare(wrong)
    right = Supervised(MASKS, model=lambda: Segmentation(-1), metrics={})
    if width < 3:
        with pytest.raises(InvalidInputError, match=r"^model: .*C at least 3, got \(2, 4, 4, 2\)"):
            prepare(right)
        return
    task = prepare(right)
    logits = task.module(task.start)(torch.from_numpy(MASKS["x"]).double()).movedim(-1, 1)
    expected = functional.cross_entropy(logits, torch.from_numpy(MASKS["y"])).item()
    assert task.evaluate(task.start).metrics["train_loss"] == pytest.approx(expected, rel=1e-6)


RAGGED = [[1, 1, 1], [2], [1, 2]]
SEVERAL = np.array([[0.5, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.5, 0.5]])


class Summary(nn.Module):
    """A few numbers per sequence."""

    def __init__(self, targets):
        super().__init__()
        self.embedding, self.targets = nn.Embedding(3, 4), nn.Linear(4, targets)

    def forward(self, tokens, mask):
        return self.targets((self.embedding(tokens) * mask.unsqueeze(-1)).sum(1))


@pytest.mark.parametrize(("loss", "targets"), [("mse", 2), ("bce", 3)])
def test_several_targets_of_a_sequence_all_count(loss, targets):
    rows = {"x": RAGGED, "y": SEVERAL[:, :targets], "client": [0, 1, 0]}
    problem = Supervised(rows, model=lambda: Summary(targets), loss=loss, metrics=["accuracy"])
    task = prepare(problem)
    outputs = task.module(task.start)(*task.data.train.inputs, task.data.train.mask)
    metrics = task.evaluate(task.start).metrics
    expected = LOSSES[loss](outputs, task.data.train.target).mean().item()
    assert metrics["train_loss"] == pytest.approx(expected)
    correct = (outputs > 0).numpy(force=True) == (rows["y"] > 0.5)
    assert metrics["train_accuracy"] == pytest.approx(correct.mean())
    assert np.isfinite(run(problem).model).all()


def test_targets_of_other_lengths_than_their_inputs_are_refused():
    with pytest.raises(InvalidInputError, match=r"^target: row 0 has another length"):
        prepare(tags([[0], [1, 1, 1]]))


def test_csv_files_keep_names_as_they_are_written_and_miss_what_is_empty(tmp_path):
    text = "client,x,y\n007,1,2\n7,2,1\n"
    (tmp_path / "t.csv").write_text(text)
    fields = {"train": tmp_path / "t.csv", "inputs": ["x"], "loss": "mse", "model": linear(1, 1)}
    assert prepare(Supervised(**fields)).population.names.tolist() == ["007", "7"]
    (tmp_path / "t.csv").write_text(text.replace("007", "12"))
    assert prepare(Supervised(**fields)).population.names.tolist() == [7, 12]
    (tmp_path / "t.csv").write_text(text.replace("007", ""))
    with pytest.raises(InvalidInputError, match=r"^clients: .*1 of 2 values is missing"):
        prepare(Supervised(**fields))


def test_the_last_part_of_a_tuple_may_name_the_client():
    data = torch.utils.data.TensorDataset(
        torch.tensor(FEATURES), torch.tensor(NUMBERS), torch.tensor(OWNERS)
    )
    problem = Supervised(train=data, model=linear(), loss="mse")
    assert prepare(problem).population.clients == 12


def test_whole_numbers_of_classes_that_training_lacks_are_refused():
    rows = {"x": np.zeros((4, 2)), "y": [0, 1, 0, 1], "client": [0, 1, 0, 1]}
    with pytest.raises(
        InvalidInputError, match=r"^target: the training data lack 1 of the classes .*\(2\); "
    ):
        prepare(Supervised(rows, test=rows | {"y": [0, 1, 2, 2]}))
    padded = {"client": [0, 1], "x": [[1, 1, 1], [2, 2, 2]], "y": [[1, 2, 2], [2, 1, 1]]}
    shorter = {"client": [0, 1], "x": [[1, 1], [2]], "y": [[1, 2], [2]]}  # padded with zeros
    model = lambda: nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))  # noqa: E731
    prepare(Supervised(padded, test=shorter, model=model, metrics={}))


@pytest.mark.parametrize(
    ("labels", "pattern"),
    [
        ([1, 2] * 3, "only 2 of the classes 0 to 2 occur"),
        ([70, 71, 72] * 2, "only 3 of the classes 0 to 72 occur"),
        ([0, 1, 3] * 2, None),
    ],
)
def test_classes_that_do_not_occur_are_warned_of(labels, pattern, caplog):
    table = {"x": np.zeros((6, 2), dtype=np.float32), "y": labels, "client": np.arange(6) % 2}
    prepare(Supervised(table))
    assert len(caplog.messages) == (pattern is not None)
    for message in caplog.messages:
        assert re.match(f"target: {pattern}.*; n", message)


@pytest.mark.parametrize(
    ("loss", "last"),
    [("bce", nn.Sigmoid()), ("cross_entropy", nn.Softmax(-1)), ("cross_entropy", nn.Sigmoid())],
)
def test_a_network_that_ends_in_what_its_loss_applies_is_warned_of(loss, last, caplog):
    table = {"x": FEATURES[:6, :2], "y": [0, 1] * 3, "client": np.arange(6) % 2}
    width = 1 if loss == "bce" else 2
    prepare(
        Supervised(table, loss=loss, model=nn.Sequential(nn.Linear(2, width), last), metrics={})
    )
    wrong = nn.Sigmoid if loss == "bce" else nn.Softmax
    assert len(caplog.messages) == isinstance(last, wrong)
    for message in caplog.messages:
        assert re.match(
            f"model: it ends in a {wrong.__name__}, which the loss applies itself", message
        )


def test_amounts_are_not_taken_for_classes():
    table = {"x": np.zeros((6, 2)), "y": [0, 10**9] * 3, "client": np.arange(6) % 2}
    with pytest.raises(InvalidInputError, match=r"^target: .* 1,000,000,001 classes .* mse"):
        prepare(Supervised(table))


def margin(outputs, target):
    return functional.softplus(-outputs[:, 0] * target)


def squares(outputs, target):
    return (outputs[:, 0] - target).square()


AMOUNTS = np.arange(60) * 10**9


@pytest.mark.parametrize(
    ("targets", "labels"),
    [
        (np.where(np.arange(60) % 3, 1, -1), np.minimum(np.arange(60) % 3, 1)),
        (AMOUNTS[np.arange(60) % 5], np.arange(60) % 5),
        (AMOUNTS, np.arange(60) // 6),
        (-AMOUNTS, 9 - np.arange(60) // 6),
    ],
    ids=["signs", "few-amounts", "amounts", "debts"],
)
@pytest.mark.parametrize("partition", [Dirichlet(100.0), None])
def test_whole_numbers_that_are_no_classes_are_numbers(partition, targets, labels):
    rows = {"x": FEATURES[:60], "y": targets, "client": np.arange(60) % 10}
    fields = {} if partition is None else {"clients": 10, "partition": partition}
    loss = margin if abs(targets).max() == 1 else squares
    task = prepare(Supervised(rows, loss=loss, metrics={}, **fields), seed=3)
    assert task.layout.size == 4  # one output
    shares = task.population.class_shares
    assert shares.shape == (10, len(np.unique(labels)))
    held = task.data.shards.list_pairs()
    counts = np.zeros(shares.shape)
    np.add.at(counts, (held[0], labels[held[1]]), 1)
    np.testing.assert_allclose(shares, counts / counts.sum(1, keepdims=True))


def test_a_result_says_what_the_outputs_stand_for(tmp_path):
    problem = regression(target="kind", loss="cross_entropy", model=nn.Linear(3, 3))
    result = run(problem, out=tmp_path / "run")
    again = run(problem, out=tmp_path / "run", resume=True)
    assert result.classes == again.classes == ("cat", "dog", "eel")
    with torch.no_grad():
        found = result.module()(torch.tensor(FEATURES)).argmax(1).numpy()
    share = (np.array(result.classes)[found] == CLASSES).mean()
    assert result.metrics["train_accuracy"][-1] == pytest.approx(share)
    assert run(regression()).classes is None


@dataclass(frozen=True)
class Halves(ft.participation.Availability):
    """A process that halves the numbers of samples in place."""

    def begin(self, population, seed):
        samples = population.samples
        samples //= 2


def test_ones_own_code_cannot_change_the_data_of_later_runs():
    """Runs of one problem share its data, so that a change in place went on in the next run."""
    sizes = np.bincount(OWNERS).tolist()
    assert run(regression()).clients["samples"].to_list() == sizes
    with pytest.raises(ValueError, match="read-only"):
        run(regression(), participation=Halves())
    assert run(regression()).clients["samples"].to_list() == sizes
