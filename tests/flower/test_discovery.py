"""Who is who: registered names, claimed names, and nodes that are rejected."""

import pytest

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.server.discovery import NodeRegistry
from fedtide.participation.log.ledger import read_ledger

from .driver import deploy, federation

FedAvg = ft.algorithms.FedAvg


def test_a_registered_name_cannot_be_claimed():
    registry = NodeRegistry.from_clients(3)
    assert registry.bind(1, "site-a", registered=True) is None
    assert "registered client" in registry.bind(2, "site-a", registered=False)
    assert registry.client_at(1) == 0
    assert registry.client_at(2) is None


def test_a_later_node_with_the_same_claim_takes_the_place():
    registry = NodeRegistry.from_clients(["a", "b"])
    registry.bind(1, "b", registered=False)
    registry.bind(2, "b", registered=False)
    assert (registry.client_at(1), registry.client_at(2)) == (None, 1)


def test_a_full_or_closed_registry_rejects_other_clients():
    full, closed = NodeRegistry.from_clients(1), NodeRegistry.from_clients(["a"])
    full.bind(1, "a", registered=False)
    assert "all 1 clients" in full.bind(2, "b", registered=False)
    assert "not among" in closed.bind(2, "b", registered=True)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x1b[31m"])
def test_an_invalid_name_is_rejected(name):
    assert "its name is" in NodeRegistry.from_clients(3).bind(1, name, registered=False)


@pytest.mark.parametrize("clients", [0, [], ["a", "a"], ["a", ""]])
def test_a_registry_needs_clients_with_distinct_names(clients):
    with pytest.raises(InvalidInputError, match=r"^clients: .*; "):
        NodeRegistry.from_clients(clients)


def test_a_registry_survives_as_plain_data():
    registry, again = NodeRegistry.from_clients(4), NodeRegistry.from_clients(4)
    registry.bind(2**63 + 7, "a", registered=True)
    registry.bind(5, "b", registered=False)
    again.restore(registry.to_json())
    assert again == registry
    with pytest.raises(InvalidInputError, match=r"^clients: .*; give the same"):
        NodeRegistry.from_clients(["x"]).restore(registry.to_json())


def test_registered_nodes_are_not_asked_for_their_names(url):
    grid = federation()
    for node_id, node in grid.nodes.items():
        node.name = f"site-{node_id}"
    deploy(grid, FedAvg(), rounds=2, clients=5, ledger=url)
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    log = read_ledger(url).filter(stage="used")
    assert set(log["client"]) == {f"site-{node_id}" for node_id in grid.nodes}


def test_a_newcomer_takes_part_from_its_first_round_on(url):
    grid = federation(seconds=lambda number: 10.0)
    late, began = grid.nodes[100], grid.now
    late.online = lambda now: now > began + 35
    deploy(grid, FedAvg(), rounds=6, ledger=url)
    own = read_ledger(url).filter(client=str(late.config["partition-id"]))
    assert own["round"].to_list() == [3, 4, 5]


def test_the_ledger_says_that_a_node_without_the_key_claims_an_absent_client(url):
    """The site runs, but without its registered key; or a stranger does: the ledger cannot know."""
    grid = federation(seconds=lambda number: 1.0)
    ids = sorted(grid.nodes)
    site, stranger = grid.nodes[ids[0]], grid.nodes[ids[1]]
    site.name, began = "site-a", grid.now
    site.online = lambda now: now < began + 2
    stranger.config["name"] = "site-a"
    deploy(grid, FedAvg(), rounds=3, clients=5, ledger=url, min_available_nodes=3)
    rows = read_ledger(url).filter(client="site-a").select("round", "stage", "reason").rows()
    assert rows[0] == (0, "used", None)
    assert rows[-1] == (2, "available", "unregistered")
