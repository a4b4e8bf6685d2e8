"""What the check of a method finds, and what a run of a user's own method refuses."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fedtide as ft
from fedtide import algorithms as a
from fedtide.algorithms import Algorithm, RoundInfo, State, Traits
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.testing import check_method


@dataclass(frozen=True)
class Sum(State):
    clients: torch.Tensor
    total: torch.Tensor


@dataclass(frozen=True)
class Plain(Algorithm[Sum]):
    """FedAvg, from which the others differ in one mistake."""

    def init(self, model, population):
        return Sum(model, 0, torch.zeros(0, dtype=torch.int64), torch.zeros_like(model))

    def absorb(self, state, updates):
        clients = torch.cat([state.clients, updates.clients])
        return replace(state, clients=clients, total=state.total + updates.deltas.sum(0))

    def step(self, state, lr):
        count = max(1, len(state.clients))
        weights = torch.full((len(state.clients),), 1 / count)
        info = RoundInfo(state.clients, weights, state.total / count)
        return replace(
            state,
            model=state.model + info.direction,
            round=state.round + 1,
            clients=state.clients[:0],
            total=torch.zeros_like(state.total),
        ), info


class LastChunk(Plain):
    """Forgets all chunks but the last one."""

    def absorb(self, state, updates):
        clients = torch.cat([state.clients, updates.clients])
        return replace(state, clients=clients, total=updates.deltas.sum(0))


class Undefined(Plain):
    """Divides by the number of updates, 0 in an empty round."""

    def step(self, state, lr):
        direction = state.total / len(state.clients)
        after, info = super().step(state, lr)
        return replace(after, model=state.model + direction), replace(info, direction=direction)


class TorchDraws(Plain):
    def step(self, state, lr):
        return super().step(replace(state, total=state.total + torch.rand(())), lr)


class NumpyDraws(Plain):
    def step(self, state, lr):
        draw = np.random.rand()  # noqa: NPY002
        return super().step(replace(state, total=state.total + draw), lr)


@dataclass(frozen=True)
class Stored(Plain):
    """Keeps in itself what a resumed run lacks."""

    kept: dict[str, float] = field(default_factory=dict)

    def step(self, state, lr):
        self.kept["rounds"] = self.kept.get("rounds", 0.0) + 1
        return super().step(replace(state, total=state.total * self.kept["rounds"]), lr)


class InPlace(Plain):
    def absorb(self, state, updates):
        state.model.add_(updates.deltas.mean(0))
        return super().absorb(state, updates)


class SumInPlace(Plain):
    """Adds to a sum of the former round's state, which a deployment could not restore."""

    def absorb(self, state, updates):
        state.total.add_(updates.deltas.sum(0))
        return replace(state, clients=torch.cat([state.clients, updates.clients]))


class NoState(Plain):
    def init(self, model, population):
        return None


class OtherDirection(Plain):
    def step(self, state, lr):
        after, info = super().step(state, lr)
        return after, replace(info, direction=5 * info.direction)


class Hoarding(Plain):
    """Lists the clients of earlier rounds, too."""

    def step(self, state, lr):
        after, info = super().step(state, lr)
        return replace(after, clients=info.clients), info


class Averaging(Plain):
    """Says that it averages, but not with which weights."""

    traits = Traits(averages_updates=True)

    def step(self, state, lr):
        after, info = super().step(state, lr)
        return after, replace(info, weights=torch.ones_like(info.weights))


@dataclass(frozen=True)
class Steps(a.WeightedSum):
    """Weights by the number of steps, as FedNova does, and does not say so."""

    server_lr: float = 1.0

    def init(self, model, population):
        return a.WeightedSumState.initial(model, population)

    def client_weights(self, state, updates):
        return 1.0 / updates.steps.to(updates.deltas.dtype)

    def normaliser(self, state):
        return float(state.population)


class Corrected(Plain):
    def instruct(self, state, clients):
        correction = torch.zeros_like(state.model).expand(len(clients), -1)
        return a.Instructions(state.model, correction=correction)


class LaterField(Plain):
    """A field that is None first, so that a checkpoint of a later round cannot be read."""

    def step(self, state, lr):
        after, info = super().step(state, lr)
        return replace(after, total=None), info

    def absorb(self, state, updates):
        state = replace(state, total=torch.zeros_like(state.model))
        return super().absorb(state, updates)


class Moved(Plain):
    def with_model(self, state, model):
        return state


WRONG = [
    (LastChunk(), "updates in one chunk and in several .* give another model; let absorb add"),
    (Undefined(), "in a round without updates, .* not finite; divide by max"),
    (TorchDraws(), "the method draws from a global random generator"),
    (NumpyDraws(), "the method draws from a global random generator"),
    (Stored(), "a run that is resumed in round 1 goes on otherwise; keep all"),
    (InPlace(), "absorb or step changes the model, .* in place"),
    (SumInPlace(), "absorb or step changes the model, or a vector like it, in place"),
    (NoState(), "init returns another thing than a state"),
    (OtherDirection(), "the direction of the RoundInfo is not the change of the model"),
    (Hoarding(), "the RoundInfo has the clients .*, but updates came from"),
    (Averaging(), "the direction is not the sum of the updates with the weights"),
    (Steps(), "weights depend on updates or numbers of steps; let the trait"),
    (Corrected(), "the trait message_vectors is 2, but .* 3 vectors are sent"),
    (LaterField(), r"the state has \['total'\] either before"),
    (Moved(), "with_model returns a state with another model"),
]


@pytest.mark.parametrize(
    ("method", "sentence"), WRONG, ids=[type(method).__name__ for method, _ in WRONG]
)
def test_one_mistake_is_one_sentence(method, sentence):
    with pytest.raises(AssertionError, match=f"^{sentence}") as found:
        check_method(method)
    assert "\n" not in str(found.value)


class CountingSteps(Steps):
    traits = Traits(averages_updates=True, weights_follow_updates=True)


@dataclass(frozen=True)
class Keyed(Plain):
    """Keeps what the contract allows to keep, and draws as it allows to draw."""

    @cached_property
    def scale(self):
        return float(torch.ones(2).sum())

    def step(self, state, lr):
        noise = generator(0, "noise", state.round).normal(size=len(state.model))
        total = state.total + self.scale * torch.from_numpy(noise).to(state.total)
        return super().step(replace(state, total=total), lr)


@pytest.mark.parametrize(
    "method",
    [Plain(), Keyed(), CountingSteps(), a.Amplified(2, 1.5, inner=a.Averaged(inner=Plain()))],
    ids=lambda method: type(method).__name__,
)
def test_what_keeps_the_contract_passes_and_draws_stay_as_they_were(method):
    before = torch.get_rng_state()
    assert check_method(method) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_the_clients_may_be_those_that_a_method_needs():
    method = a.FedAU(groups=["a", "b"])
    with pytest.raises(AssertionError, match=r"^groups: "):
        check_method(method)
    check_method(method, Population(2))


CENTERS = np.array([[0.0], [1.0], [2.0]])
START, LR, ROUNDS = 0.5, 0.1, 6


def simulate(algorithm, **changes):
    fields = {
        "problem": ft.problems.Quadratic(
            matrices=np.ones((3, 1, 1)), centers=CENTERS, start=[START]
        ),
        "participation": "full",
        "local": ft.LocalTraining(steps=1, lr=LR),
        "rounds": ROUNDS,
        "dtype": "float64",
        "record_iterates": True,
    }
    return ft.simulate(algorithm=algorithm, **(fields | changes))


def test_what_keeps_the_contract_gives_the_closed_form():
    """x_t = 1 + (1 - γ)^t (x_0 - 1), as the mean of the centres is 1."""
    result = simulate(a.Amplified(period=2, factor=1.0, inner=Plain()))
    expected = 1 + (1 - LR) ** np.arange(ROUNDS + 1) * (START - 1)
    np.testing.assert_allclose(result.iterates[:, 0], expected, rtol=1e-6)


@dataclass(frozen=True)
class Shaped(Plain):
    """Returns something of another shape, or other clients."""

    wrong: str = ""

    def choose_cohort(self, state, cohort):
        ids = {"unknown": cohort.clients + 1, "twice": cohort.clients[[0, 0]]}
        return a.Cohort.uniform(ids[self.wrong]) if self.wrong in ids else cohort

    def instruct(self, state, clients):
        if self.wrong == "model":
            return a.Instructions(state.model[:, None])
        correction = torch.ones_like(state.model) if self.wrong == "correction" else None
        return a.Instructions(state.model, correction=correction)

    def step(self, state, lr):
        after, info = super().step(state, lr)
        if self.wrong == "next model":
            after = replace(after, model=torch.cat([after.model, after.model]))
        if self.wrong == "direction":
            info = replace(info, direction=info.direction[0])
        if self.wrong == "weights":
            info = replace(info, weights=info.weights[:1])
        return after, info

    def output(self, state):
        return state.model[None] if self.wrong == "output" else state.model


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("unknown", r"choose_cohort: the clients of the round are \[1 2 3\]; give ids from 0 to 2"),
        ("twice", r"choose_cohort: the clients of the round are \[0 0\]; .* each at most once"),
        ("model", r"instruct: its model has shape \(1, 1\) .*; return one of shape \(3, 1\)"),
        ("correction", r"instruct: its correction has shape \(1,\) .*; return one of .* \(3, 1\)"),
        ("next model", r"step: its model has shape \(2,\) .*; return one of shape \(1,\)"),
        ("direction", r"step: its direction has shape \(\)"),
        ("weights", r"step: its RoundInfo has weights of shape \(1,\) for clients of shape \(3,\)"),
        ("output", r"output: its model has shape \(1, 1\)"),
    ],
)
def test_a_run_looks_at_shapes_and_clients(wrong, complaint):
    with pytest.raises(ft.InvalidInputError, match=rf"^algorithm\.{complaint}"):
        simulate(Shaped(wrong))


@dataclass(frozen=True)
class Momentum(State):
    start: torch.Tensor
    velocity: Any


def test_a_state_may_name_a_tensor_twice_and_begin_a_tensor_as_a_number():
    """A file holds each memory once, and the initial state does not say what numbers become."""
    start = torch.zeros(3)
    fresh = Momentum(start, 0, start, 0.0)
    moved = Momentum(start, 1, start, torch.arange(3.0))
    stored = safetensors.torch.load(safetensors.torch.save(to_tensors(moved)))
    restored = from_tensors(fresh, stored)
    assert torch.equal(restored.start, start)
    assert torch.equal(restored.velocity, torch.arange(3.0))
