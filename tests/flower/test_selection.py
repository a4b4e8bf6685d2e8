"""Selections in a federation: those of the simulator, before and after an interruption."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedtide as ft
from fedtide.flower.ledger.ledger import read_ledger
from fedtide.participation.selections import Selection, SelectionStream

from .driver import LOCAL, deploy, federation, model, quadratic

A, P = ft.algorithms, ft.participation
ROUNDS = 12


@dataclass(frozen=True)
class InTurn(Selection):
    """One of the available clients, a number of places further in each round."""

    by: int

    def start(self, population, seed):
        return InTurnStream(self.by)


class InTurnStream(SelectionStream):
    def __init__(self, by):
        self.by, self.place = by, np.int64(0)

    def select(self, t, available):
        self.place += self.by
        return available.clients[[self.place % len(available.clients)]]


SELECTIONS = [
    P.UniformOf(size=2),
    P.PermutationOf(size=2),
    P.LongestAbsent(size=2),
    P.LeastServed(size=2, period=4),
    P.LeastFrequent(size=2, beta=0.3),
    P.MinSeparation(size=2, rounds=1),
    InTurn(by=3),
]


@pytest.mark.parametrize("selection", SELECTIONS[1::2], ids=repr)
def test_the_cohorts_are_those_of_the_simulator(selection, tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    strategy = deploy(
        federation(), A.FedAU(cutoff=3), ROUNDS, selection=selection, seed=4, ledger=url
    )
    wanted = ft.simulate(
        problem=quadratic(),
        participation=P.Full(),
        selection=selection,
        algorithm=A.FedAU(cutoff=3),
        local=LOCAL,
        rounds=ROUNDS,
        seed=4,
        dtype="float64",
        trainer="reference",
    )
    np.testing.assert_allclose(model(strategy), wanted.model, rtol=1e-9)
    log = wanted.participation.sort("round", "client")
    assert read_ledger(url)["stage"].to_list() == log["stage"].to_list()


@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_a_resubmission_goes_on_where_the_selection_was(selection, tmp_path):
    def run(name: str, rounds: int):
        url, state = f"sqlite:///{tmp_path / name}.db", tmp_path / name
        options = {"selection": selection, "ledger": url, "state": state}
        return model(deploy(federation(), A.FedAvg(), rounds, **options)), read_ledger(url)

    whole, log = run("whole", ROUNDS)
    for rounds in (3, 4, ROUNDS):
        resumed, resumed_log = run("parts", rounds)
    np.testing.assert_array_equal(resumed, whole)
    columns = ["round", "client", "stage"]
    assert resumed_log.select(columns).equals(log.select(columns))


@pytest.mark.parametrize("privacy", [None, ft.privacy.Gaussian(1.0, 1.0, 1e-5)])
def test_a_selection_sees_clients_that_are_free_alone(privacy, tmp_path):
    """Client 2 owes a reply for several rounds."""
    grid, url = federation(), f"sqlite:///{tmp_path / 'ledger.db'}"
    slow = next(node for node in grid.nodes.values() if node.config["partition-id"] == 2)
    slow.seconds = lambda number: 0.1 if number == 0 else 200.0
    options = {"selection": P.LongestAbsent(size=5), "ledger": url, "privacy": privacy}
    options["state"] = tmp_path / "state"
    deploy(grid, A.FedAvg(weights="all"), 4, timeout=60.0, **options)
    asked = read_ledger(url).filter(client="2", stage="selected")["round"]
    assert asked.to_list() == [0]
