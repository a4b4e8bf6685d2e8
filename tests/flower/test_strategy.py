"""The strategy's options, and inputs that it refuses."""

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.ledger.ledger import read_ledger, read_rounds
from fedtide.flower.server.strategy import FedTide
from fedtide.privacy import Gaussian

from .driver import TASK, N, deploy, federation, model, node_of, update_of

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


@pytest.mark.parametrize("privacy", [None, Gaussian(1.0, 1.0, 1e-5)], ids=["plain", "private"])
def test_a_number_of_nodes_is_asked_whoever_is_online(privacy, url, tmp_path):
    """Then all of those that are online, where they are fewer."""
    grid, began = federation(), 1_000.0
    for n in range(3):
        node_of(grid, n).online = lambda now: now < began + 3.0
    options = {"fraction_train": 0.0, "min_train_nodes": 3, "privacy": privacy, "ledger": url}
    options["state"] = tmp_path / "state"
    deploy(grid, FedAvg(weights="all"), rounds=40, **options)
    log = read_ledger(url)
    counts = dict(log.group_by("round").len().iter_rows())
    asked = dict(log.filter(pl.col("stage") == "used").group_by("round").len().iter_rows())
    assert {(counts[t], asked[t]) for t in counts} == {(N, 3), (N - 3, 2)}
    assert log.filter(stage="used", round=0)["client"].n_unique() == 3
    assert log.filter(stage="used")["client"].n_unique() == N  # a sample, not the same ones


NAMES = [str(n) for n in range(N)]
RATES = [0.5, 0.25, 1.0, 0.5, 0.125]


def test_values_by_name_belong_to_the_clients_of_these_names():
    listed = deploy(federation(), A.KnownRates(rates=RATES), rounds=3)
    mapping = dict(reversed(list(zip(NAMES, RATES, strict=True))))
    order = ["3", "0", "4", "2", "1"]
    named = deploy(federation(), A.KnownRates(rates=mapping), rounds=3, clients=order)
    assert named.training.driver.state.rates.tolist() == [mapping[name] for name in order]
    np.testing.assert_allclose(model(named), model(listed), rtol=1e-12)


def test_changed_settings_go_on_with_the_model_under_a_new_name(tmp_path, url):
    """As docs/operating.md describes: the old method reads the old state and trains no more."""
    old = {"state": tmp_path / "one", "ledger": url, "federation": "one"}
    before = model(deploy(federation(), A.KnownRates(rates=RATES), rounds=3, **old))
    start, grid = vector_to_arrays(TASK.start, TASK.layout), federation()
    strategy = FedTide(A.KnownRates(rates=RATES), clients=NAMES, clock=grid.clock, **old)
    arrays = strategy.start(grid, start, num_rounds=0).arrays
    [values] = [array.numpy() for array in arrays.values()]
    np.testing.assert_array_equal(values.ravel(), before)
    new = {"state": tmp_path / "two", "ledger": url, "federation": "two"}
    grid = federation()
    strategy = FedTide(A.KnownRates(rates=[1.0] * N), clients=NAMES, clock=grid.clock, **new)
    strategy.start(grid, arrays, num_rounds=1)
    steps = [update_of(n, before) for n in range(N)]
    np.testing.assert_allclose(model(strategy), before + np.mean(steps, axis=0), rtol=1e-12)
    assert read_rounds(f"{url}#one")["round"].to_list() == [0, 1, 2]
    assert read_rounds(f"{url}#two")["round"].to_list() == [0]


@pytest.mark.parametrize(("former", "size"), [(N + 3, N), ([*NAMES, "x"], N)])
def test_a_federation_does_not_shrink(former, size, tmp_path):
    deploy(federation(), FedAvg(), rounds=1, clients=former, state=tmp_path)
    with pytest.raises(InvalidInputError, match=r"^clients: .* has .* clients, not .*; give as"):
        deploy(federation(), FedAvg(), rounds=2, clients=size, state=tmp_path)
