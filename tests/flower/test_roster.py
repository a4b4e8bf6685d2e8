"""Who is who: registered names, declared names, and those who are turned away."""

import pytest

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.lock import held
from fedtide.flower.server.registry import NodeRegistry
from fedtide.flower.server.strategy import FedTide
from fedtide.participation.log.ledger import read_ledger, read_rounds

from .driver import deploy, federation, prepared, quadratic

TASK = prepared(quadratic())
LOCAL = ft.LocalTraining(steps=1, lr=0.1)
FedAvg = ft.algorithms.FedAvg


def test_a_registered_name_cannot_be_claimed():
    roster = NodeRegistry.of(3)
    assert roster.bind(1, "site-a", registered=True) is None
    assert "registered client" in roster.bind(2, "site-a", registered=False)
    assert roster.number(1) == 0
    assert roster.number(2) is None


def test_who_makes_the_same_claim_later_takes_the_place():
    roster = NodeRegistry.of(["a", "b"])
    roster.bind(1, "b", registered=False)
    roster.bind(2, "b", registered=False)
    assert (roster.number(1), roster.number(2)) == (None, 1)


def test_a_full_or_closed_roster_turns_others_away():
    full, closed = NodeRegistry.of(1), NodeRegistry.of(["a"])
    full.bind(1, "a", registered=False)
    assert "1 clients already" in full.bind(2, "b", registered=False)
    assert "not on the roster" in closed.bind(2, "b", registered=True)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x1b[31m"])
def test_what_is_no_name_is_turned_away(name):
    assert "its name is" in NodeRegistry.of(3).bind(1, name, registered=False)


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [(0, "clients: 0 clients"), ([], "clients: no names"), (["a", "a"], "clients: 'a' is no name")],
)
def test_a_roster_of_nobody_is_refused(clients, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        NodeRegistry.of(clients)


def test_a_roster_survives_as_plain_data():
    roster, again = NodeRegistry.of(4), NodeRegistry.of(4)
    roster.bind(2**63 + 7, "a", registered=True)
    roster.bind(5, "b", registered=False)
    again.restore(roster.plain())
    assert again == roster
    with pytest.raises(InvalidInputError, match="clients: the saved state has other clients"):
        NodeRegistry.of(["x"]).restore(roster.plain())


def test_registered_nodes_are_not_asked_who_they_are(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    grid = federation(TASK, LOCAL)
    for node_id, node in grid.nodes.items():
        node.name = f"site-{node_id}"
    deploy(grid, TASK, FedAvg(), rounds=2, clients=5, ledger=url)
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    log = read_ledger(url).filter(stage="used")
    assert set(log["client"]) == {f"site-{node_id}" for node_id in grid.nodes}


def test_a_newcomer_takes_part_from_its_first_round_on(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    grid = federation(TASK, LOCAL, seconds=lambda number: 10.0)
    late = grid.nodes[100]
    beginning = grid.now
    late.online = lambda now: now > beginning + 35
    deploy(grid, TASK, FedAvg(), rounds=6, ledger=url)
    own = read_ledger(url).filter(client=str(late.config["partition-id"]))
    assert own["round"].to_list() == [3, 4, 5]


@pytest.mark.parametrize("fraction", [0.0, 0.4])
def test_a_share_of_the_nodes_is_asked(fraction, tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    deploy(federation(TASK, LOCAL), TASK, FedAvg(), rounds=20, ledger=url, fraction_train=fraction)
    log = read_ledger(url)
    per_round = log.filter(stage="used").group_by("round").len()["len"]
    assert set(per_round) == {max(1, int(5 * fraction))}
    assert log.filter(stage="used")["client"].n_unique() == 5
    assert len(log) == 100  # the others were there: "available"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fraction_train": 1.5}, "fraction_train: 1.5"),
        ({"close_after": 0}, "close_after: 0"),
        ({"ttl": 0}, "ttl: 0"),
        ({"ledger": "x"}, "ledger: 'x' is no database URL"),
    ],
)
def test_bad_values_are_refused(options, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        FedTide(FedAvg(), clients=2, **options)


def test_a_state_of_another_federation_is_refused(tmp_path):
    options = {"rounds": 2, "state": tmp_path / "state"}
    deploy(federation(TASK, LOCAL), TASK, FedAvg(), **options)
    with pytest.raises(InvalidInputError, match=r"state: .* was begun with algorithm FedAvg"):
        deploy(federation(TASK, LOCAL), TASK, ft.algorithms.MIFA(), **options)
    other = prepared(quadratic(d=4))
    with pytest.raises(InvalidInputError, match=r"state: .* was begun with model"):
        deploy(federation(other, LOCAL), other, FedAvg(), **options)


def test_one_run_at_a_time_uses_a_state(tmp_path):
    first = held(tmp_path / "state", patience=0.0)
    with pytest.raises(InvalidInputError, match="state: another run is using"):
        held(tmp_path / "state", patience=0.1)
    first.close()
    held(tmp_path / "state", patience=0.0).close()


def test_a_ledger_ahead_of_the_state_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    deploy(federation(TASK, LOCAL), TASK, FedAvg(), rounds=2, ledger=url)
    with pytest.raises(
        InvalidInputError, match="ledger: it has 2 rounds of 'default', the state 0"
    ):
        deploy(federation(TASK, LOCAL), TASK, FedAvg(), rounds=2, ledger=url)


def test_a_ledger_that_lacks_rounds_is_refused_and_one_may_begin_later(tmp_path):
    early, late = (f"sqlite:///{tmp_path / name}" for name in ("early.db", "late.db"))
    state = tmp_path / "state"
    deploy(federation(TASK, LOCAL), TASK, FedAvg(), rounds=2, state=state, ledger=early)
    deploy(federation(TASK, LOCAL), TASK, FedAvg(), rounds=4, state=state)
    with pytest.raises(
        InvalidInputError, match="ledger: it has 2 rounds of 'default', the state 4"
    ):
        deploy(federation(TASK, LOCAL), TASK, FedAvg(), rounds=6, state=state, ledger=early)
    deploy(federation(TASK, LOCAL), TASK, FedAvg(), rounds=6, state=state, ledger=late)
    assert read_rounds(late)["round"].to_list() == [3, 4, 5]


def test_pooled_data_and_integer_models_are_refused():
    with pytest.raises(InvalidInputError, match="algorithm: it pools all data"):
        deploy(federation(TASK, LOCAL), TASK, ft.algorithms.CentralSGD(), rounds=1)
    import numpy as np
    from flwr.app import Array, ArrayRecord

    counters = ArrayRecord({"x": Array(np.zeros(3)), "steps": Array(np.zeros(1, dtype=np.int64))})
    grid = federation(TASK, LOCAL)
    with pytest.raises(InvalidInputError, match=r"initial_arrays: torch.float64, torch.int64"):
        FedTide(FedAvg(), clients=2, clock=grid.clock).start(grid, counters)
