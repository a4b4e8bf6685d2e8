"""A site's key is registered only under a name that is free."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from flwr.proto.control_pb2 import ListNodesResponse
from flwr.proto.node_pb2 import NodeInfo

from fedtide.errors import InvalidInputError
from fedtide.flower import _flwr, registration
from fedtide.flower.registration import register_site

NODES = [
    NodeInfo(node_id=1, name="site-a", status="online"),
    NodeInfo(node_id=2, name="site-b", status="unregistered"),
    NodeInfo(node_id=3, name="site-c", status="registered"),
    NodeInfo(node_id=4, status="offline"),
    NodeInfo(node_id=2**64 - 5, name="site-c", status="online"),
]


@pytest.fixture
def superlink(tmp_path, monkeypatch):
    """Return a stand-in for Flower's client of the SuperLink `ours`, which lists `NODES`."""
    config = '[superlink.ours]\naddress = "127.0.0.1:1"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(config)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    client = SimpleNamespace(ListNodes=lambda request: ListNodesResponse(nodes_info=NODES))
    connect = "init_http_client_from_connection"
    monkeypatch.setattr(_flwr, connect, lambda connection: nullcontext(client))
    return client


@pytest.fixture
def commands(monkeypatch):
    """Return the list to which commands are added; none runs."""
    run = []

    def record(command, **options):
        run.append(command[1:])
        return SimpleNamespace(returncode=0, stdout="registered", stderr="")

    monkeypatch.setattr(registration.subprocess, "run", record)
    return run


def test_a_free_name_is_registered_with_flowers_own_command(superlink, commands, tmp_path):
    assert register_site(tmp_path / "b.pub", "site-b", "ours") == "registered"
    key = str(tmp_path / "b.pub")
    assert commands == [["supernode", "register", key, "ours", "--name", "site-b"]]


def test_a_refusal_tells_how_to_remove_the_former_key(superlink, commands, tmp_path):
    """No command of Flower tells which node has which name."""
    with pytest.raises(InvalidInputError, match=r"flwr supernode unregister 1 ours\)$"):
        register_site(tmp_path / "a.pub", "site-a", "ours")
    both = r"flwr supernode unregister 3 ours; flwr supernode unregister 18446744073709551611 ours"
    with pytest.raises(InvalidInputError, match=both):
        register_site(tmp_path / "c.pub", "site-c", "ours")


def test_nothing_is_registered_if_nobody_can_say_which_names_are_taken(
    superlink, commands, tmp_path
):
    def fail(request):
        raise ConnectionError("no answer")

    superlink.ListNodes = fail
    with pytest.raises(InvalidInputError, match=r"^superlink: 'ours' does not tell"):
        register_site(tmp_path / "a.pub", "site-b", "ours")
    with pytest.raises(InvalidInputError, match=r"^superlink: 'theirs' does not tell"):
        register_site(tmp_path / "a.pub", "site-b", "theirs")
    assert commands == []
