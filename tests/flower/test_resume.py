"""Resuming with other arguments than those at the beginning, and what a state may hold."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedtide as ft
from fedtide.algorithms import Algorithm, RoundInfo, State
from fedtide.errors import InvalidInputError
from fedtide.flower import FedTide, Update, custom_client
from fedtide.flower.arrays import params_to_arrays
from fedtide.simulation.checkpoint import Checkpoint, load_newest, save

from .driver import deploy, federation, model
from .fake_grid import FakeGrid, Node

A = ft.algorithms
PARAMS = {"a": torch.arange(4.0).reshape(2, 2), "b": torch.arange(4.0, 8.0).reshape(2, 2)}


def count_up(params, request):
    """Train: add 1 to every entry of a, and 10 to every entry of b."""
    steps = {name: torch.full_like(x, 10.0 if name == "b" else 1.0) for name, x in params.items()}
    return Update(steps, samples=1, lr=0.1, steps=1)


def run(order: str, rounds: int, state: Path, algorithm: Any) -> dict[str, list]:
    grid = FakeGrid({101: Node(custom_client(lambda context: count_up), {"partition-id": 0})})
    strategy = FedTide(algorithm, clients=1, state=state, clock=grid.clock)
    start = params_to_arrays({name: PARAMS[name] for name in order})
    found = strategy.start(grid, start, rounds, 60.0).arrays
    return {name: array.numpy().tolist() for name, array in found.items()}


@pytest.mark.parametrize("algorithm", [A.FedAvg(), A.MIFA(), A.FedAdam()], ids=repr)
def test_arrays_in_another_order_are_restored_by_name(algorithm, tmp_path):
    whole = run("ab", 4, tmp_path / "whole", algorithm)
    run("ab", 2, tmp_path / "parts", algorithm)
    assert run("ba", 4, tmp_path / "parts", algorithm) == whole
    if algorithm == A.FedAvg():
        assert whole == {"a": (PARAMS["a"] + 4).tolist(), "b": (PARAMS["b"] + 40).tolist()}


def test_a_changed_entry_of_a_long_setting_is_refused(tmp_path):
    names = [str(n) for n in range(2000)]

    def go(rate: float, rounds: int) -> FedTide:
        rates = np.linspace(0.2, 0.9, 2000)
        rates[1000] = rate
        method = A.KnownRates(rates=rates)
        return deploy(federation(), method, rounds, clients=names, state=tmp_path / "state")

    go(0.5, 1)
    with pytest.raises(InvalidInputError, match=r"^state: .* was started with "):
        go(0.01, 2)
    assert go(0.5, 2).training.round == 2


@dataclass(frozen=True)
class OwnState(State):
    clients: Tensor
    total: Tensor
    momentum: Tensor | None = None
    scale: float = 0
    names: Any = None


@dataclass(frozen=True)
class Momentum(Algorithm):
    """x ← x + s m, m ← 0.9 m + mean Δ, s ← 0.9 s + 0.5."""

    zeros: bool = True
    names: Any = None
    schedule: Callable[[int], float] = field(default=lambda t: 1.0)

    def init(self, model, population):
        none = torch.zeros(0, dtype=torch.int64)
        zero = torch.zeros_like(model)
        return OwnState(model, 0, none, zero, zero if self.zeros else None, 0, self.names)

    def absorb(self, state, updates):
        total = state.total + updates.deltas.sum(0)
        return replace(state, clients=torch.cat([state.clients, updates.clients]), total=total)

    def step(self, state, lr):
        size = max(len(state.clients), 1)
        momentum = state.total / size
        if state.momentum is not None:
            momentum = 0.9 * state.momentum + momentum
        scale = 0.9 * state.scale + 0.5
        weights = torch.full((len(state.clients),), scale / size)
        info = RoundInfo(state.clients, weights, scale * momentum)
        return replace(
            self.init(state.model + info.direction, None),
            round=state.round + 1,
            momentum=momentum,
            scale=scale,
        ), info


def test_a_state_of_ones_own_is_resumed_though_a_number_began_as_an_integer(tmp_path):
    whole = deploy(federation(), Momentum(), 6)
    for rounds in (2, 3, 6):
        parts = deploy(federation(), Momentum(), rounds, state=tmp_path / "state")
    np.testing.assert_array_equal(model(parts), model(whole))
    assert parts.training.driver.state.scale == pytest.approx(5 * (1 - 0.9**6), rel=1e-12)


def test_a_state_that_cannot_be_stored_is_refused_before_clients_train(tmp_path):
    grid = federation()
    with pytest.raises(InvalidInputError, match=r"^algorithm: .* names, a dict.*; let states"):
        deploy(grid, Momentum(names={}), 2, state=tmp_path / "state")
    assert not grid.sent


@pytest.mark.parametrize("lost", ["entries", "model", "tensor"])
def test_a_checkpoint_that_lacks_something_is_refused(lost, tmp_path):
    deploy(federation(), A.FedAvg(), 1, state=tmp_path)
    found = load_newest(tmp_path)
    tensors = {n: t for n, t in found.tensors.items() if (n, lost) != ("state.model", "tensor")}
    facts = {name: fact for name, fact in found.facts.items() if name != lost}
    save(tmp_path, Checkpoint(1, tensors, facts))
    with pytest.raises(InvalidInputError, match=r"^state: "):
        deploy(federation(), A.FedAvg(), 2, state=tmp_path)


def test_a_ledger_without_the_rounds_of_the_state_is_named(tmp_path, caplog):
    """A submission with a mistyped federation began a second log without a word."""

    def submit(name: str, rounds: int) -> str:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            deploy(federation(), A.FedAvg(), rounds, federation=name, **places)
        return caplog.text

    places = {"state": tmp_path / "state", "ledger": f"sqlite:///{tmp_path / 'ledger.db'}"}
    text = "The ledger has no rounds of 'wrad', and the state has 4: "
    assert text[:20] not in submit("ward", 2) + submit("ward", 4)
    found = submit("wrad", 5)
    assert text in found
    assert "Ledger: federation 'wrad'" in found
