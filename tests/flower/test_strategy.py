"""The strategy's options, and inputs that it refuses."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.server.strategy import FedTide
from fedtide.participation.log.ledger import read_ledger

from .driver import N, deploy, federation, model

A = ft.algorithms
FedAvg = A.FedAvg


@pytest.mark.parametrize("fraction", [0.0, 0.4])
def test_a_share_of_the_nodes_is_asked(fraction, url):
    deploy(federation(), FedAvg(), rounds=20, ledger=url, fraction_train=fraction)
    log = read_ledger(url)
    per_round = log.filter(stage="used").group_by("round").len()["len"]
    assert set(per_round) == {max(1, int(N * fraction))}
    assert log.filter(stage="used")["client"].n_unique() == N
    assert len(log) == 20 * N  # the others were "available"


@pytest.mark.parametrize(
    ("field", "value"),
    [("fraction_train", 1.5), ("close_after", 0), ("ttl", 0), ("ledger", "x")],
)
def test_bad_values_are_refused(field, value):
    with pytest.raises(InvalidInputError, match=f"^{field}: .*{value}"):
        FedTide(FedAvg(), clients=2, **{field: value})


def test_a_centralised_method_is_refused():
    with pytest.raises(InvalidInputError, match=r"^algorithm: .*; "):
        deploy(federation(), ft.algorithms.CentralSGD(), rounds=1)


def test_models_with_integer_arrays_are_refused():
    counters = ArrayRecord({"x": Array(np.zeros(3)), "steps": Array(np.zeros(1, dtype=np.int64))})
    grid = federation()
    with pytest.raises(InvalidInputError, match=r"^initial_arrays: torch.float64, torch.int64; "):
        FedTide(FedAvg(), clients=2, clock=grid.clock).start(grid, counters)


NAMES = [str(n) for n in range(N)]
RATES = [0.5, 0.25, 1.0, 0.5, 0.125]


def test_values_by_name_belong_to_the_clients_of_these_names():
    listed = deploy(federation(), A.KnownRates(rates=RATES), rounds=3)
    mapping = dict(reversed(list(zip(NAMES, RATES, strict=True))))
    order = ["3", "0", "4", "2", "1"]
    named = deploy(federation(), A.KnownRates(rates=mapping), rounds=3, clients=order)
    assert named.training.driver.state.rates.tolist() == [mapping[name] for name in order]
    np.testing.assert_allclose(model(named), model(listed), rtol=1e-12)


@pytest.mark.parametrize(
    "method", [A.KnownRates(rates=dict(zip(NAMES, RATES, strict=True))), A.FedAU(groups={"0": "a"})]
)
def test_values_by_name_are_refused_where_clients_are_numbered_as_they_join(method):
    with pytest.raises(InvalidInputError, match=r"no client is called .*unnamed"):
        deploy(federation(), method, rounds=1, clients=N)
