"""Arguments of the strategy that no federation can use: refused before anything is sent."""

import socket

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch import nn

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower import ClientSideMemory, FedTide, initial_arrays
from fedtide.participation.selections import Selection, SelectionStream

from .driver import TASK, N, deploy, federation

A, P = ft.algorithms, ft.participation
GAUSSIAN = ft.privacy.Gaussian(1.0, 1.0, 1e-5)


def array(values, dtype) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values).astype(dtype))})


@pytest.mark.parametrize(
    "arrays",
    [
        array([1.0], np.longdouble),
        array(["text"], str),
        array([1], np.int64),
        array([1.0, np.nan], np.float32),
        array([1e30, 1.0], np.float32),  # its sum of squares is not finite
        ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", b"not an array")}),
        ArrayRecord(nn.BatchNorm1d(3).state_dict()),  # with a counter
    ],
)
def test_arrays_that_are_no_model_are_refused(arrays):
    grid = federation()
    strategy = FedTide(A.FedAvg(), clients=N, clock=grid.clock)
    with pytest.raises(InvalidInputError, match=r"^initial_arrays: "):
        strategy.start(grid, arrays, 1, 60.0)
    assert not grid.sent


class Apart(A.FedAvg):
    """Gives every client a model of its own."""

    def instruct(self, state, clients):
        return A.Instructions(state.model.expand(len(clients), -1))


class KeepsNames(Selection, SelectionStream):
    """Its stream keeps what no checkpoint can hold."""

    def start(self, population, seed):
        stream = KeepsNames()
        stream.names = ["ann"]
        return stream

    def select(self, t, available):
        return available.clients


REFUSED = [
    ("clients", {"clients": 0}),
    ("clients", {"clients": ["a", "a"]}),
    ("clients", {"clients": ["a", "b\n"]}),
    ("clients", {"clients": {"a", "b"}}),  # its order would be another in every process
    ("algorithm", {"algorithm": "fedavg"}),
    ("algorithm", {"algorithm": A.CentralSGD()}),
    ("algorithm", {"algorithm": Apart()}),
    ("algorithm", {"algorithm": A.FedAWE()}),
    ("algorithm", {"algorithm": A.FedPBC()}),
    ("algorithm", {"algorithm": A.FedAdam(inner=A.FOCUS())}),
    ("algorithm", {"algorithm": A.FedAvg(), "privacy": GAUSSIAN, "state": "new"}),
    ("groups", {"algorithm": A.FedAU(groups={"0": "a"}), "clients": N}),  # unnamed
    ("rates", {"algorithm": A.KnownRates(rates=dict.fromkeys("1234", 0.5) | {"0": 0.0})}),
    ("fraction_evaluate", {"fraction_evaluate": 1.5}),
    ("close_after", {"close_after": 0}),
    ("ttl", {"ttl": 0}),
    ("selection", {"selection": P.UniformOf(2), "fraction_train": 0.5}),
    ("selection.size", {"selection": P.UniformOf(9)}),
    ("selection", {"selection": KeepsNames()}),
    ("state", {"privacy": GAUSSIAN}),
    ("ledger", {"ledger": "x"}),
    ("federation", {"ledger": "sqlite://", "federation": "a\nb"}),
    ("metrics_port", {"metrics_port": 0}),
    ("timeout", {"timeout": -1}),
    ("num_rounds", {"rounds": 1.5}),
    ("train_config.lr", {"train_config": ConfigRecord({"lr": 0.0})}),
]


@pytest.mark.parametrize(("field", "options"), REFUSED)
def test_what_a_federation_cannot_do_is_refused_before_anything_is_sent(
    field, options, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    grid = federation()
    with pytest.raises(InvalidInputError, match=rf"^{field}: "):
        deploy(grid, **{"algorithm": A.FedAvg(weights="all"), "rounds": 1} | options)
    assert not grid.sent


@pytest.mark.parametrize(
    "method", [A.MIFA(unseen="wait"), A.FedAU(average=0.5), A.FedAU(groups=[0, 0]), A.FedAvg()]
)
def test_methods_that_clients_cannot_remember_are_refused(method):
    with pytest.raises(InvalidInputError, match=r"^method: "):
        ClientSideMemory(method)


def test_a_model_of_a_type_that_numpy_lacks_is_refused():
    with pytest.raises(InvalidInputError, match=r"^model: weight .*bfloat16"):
        initial_arrays(nn.Linear(2, 1).bfloat16())


def test_a_port_in_use_is_refused_before_the_first_round(url):
    grid = federation()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidInputError, match=r"^port: "):
            deploy(grid, A.FedAvg(), 1, ledger=url, metrics_port=taken.getsockname()[1])
    assert not grid.sent


def test_names_may_come_from_an_iterator():
    """It was used up before the first round."""
    names = (str(n) for n in range(TASK.population.clients))
    assert deploy(federation(), A.FedAvg(), 1, clients=names).training.round == 1
