"""The state of a federation with so many clients that its facts exceed a safetensors header."""

import pytest
import torch

import fedtide as ft
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
