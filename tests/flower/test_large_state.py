"""The state of a federation with so many clients that its facts exceed a safetensors header."""

import pytest
import torch
from safetensors import safe_open

import fedtide as ft
from fedtide.flower.server.node_registry import NodeRegistry
from fedtide.flower.server.session import TrainingSession
from fedtide.problems.layout import Layout
from fedtide.simulation import checkpoint as checkpoint_module
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save

from .driver import deploy, federation, model

A = ft.algorithms


def test_facts_of_more_than_100_mb_are_saved_and_loaded(tmp_path):
    """safetensors takes no more than that in a header."""
    facts = {"names": ['a "quoted" name'] * 6_000_000}
    save(tmp_path, Checkpoint(3, {"x": torch.arange(3.0)}, facts))
    found = load_newest(tmp_path)
    assert found is not None
    assert (found.round, found.facts) == (3, facts)
    assert list(found.tensors) == ["x"]
    [path] = tmp_path.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # within the facts
    path.write_bytes(content)
    assert load_newest(tmp_path) is None


def test_small_facts_stay_where_earlier_versions_look_for_them(tmp_path):
    save(tmp_path, Checkpoint(3, {"x": torch.zeros(2)}, {"a": [1]}))
    with safe_open(tmp_path / "000000003.safetensors", framework="pt") as file:
        assert list(file.keys()) == ["x"]
        assert file.metadata()["facts"] == '{"round": 3, "a": [1]}'


@pytest.mark.parametrize("now", [0, 10**6])
def test_a_federation_goes_on_wherever_its_facts_are(now, tmp_path, monkeypatch):
    """Of files of an earlier version, they are in the header."""
    options = {"algorithm": A.FedAU(cutoff=2), "state": tmp_path}
    monkeypatch.setattr(checkpoint_module, "_LARGEST_HEADER", 10**6 - now)
    deploy(federation(), rounds=2, **options)
    monkeypatch.setattr(checkpoint_module, "_LARGEST_HEADER", now)
    again = deploy(federation(), rounds=4, **options)
    whole = deploy(federation(), A.FedAU(cutoff=2), rounds=4)
    assert (model(again) == model(whole)).all()


def test_the_state_of_hundreds_of_thousands_of_clients_is_saved(tmp_path):
    clients = 300_000

    def begin():
        registry = NodeRegistry.from_clients(clients)
        layout, start = Layout({"x": (2,)}), torch.zeros(2)
        return TrainingSession(A.FedAvg(), registry, layout, start, tmp_path)

    session = begin()
    for n in range(clients):
        session.registry.bind(2**60 + n, f"client {n} {'x' * 100}", registered=True)
    session.end_round([])
    session.save()
    assert begin().registry.names[-1] == f"client {clients - 1} {'x' * 100}"
