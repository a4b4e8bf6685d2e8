"""Selections in a federation: those of the simulator, before and after an interruption."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedtide as ft
from fedtide.errors import InvalidInputError
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


class SavesUpStream(SelectionStream):
    rounds = 0  # an attribute of its own only from the first round on

    def __init__(self):
        self.saved = 0  # a whole number at first

    def select(self, t, available):
        self.rounds += 1
        self.saved += 0.375
        chosen = available.clients[[self.rounds % len(available.clients)]][: int(self.saved)]
        self.saved %= 1
        return chosen


@dataclass(frozen=True)
class SavesUp(Selection):
    """One client, whenever enough rounds have passed."""

    def start(self, population, seed):
        return SavesUpStream()


SELECTIONS = [
    P.UniformOf(size=2),
    P.PermutationOf(size=2),
    P.LongestAbsent(size=2),
    P.LeastServed(size=2, period=4),
    P.LeastFrequent(size=2, beta=0.3),
    P.MinSeparation(size=2, rounds=1),
    InTurn(by=3),
    SavesUp(),
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
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


def test_another_selection_starts_anew_in_a_state(tmp_path, caplog):
    state, url = tmp_path / "state", f"sqlite:///{tmp_path / 'ledger.db'}"
    deploy(federation(), A.FedAvg(), 2, selection=P.LongestAbsent(size=2), state=state, ledger=url)
    deploy(federation(), A.FedAvg(), 4, selection=P.LongestAbsent(size=3), state=state, ledger=url)
    used = read_ledger(url).filter(stage="used")
    assert used["client"].to_list() == list("0123012034")
    assert caplog.text.count("The selection starts afresh") == 1


def test_another_seed_starts_anew_in_a_state(tmp_path):
    def cohorts(name, seeds):
        url, options = f"sqlite:///{tmp_path / name}.db", {"state": tmp_path / name}
        for rounds, seed in enumerate(seeds, 1):
            options |= {"selection": P.PermutationOf(size=2), "seed": seed, "ledger": url}
            deploy(federation(), A.FedAvg(), 4 * rounds, **options)
        return read_ledger(url).filter(stage="used")["client"].to_list()

    assert cohorts("other", (0, 1)) != cohorts("same", (0, 0))


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


@dataclass(frozen=True)
class KeepsNames(InTurn):
    def start(self, population, seed):
        stream = InTurnStream(self.by)
        stream.names = ["ann"]
        return stream


@dataclass(frozen=True)
class KeepsHugeNumber(InTurn):
    def start(self, population, seed):
        return InTurnStream(2**64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": P.UniformOf(2), "fraction_train": 0.5}, "^selection: .* fraction_train"),
        ({"selection": P.UniformOf(2), "min_train_nodes": 3}, "^selection: .* min_train_nodes"),
        ({"selection": P.UniformOf(9)}, r"^selection\.size: "),
        ({"selection": KeepsNames(1)}, "^selection: its stream keeps names, of the type list;"),
        ({"selection": KeepsHugeNumber(1)}, "^selection: its stream keeps by, of the type int;"),
    ],
)
def test_what_cannot_select_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        deploy(federation(), A.FedAvg(), 1, **options)
