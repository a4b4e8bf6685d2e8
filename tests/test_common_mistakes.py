"""The mistakes that users make in experiments: each is answered with its field, value and cure."""

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide.simulation.runner import execute

BASE = {
    "problem": {"type": "regression", "clients": 10, "samples": 100},
    "participation": "full",
    "algorithm": "fedavg",
    "local": {"steps": 1, "lr": 0.1},
    "rounds": 2,
}
BERNOULLI = {"type": "bernoulli"}
CLASSIFICATION = {"type": "classification", "dataset": "digits", "clients": 5, "partition": "iid"}
QUADRATIC = {"type": "quadratic", "centers": [[0.0], [1.0]]}
ROWS = {"x": np.zeros((6, 2)), "y": np.arange(6.0), "who": list("aabbcc")}


def supervised(**fields):
    given = {"train": ROWS, "clients": "who", "model": torch.nn.Linear(2, 1), "loss": "mse"}
    return {"problem": ft.problems.Supervised(**given | fields)}


MISTAKES = [
    # unknown and missing keys
    ({"round": 5}, "round: unknown key", "did you mean 'rounds'"),
    ({"lr": 0.1}, "lr: unknown key", "'local.lr'"),
    ({"cutoff": 5}, "cutoff: unknown key", "'algorithm.cutoff'"),
    ({"local": {"lr": 0.1, "step": 1}}, "local.step: unknown key", "did you mean 'steps'"),
    ({"local": {"lr": 0.1}}, "local.steps: ", "give exactly one of steps and epochs"),
    ({"local": {"lr": 0.1, "steps": 1, "epochs": 1}}, "local.steps: ", "give exactly one"),
    ({"algorithm": {"type": "fedau", "cut_off": 5}}, "algorithm.cut_off: ", "'cutoff'"),
    ({"algorithm": {"cutoff": 5}}, "algorithm.type: missing", "choose one of"),
    ({"participation": {"type": "uniform"}}, "participation.size: missing", "give a whole number"),
    ({"problem": {"type": "dirichlet"}}, "problem.type: unknown 'dirichlet'", "choose one of"),
    # unknown names
    ({"algorithm": "FedAU"}, "algorithm.type: unknown 'FedAU'", "did you mean 'fedau'"),
    ({"problem": "mnist"}, "problem: 'mnist' is a data set", "type: classification"),
    ({"dtype": "float16"}, "dtype: unknown 'float16'", "did you mean"),
    ({"trainer": "fast"}, "trainer: unknown 'fast'", "did you mean"),
    ({"device": "gpu"}, "device: ", "cpu"),
    ({"objective": "uniformly"}, "objective: unknown 'uniformly'", "'uniform'"),
    (
        {
            "objective": "samples",
            "algorithm": {"type": "fedadam", "inner": {"weights": "data", "type": "fedavg"}},
        },
        "objective: samples",
        "give one of the two",
    ),
    (
        {"problem": CLASSIFICATION | {"model": "logistics"}},
        "problem.model: unknown 'logistics'",
        "did you mean 'logistic'",
    ),
    (
        {"problem": CLASSIFICATION | {"augment": ["flop"]}},
        "problem.augment: ",
        "flip",
    ),
    # types
    ({"rounds": "many"}, "rounds: 'many' is of type str", "give a whole number"),
    ({"rounds": 2.5}, "rounds: 2.5 is of type float", "give a whole number"),
    ({"seed": [1, 2]}, "seed: [1, 2] are several", "seeds"),
    ({"seed": True}, "seed: True is of type bool", "give a whole number"),
    ({"seed": 2**70}, "seed: 1180591620717411303424 is too large", "below 2**63"),
    ({"local": {"steps": 1, "lr": "0,1"}}, "local.lr: '0,1' is not a number", "write 0.1"),
    ({"local": 5}, "local: 5 is not a mapping", "give its keys"),
    ({"algorithm": 3}, "algorithm: 3 is not a `type`", "choose one of"),
    ({"algorithm": ft.algorithms.FedAU}, "algorithm: FedAU is a class", "write FedAU()"),
    ({"problem": torch.nn.Linear(1, 1)}, "problem: the class Linear is not", "derive it from"),
    ({"participation": BERNOULLI | {"rates": "30 %"}}, "participation.rates: '30 %'", "write 0.3"),
    (
        {"participation": BERNOULLI | {"rates": [0.1, "x"]}},
        "participation.rates: ",
        "give only numbers",
    ),
    ({"evaluation": {"every": "10 rounds"}}, "evaluation.every: '10 rounds'", "a whole number"),
    # numbers out of range
    ({"rounds": 0}, "rounds: 0 ", "at least 1; give one"),
    ({"seed": -1}, "seed: -1 ", "at least 0; give one"),
    ({"local": {"steps": 1, "lr": -0.1}}, "local.lr: -0.1 ", "positive number; give one"),
    ({"local": {"steps": 1, "lr": float("nan")}}, "local.lr: nan ", "finite positive number"),
    ({"local": {"steps": 1, "lr": 0.1, "momentum": 1}}, "local.momentum: 1.0 ", "[0, 1)"),
    ({"algorithm": {"type": "fedau", "cutoff": 0}}, "algorithm.cutoff: 0 ", "for ∞"),
    ({"participation": BERNOULLI | {"rates": 30}}, "participation.rates: 30.0 ", "probability"),
    (
        {"participation": BERNOULLI | {"rates": [0.5, float("nan")]}},
        "participation.rates: nan ",
        "give a probability",
    ),
    (
        {"problem": CLASSIFICATION | {"partition": {"type": "dirichlet", "alpha": 0}}},
        "problem.partition.alpha: 0",
        "give one",
    ),
    # sizes and shapes
    ({"participation": BERNOULLI | {"rates": [0.5] * 3}}, "participation.rates: 3 ", "for each"),
    ({"participation": {"type": "uniform", "size": 11}}, "participation.size: 11 ", "at most 10"),
    ({"objective": [0.5, 0.5]}, "objective: 2 ", "for each"),
    ({"problem": QUADRATIC | {"matrices": [[[1.0]]]}}, "problem.matrices: shape", "per center"),
    (
        {"problem": QUADRATIC | {"matrices": [[[1.0]], [[2.0]]], "start": [0.0, 0.0]}},
        "problem.start: shape (2,)",
        "give d numbers",
    ),
    # data
    (supervised(train="missing.parquet"), "problem.train: ", "missing.parquet"),
    (supervised(train={"x": ROWS["x"], "who": ROWS["who"]}), "problem.", "'y'"),
    (supervised(inputs="z"), "problem.inputs: ", "'x'"),
    (supervised(clients="user"), "problem.clients: ", "who"),
    (supervised(model=torch.nn.Linear(3, 1)), "problem.model: ", "choose a network that fits"),
    (
        supervised(train=ROWS | {"y": np.array([np.nan] * 6)}),
        "problem.target: column 'y'",
        "fill such values in or remove",
    ),
]


@pytest.mark.parametrize(
    ("changes", "start", "cure"), MISTAKES, ids=[start for _, start, _ in MISTAKES]
)
def test_a_mistake_is_answered_with_its_field_and_its_cure(changes, start, cure, tmp_path):
    with pytest.raises(ft.InvalidInputError) as error:
        execute(ft.Experiment.from_dict(BASE | changes), tmp_path / "run")
    message = str(error.value)
    assert message.startswith(start)
    assert cure in message
    assert "\n" not in message
    assert not (tmp_path / "run" / "experiment.yaml").exists()
