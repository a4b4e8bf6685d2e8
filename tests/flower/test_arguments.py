"""Arguments of the strategy that no federation can use: refused in a sentence, before it begins."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower import FedTide, initial_arrays

from .driver import TASK, deploy, federation

FedAvg = ft.algorithms.FedAvg


def array(values, dtype) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values).astype(dtype))})


@pytest.mark.parametrize(
    "arrays",
    [
        array([1.0, 2.0], ">f8" if np.dtype(float).byteorder != ">" else "<f8"),
        array([1.0], np.longdouble),
        array([1.0], np.complex64),
        array(["text"], str),
        array([1], np.int64),
        array([], np.float32),
        array([1.0, np.nan], np.float32),
        array([1.0, np.inf], np.float64),
        array([1e30, 1.0], np.float32),  # its sum of squares is not finite
        ArrayRecord({}),
        ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", b"not an array")}),
    ],
)
def test_arrays_that_are_no_model_are_refused(arrays):
    grid = federation()
    strategy = FedTide(FedAvg(), clients=5, clock=grid.clock)
    with pytest.raises(InvalidInputError, match=r"^initial_arrays: .*; (give|make)"):
        strategy.start(grid, arrays, 1, 60.0)
    assert not grid.sent


def test_a_model_of_a_type_that_numpy_lacks_is_refused():
    with pytest.raises(InvalidInputError, match=r"^model: weight .*bfloat16.*; give model.float"):
        initial_arrays(torch.nn.Linear(2, 1).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_models_of_the_usual_types_are_taken(dtype):
    assert list(initial_arrays(torch.nn.Linear(2, 1).to(dtype))) == ["weight", "bias"]


@pytest.mark.parametrize("lr", [-0.1, 0.0, float("nan"), float("inf"), "0.1", [0.1]])
def test_a_learning_rate_that_is_not_positive_is_refused(lr):
    grid = federation()
    with pytest.raises(InvalidInputError, match=r"^train_config\.lr: "):
        deploy(grid, FedAvg(), 1, train_config=ConfigRecord({"lr": lr}))
    assert not grid.sent
    assert deploy(grid, FedAvg(), 1, train_config=ConfigRecord({"lr": 0.1})).training.round == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_train_nodes", -1),
        ("min_train_nodes", 2.5),
        ("min_available_nodes", -3),
        ("close_after", 0),
        ("close_after", 1.5),
        ("fraction_evaluate", 1.5),
        ("fraction_train", float("nan")),
    ],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(InvalidInputError, match=rf"^{name}: .*; give"):
        FedTide(FedAvg(), clients=TASK.population.clients, **{name: value})


@pytest.mark.parametrize("rounds", [-1, 1.5, None])
def test_a_number_of_rounds_is_a_whole_number(rounds):
    with pytest.raises(InvalidInputError, match=r"^num_rounds: "):
        deploy(federation(), FedAvg(), rounds)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttl", "5"),
        ("seed", "x"),
        ("clients", ["a", 1]),
        ("clients", {"a", "b"}),  # its order would be another in every process
        ("clients", None),
        ("clients", 2.5),
    ],
)
def test_values_of_another_type_are_refused(name, value):
    """They were errors of Python, or accepted."""
    with pytest.raises(InvalidInputError, match=rf"^{name}: "):
        FedTide(FedAvg(), **{"clients": TASK.population.clients, name: value})


@pytest.mark.parametrize("timeout", ["5", None, -1, float("nan")])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout):
    with pytest.raises(InvalidInputError, match=r"^timeout: "):
        deploy(federation(), FedAvg(), 1, timeout=timeout)


def test_names_may_come_from_an_iterator():
    """It was used up before the first round."""
    names = (str(n) for n in range(TASK.population.clients))
    assert deploy(federation(), FedAvg(), 1, clients=names).training.round == 1
