"""Runs that end regularly but should not pass in silence: nobody took part, or the loss rose."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedtide as ft
from fedtide.simulation.callbacks import Callback
from fedtide.simulation.run_warnings import find_warnings

QUADRATIC = {"type": "quadratic", "matrices": [[[1.0]], [[2.0]]], "centers": [[0.0], [1.0]]}


def simulate(tmp_path, **changes):
    """Run on two quadratics and return the warnings in the summary, and the result."""
    fields = {
        "problem": QUADRATIC | {"start": [3.0]},
        "participation": "full",
        "algorithm": "fedavg",
        "local": {"steps": 1, "lr": 0.1},
        "rounds": 12,
        "evaluation": {"every": 1},
        "dtype": "float64",
    }
    result = ft.simulate(**(fields | changes), out=tmp_path / "run")
    return json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"], result


def messages(caplog):
    return [r.getMessage() for r in caplog.records if r.name.startswith("fedtide")]


@pytest.mark.parametrize("every", [1, 0])
def test_a_loss_that_ends_far_above_the_initial_one_is_warned_of(every, tmp_path, caplog):
    """x <- x - 1.8 (1.5 x - 1) grows by 1.7 per round without becoming infinite."""
    found, _ = simulate(tmp_path, local={"steps": 1, "lr": 1.8}, evaluation={"every": every})
    assert len(found) == 1
    assert found[0].startswith("local.lr: the loss ended at ")
    assert found[0].endswith("; lower lr")
    assert [f"run, seed 0: {found[0]}"] == messages(caplog)


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_ends_at_no_number_is_warned_of(loss):
    (found,) = find_warnings(ft.algorithms.FedAvg(), [{"round": 4, "loss": loss}], 2.3, 4, True)
    assert found == (
        f"local.lr: the loss ended at {loss}, from 2.3 of the initial model: the run diverged; "
        "lower lr"
    )


def test_a_metric_without_a_value_for_some_samples_is_warned_of(caplog):
    def recall(outputs, target):
        correct = (outputs.argmax(1) == target).float()
        return torch.where(target == 0, torch.nan, correct)

    rows = {"x": np.eye(4), "y": np.arange(4) % 2, "user": np.arange(4) // 2}
    problem = ft.problems.Supervised(
        train=rows, clients="user", target="y", model=nn.Linear(4, 2), metrics={"recall": recall}
    )
    training = {"local": {"steps": 1, "lr": 0.1}, "rounds": 2}
    ft.simulate(problem=problem, participation="full", algorithm="fedavg", **training)
    (found,) = [text for text in messages(caplog) if "finite number" in text]
    assert "problem: train_recall ended as NaN or infinity, although the loss is" in found


def test_a_class_without_test_samples_is_no_fault_of_a_metric(tmp_path):
    labels = np.arange(12) % 4
    rows = {"x": np.eye(12), "y": labels, "client": np.arange(12) % 2}
    tests = {"x": np.eye(12)[:5], "y": np.array([0, 0, 0, 1, 3])}
    problem = ft.problems.Supervised(rows, tests, model=nn.Linear(12, 4))
    found, result = simulate(tmp_path, problem=problem, dtype="float32")
    assert found == [
        "problem.test: it has no samples of the classes of test_recall_2, which is not a number"
    ]
    assert np.isnan(result.metrics["test_recall_2"].to_numpy()).all()

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    text = (tmp_path / "run" / "summary.json").read_text()
    metrics = json.loads(text, parse_constant=refuse)["metrics"]
    assert metrics["test_recall_2"] is None
    assert metrics["test_recall_0"] == result.metrics["test_recall_0"][-1]


def test_a_run_that_learns_warns_of_nothing(tmp_path, caplog):
    assert simulate(tmp_path)[0] == []
    assert messages(caplog) == []


def test_a_run_in_which_nobody_took_part_says_so(tmp_path):
    found, result = simulate(tmp_path, participation={"type": "bernoulli", "rates": 1e-12})
    assert len(found) == 1
    assert found[0].startswith("participation: no client took part in any round")
    assert np.array_equal(result.model, [3.0])


WAITING = [
    {"type": "wait-for-all", "period": 100},
    {"type": "wait-for-all", "period": 100, "mode": "gradient"},
    {"type": "averaged", "inner": {"type": "wait-for-all", "period": 13}},
    {"type": "mifa", "unseen": "wait"},
]


@pytest.mark.parametrize("algorithm", WAITING, ids=str)
def test_a_method_that_waits_to_the_end_says_so(algorithm, tmp_path):
    """Not that nobody took part: client 1 does, in all rounds."""
    participation = {"type": "bernoulli", "rates": [0.0, 1.0]}
    found, result = simulate(tmp_path, algorithm=algorithm, participation=participation)
    assert np.array_equal(result.model, [3.0])
    assert len(found) == 1
    assert found[0].startswith("algorithm: the model is the initial one after 12 rounds, ")
    assert "took part in 12 of them" in found[0]


ENTERING = ["fedavg", "fedau", "mifa", {"type": "wait-for-all", "period": 2}]


@pytest.mark.parametrize("algorithm", ENTERING, ids=str)
def test_gradients_that_are_zero_are_not_blamed_on_the_method(algorithm, tmp_path):
    """Both clients have their minimum where the model starts."""
    problem = QUADRATIC | {"centers": [[3.0], [3.0]], "start": [3.0]}
    (found,), result = simulate(tmp_path, algorithm=algorithm, problem=problem)
    assert np.array_equal(result.model, [3.0])
    assert found.startswith("problem: the model is the initial one after 12 rounds, because ")
    assert "all updates are 0 or too small" in found


def test_a_method_that_trains_absent_clients_does_something(tmp_path):
    """In its last round, a period trains all clients: both are at 3 - 0.1 F'(3), on average."""
    algorithm = {"type": "wait-for-all", "period": 12}
    participation = {"type": "bernoulli", "rates": 1e-12}
    found, result = simulate(tmp_path, algorithm=algorithm, participation=participation)
    np.testing.assert_allclose(result.model, [3 - 0.1 * (3 + 2 * 2) / 2])
    assert found == []


AMPLIFIED = {
    "factor": lambda period: {"type": "amplified", "factor": 5.0, "period": period},
    "inner.factor": lambda period: {"type": "averaged", "inner": AMPLIFIED["factor"](period)},
}


@pytest.mark.parametrize("field", AMPLIFIED)
@pytest.mark.parametrize("period", [12, 13])
def test_periods_longer_than_the_run_are_warned_of(period, field, tmp_path):
    """Without an end of a period, the model is that of the inner method."""
    local = {"steps": 1, "lr": 1e-3}
    plain = {"type": "averaged"} if "inner" in field else "fedavg"
    found, result = simulate(tmp_path, algorithm=AMPLIFIED[field](period), local=local)
    same = simulate(tmp_path / "plain", algorithm=plain, local=local)[1]
    assert np.array_equal(result.model, same.model) == (period > 12)
    expected = f"algorithm.{field}: the first period ends after 13 rounds and the run after 12, "
    assert [text[: len(expected)] for text in found] == [expected] * (period > 12)


@pytest.mark.parametrize("selection", [{"type": "uniform-of", "size": 2}, {"type": "all"}])
@pytest.mark.parametrize("closing", [1, 2])
def test_rounds_that_no_number_of_reports_closes_are_warned_of(closing, selection, tmp_path):
    fields = {"selection": selection}
    fields |= {"dropout": {"type": "stragglers", "close_after": closing}}
    found, result = simulate(tmp_path, **fields)
    assert (result.participation["stage"] == "used").sum() == 12 * closing
    expected = (
        "dropout.close_after: a round asks at most 2 clients, so that 2 reports would close none; "
    )
    assert [text[: len(expected)] for text in found] == [expected] * (closing == 2)


@pytest.mark.parametrize(
    "participation",
    [{"type": "bernoulli", "rates": 0}, {"type": "table", "weights": [[0, 0]] * 12}],
)
def test_participation_that_is_known_to_be_empty_is_refused(participation, tmp_path):
    with pytest.raises(
        ft.InvalidInputError, match=r"^participation: the rates at which .* are all 0; give"
    ):
        simulate(tmp_path, participation=participation)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "participation",
    ["full", {"type": "bernoulli", "rates": 0.5}, {"type": "churn", "rates": 0.5, "stay": 5}],
)
def test_a_dropout_of_all_clients_is_refused_by_its_name(participation, tmp_path):
    dropout = {"type": "random", "probability": 1.0}
    with pytest.raises(ft.InvalidInputError, match=r"^dropout: .*; give a probability below 1$"):
        simulate(tmp_path, participation=participation, dropout=dropout)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("optimizer", "has_effect"), [("sgd", True), ("adam", False)])
def test_weights_of_the_objective_that_local_adam_undoes_are_warned_of(
    optimizer, has_effect, tmp_path
):
    """Adam's steps are the same whatever factor scales a client's gradients."""
    local = {"steps": 2, "lr": 0.1, "optimizer": optimizer}
    warnings, weighted = simulate(tmp_path, local=local, objective=[0.9, 0.1])
    plain = simulate(tmp_path / "plain", local=local)[1]
    assert np.allclose(weighted.model, plain.model, rtol=0, atol=1e-6) != has_effect
    assert [text.partition(": ")[0] for text in warnings] == ([] if has_effect else ["objective"])


class Line(nn.Module):
    """x ↦ w x, with w = 0 at first."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.w * x[:, 0]


@pytest.mark.parametrize(
    ("algorithm", "warned"),
    [
        ({"type": "fedavg"}, False),
        ({"type": "fedavg", "weights": "data"}, True),
        ({"type": "averaged", "inner": {"type": "fedprox", "mu": 0.0, "weights": "data"}}, True),
    ],
)
def test_samples_that_weigh_twice_are_warned_of(algorithm, warned, tmp_path):
    """Means of 1 and 3 samples: those of all samples, or weighted by 1 and 9 (F_n = (x − y_n)²)."""
    data = {"x": [[1.0]] * 4, "y": [0.0, 1.0, 1.0, 1.0], "client": [0, 1, 1, 1]}
    problem = ft.problems.Supervised(
        train=data, inputs=["x"], target="y", clients="client", model=Line(), loss="mse"
    )
    fields = {"problem": problem, "objective": "samples", "rounds": 400}
    found, result = simulate(tmp_path, algorithm=algorithm, **fields)
    assert result.state.model.item() == pytest.approx(0.9 if warned else 0.75, abs=1e-6)
    assert [text.partition(": ")[0] for text in found] == (["objective"] if warned else [])
    assert not simulate(tmp_path / "plain", **fields | {"objective": "uniform"})[0]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_factor_that_throws_the_model_off_is_named(depth, tmp_path):
    """One round halves the distance to the optimum; amplified by 4 it overshoots by 1."""
    algorithm = {"type": "amplified", "period": 3, "factor": 4.0}
    for _ in range(depth):
        algorithm = {"type": "averaged", "inner": algorithm}
    found, _ = simulate(
        tmp_path, algorithm=algorithm, local={"steps": 1, "lr": 0.4}, rounds=12 - depth
    )
    where = "algorithm." + "inner." * depth + "factor"
    if depth == 0:
        assert found[0].startswith(f"{where}: amplification steps raise the loss to ")
    else:  # the average hides single steps, but not where they lead
        assert all(where in sentence for sentence in found)


ROWS = [{"round": t, "loss": loss} for t, loss in enumerate([8.0, 4.0, 9.0, 4.0, 3.0, 7.0])]


@pytest.mark.parametrize(
    ("period", "start", "warned"), [(2, 0, False), (3, 2, True), (2, 1, False)]
)
def test_only_losses_right_after_amplification_are_compared(period, start, warned):
    """Rises of 9/4 (round 2) and 7/3 (round 5); falls elsewhere."""
    algorithm = ft.algorithms.Amplified(period=period, factor=2.0, start=start)
    found = find_warnings(algorithm, ROWS, 8.0, 6, moved=True)
    assert bool(found) == warned
    if warned:
        assert found[0].startswith("algorithm.factor: amplification steps raise the loss to 2.33 ")


def test_amplification_is_known_by_the_method_and_not_by_its_class():
    """A user's own method that amplifies is judged as those of the package are."""

    class Own(ft.algorithms.FedAvg):
        @property
        def amplification(self):
            return ft.algorithms.Amplification("gain", period=3, start=2)

    for algorithm, path in [(Own(), "gain"), (ft.algorithms.Averaged(Own()), "inner.gain")]:
        assert find_warnings(algorithm, ROWS, 8.0, 6, moved=True)[0].startswith(
            f"algorithm.{path}: "
        )


def test_the_second_method_of_a_switch_counts_its_periods_from_there():
    amplified = ft.algorithms.Amplified(period=2, factor=2.0, start=1)
    switch = ft.algorithms.Switch(first=ft.algorithms.FedAvg(), second=amplified, at=2)
    (found,) = find_warnings(switch, ROWS, 8.0, 6, moved=True)
    assert found.startswith("algorithm.second.factor: amplification steps raise the loss to 2.33 ")


def test_a_step_that_is_not_finite_names_the_factor():
    with pytest.raises(ft.InvalidInputError, match=r"lower lr or algorithm\.factor"):
        ft.simulate(
            problem=QUADRATIC,
            participation="full",
            algorithm={"type": "amplified", "period": 2, "factor": 1e300},
            local={"steps": 1, "lr": 0.1},
            rounds=20,
            dtype="float64",
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("capabilities", "slow"),
    [
        ({"avx512_bf16": False, "amx_bf16": False}, True),
        ({"avx512_bf16": True, "amx_bf16": False}, False),
        ({"amx_bf16": True}, False),
        ({}, False),
    ],
)
def test_a_processor_without_bfloat16_is_warned_of_before_training(
    dtype, capabilities, slow, monkeypatch, caplog
):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    table = {"x": np.ones((4, 2), "float32"), "y": np.ones((4, 1), "float32"), "who": [0, 0, 1, 1]}
    problem = ft.problems.Supervised(
        table, inputs="x", target="y", clients="who", model=nn.Linear(2, 1), loss="mse"
    )
    warned = []

    class Watch(Callback):
        def on_start(self, run):
            warned.extend(messages(caplog))

    ft.simulate(
        problem=problem,
        participation="full",
        algorithm="fedavg",
        local=ft.LocalTraining(steps=1, lr=0.1),
        rounds=1,
        dtype=dtype,
        callbacks=[Watch()],
    )
    assert any("no instructions for bfloat16" in m for m in warned) == (slow and dtype != "float32")


@dataclass(frozen=True, eq=False)
class Shares(ft.algorithms.CentralSGD):
    """A method of a user, whose `weights` are numbers."""

    weights: Any = field(default_factory=lambda: np.array([1.0, 2.0]))

    @property
    def centralised(self):
        return False

    def client_weights(self, state, updates):
        return torch.from_numpy(self.weights)[updates.clients]


def test_a_field_called_weights_may_be_an_array(tmp_path):
    """A comparison of it failed after the last round, and again whenever the run was resumed."""
    problem = {"type": "regression", "clients": 2, "samples": 8, "features": 2, "informative": 1}
    found, _ = simulate(tmp_path, algorithm=Shares(), problem=problem, objective="samples")
    assert found == []


def test_results_are_written_before_warnings_that_may_fail(tmp_path, monkeypatch):
    def fail(*_):
        raise ArithmeticError

    monkeypatch.setattr("fedtide.simulation.loop.find_warnings", fail)
    with pytest.raises(ArithmeticError):
        simulate(tmp_path)
    for name in ("model.safetensors", "metrics.parquet", "clients.parquet"):
        assert (tmp_path / "run" / name).is_file()
