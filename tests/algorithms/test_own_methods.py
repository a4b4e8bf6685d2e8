"""Methods of a user's own: what breaks the contract is refused where it happens."""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fedtide as ft
from fedtide import algorithms as a
from fedtide.algorithms import Algorithm, RoundInfo, State
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.population import Population
from fedtide.randomness import generator

CENTERS = np.array([[0.0], [1.0], [2.0]])
START, LR, ROUNDS = 0.5, 0.1, 6


@dataclass(frozen=True)
class Sum(State):
    clients: torch.Tensor
    total: torch.Tensor


@dataclass(frozen=True)
class Plain(Algorithm[Sum]):
    """FedAvg, with functions that a test replaces by wrong ones."""

    wrong: str = ""
    kept: dict[str, float] = field(default_factory=dict)

    def choose_cohort(self, state, cohort):
        if self.wrong == "the state in place":
            state.total.add_(1.0)
        return WRONG_COHORTS.get(self.wrong, lambda cohort: cohort)(cohort)

    def instruct(self, state, clients):
        wrong = WRONG_INSTRUCTIONS.get(self.wrong, a.Instructions)
        return wrong(state.model)

    def output(self, state):
        return state.model[None] if self.wrong == "a row as output" else state.model

    def init(self, model, population):
        if self.wrong == "init returns nothing":
            return None
        if self.wrong == "no dataclass":
            return SimpleNamespace(model=model, round=0)
        if self.wrong == "another dtype":
            model = model.float()
        first = 1 if self.wrong == "begins with round 1" else 0
        return Sum(model, first, torch.zeros(0, dtype=torch.int64), torch.zeros_like(model))

    def absorb(self, state, updates):
        if self.wrong == "absorb returns nothing":
            return None
        if self.wrong == "in place, in absorb":
            state.model.add_(updates.deltas.mean(0))
        clients = torch.cat([state.clients, updates.clients])
        return replace(state, clients=clients, total=state.total + updates.deltas.sum(0))

    def step(self, state, lr):
        if self.wrong in DRAWS:
            state = replace(state, total=state.total + DRAWS[self.wrong]())
        if self.wrong == "an attribute":
            object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        if self.wrong == "an entry of a field":
            self.kept[str(state.round)] = lr
        if self.wrong == "a field's entry again":
            self.kept["calls"] = self.kept.get("calls", 0.0) + lr
        count = max(1, len(state.clients))
        direction = state.total / count
        weights = torch.full((len(state.clients),), 1 / count)
        model = state.model + direction
        info = RoundInfo(state.clients, weights, direction)
        after = Sum(model, state.round + 1, state.clients[:0], torch.zeros_like(direction))
        return WRONG_STEPS.get(self.wrong, lambda *found: found[1:])(state, after, info)


def changed_in_place(state, after, info):
    state.model.add_(info.direction)
    return replace(after, model=state.model), info


def changed_unseen(state, after, info):
    """PyTorch does not count changes through NumPy."""
    state.model.numpy()[:] += info.direction.numpy()
    return replace(after, model=state.model.clone()), info


def changed_state(state, after, info):
    for name, value in vars(after).items():
        object.__setattr__(state, name, value)
    return state, info


WRONG_COHORTS: dict[str, Any] = {
    "a list of clients": lambda cohort: cohort.clients.tolist(),
    "clients that do not exist": lambda cohort: a.Cohort.uniform(cohort.clients + 1),
    "a client twice": lambda cohort: a.Cohort.uniform(cohort.clients[[0, 0]]),
    "a cohort of arrays": lambda cohort: a.Cohort(cohort.clients.numpy(), cohort.weights.numpy()),
}

DRAWS: dict[str, Any] = {
    "draws from torch": lambda: torch.rand(()),
    "draws from NumPy": lambda: np.random.rand(),  # noqa: NPY002
}

WRONG_INSTRUCTIONS: dict[str, Any] = {
    "only a model": lambda model: model,
    "one correction for all": lambda model: a.Instructions(model, torch.ones_like(model)),
    "a mu for each client": lambda model: a.Instructions(model, mu=torch.ones(3)),
    "a mu that is no number": lambda model: a.Instructions(model, mu=float("nan")),
}

WRONG_STEPS: dict[str, Any] = {
    "the same state": changed_state,
    "clients as a list": lambda state, after, info: (
        after,
        replace(info, clients=info.clients.tolist()),
    ),
    "weights as an array": lambda state, after, info: (
        after,
        replace(info, weights=info.weights.numpy()),
    ),
    "clients as floats": lambda state, after, info: (
        after,
        replace(info, clients=info.clients.double()),
    ),
    "direction is None": lambda state, after, info: (after, replace(info, direction=None)),
    "in place, in step": changed_in_place,
    "in place, by NumPy": changed_unseen,
    "step returns nothing": lambda state, after, info: None,
    "step returns the state": lambda state, after, info: after,
    "step returns no state": lambda state, after, info: (None, info),
    "stays in round 0": lambda state, after, info: (replace(after, round=0), info),
    "a model twice as long": lambda state, after, info: (
        replace(after, model=torch.cat([after.model, after.model])),
        info,
    ),
    "a model with a gradient": lambda state, after, info: (
        replace(after, model=after.model.requires_grad_()),
        info,
    ),
    "another direction": lambda state, after, info: (
        after,
        replace(info, direction=5 * info.direction),
    ),
    "no direction": lambda state, after, info: (
        after,
        replace(info, direction=torch.zeros_like(info.direction)),
    ),
    "a scalar direction": lambda state, after, info: (
        after,
        replace(info, direction=info.direction[0]),
    ),
    "a single weight": lambda state, after, info: (after, replace(info, weights=info.weights[:1])),
    "weights that are no numbers": lambda state, after, info: (
        after,
        replace(info, weights=info.weights / 0.0),
    ),
    "clients of earlier rounds": lambda state, after, info: (
        replace(after, clients=info.clients),
        info,
    ),
}

COMPLAINTS = {
    "the state in place": r"algorithm\.choose_cohort: it changed a tensor of the state in place, ",
    "a mu for each client": r"algorithm\.instruct: its mu is tensor.*; give one finite number",
    "a mu that is no number": r"algorithm\.instruct: its mu is nan; give one finite number",
    "weights that are no numbers": r"algorithm\.step: .* the weights \[inf, inf, inf\]; give fin",
    "no dataclass": r"algorithm\.init: it returned namespace\(.*; return a state, a frozen ",
    "a list of clients": r"algorithm\.choose_cohort: it returned \[0, 1, 2\]; return a Cohort",
    "clients that do not exist": r"algorithm\.choose_cohort: .* \[1 2 3\]; give ids from 0 to 2, ",
    "a client twice": r"algorithm\.choose_cohort: its Cohort has the clients \[0 0\]; .*most once",
    "a cohort of arrays": r"algorithm\.choose_cohort: its Cohort has clients array.*; give ",
    "only a model": r"algorithm\.instruct: it returned tensor.*; return Instructions\(",
    "one correction for all": r"algorithm\.instruct: its correction .*; return one of .* \(3, 1\)",
    "a row as output": r"algorithm\.output: its result has shape \(1, 1\)",
    "the same state": r"algorithm\.step: it returned the state that it was given",
    "clients as a list": r"algorithm\.step: its RoundInfo has clients \[0, 1, 2\]; give a tensor",
    "weights as an array": r"algorithm\.step: its RoundInfo has weights array.*; give a tensor",
    "clients as floats": r"algorithm\.step: .* dtype torch\.float64; give their ids, of .*int64",
    "direction is None": r"algorithm\.step: its direction is None; return a tensor",
    "init returns nothing": r"algorithm\.init: it returned None; return a state",
    "begins with round 1": r"algorithm\.init: its state has round 1; ",
    "another dtype": r"algorithm\.init: its model has .*float32; return one of .*float64",
    "absorb returns nothing": r"algorithm\.absorb: it returned None; return the next state",
    "in place, in absorb": r"algorithm\.absorb: the model was changed in place",
    "in place, in step": r"algorithm\.step: the model was changed in place",
    "in place, by NumPy": r"algorithm\.step: .* a direction of norm .*; .*change no model in place",
    "step returns nothing": r"algorithm\.step: it returned None; return the next state and",
    "step returns the state": r"algorithm\.step: it returned Sum\(.*; return the next state and",
    "step returns no state": r"algorithm\.step: it returned None; return the next state, of",
    "stays in round 0": r"algorithm\.step: round 0 is followed by round 0; ",
    "a model twice as long": r"algorithm\.step: its model has shape \(2,\)",
    "a model with a gradient": r"algorithm\.step: its model requires a gradient; return its detach",
    "another direction": r"algorithm\.step: .* a direction of norm 0\.25, .* of norm 0\.05; ",
    "no direction": r"algorithm\.step: .* a direction of norm 0, .* of norm 0\.05; ",
    "a scalar direction": r"algorithm\.step: its direction has shape \(\)",
    "a single weight": r"algorithm\.step: .* weights of shape \(1,\) for clients of shape \(3,\)",
    "clients of earlier rounds": r"algorithm\.step: .* the clients \[0 1 2 0 1 2\]",
}


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


def expected():
    """x_t = 1 + (1 - γ)^t (x_0 - 1), as the mean of the centres is 1."""
    return 1 + (1 - LR) ** np.arange(ROUNDS + 1) * (START - 1)


@pytest.mark.parametrize("wrong", COMPLAINTS)
def test_what_breaks_the_contract_is_refused(wrong):
    with pytest.raises(ft.InvalidInputError, match=f"^{COMPLAINTS[wrong]}"):
        simulate(Plain(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        "in place, in absorb",
        "in place, in step",
        "stays in round 0",
        "another direction",
        "no direction",
        "a single weight",
        "clients of earlier rounds",
    ],
)
def test_what_a_wrapper_would_pass_on_is_refused(wrong):
    with pytest.raises(ft.InvalidInputError, match=f"^{COMPLAINTS[wrong]}"):
        simulate(a.Amplified(period=2, factor=1.5, inner=a.Averaged(inner=Plain(wrong))))


WARNINGS = {
    "draws from torch": r"algorithm\.step: it used the global random generator .*: draw from ",
    "draws from NumPy": r"algorithm\.step: it used the global random generator .*: draw from ",
    "an attribute": r"algorithm: something was stored in its calls, .* in the state",
    "an entry of a field": r"algorithm: something was stored in its kept, ",
    "a field's entry again": r"algorithm: something was stored in its kept, ",
}


@pytest.mark.parametrize("wrap", [False, True], ids=["alone", "in a wrapper"])
@pytest.mark.parametrize("wrong", WARNINGS)
def test_what_a_resumed_run_may_not_repeat_is_said_once(wrong, wrap, caplog):
    """It is no error: a cache, or a data loader in its own order, does the same."""
    simulate(a.Averaged(inner=Plain(wrong)) if wrap else Plain(wrong))
    (sentence,) = [record.getMessage() for record in caplog.records]
    assert re.match(WARNINGS[wrong], sentence)


@dataclass(frozen=True)
class Corrected(Plain):
    vectors: int = 2

    @property
    def message_vectors(self):
        return self.vectors

    def instruct(self, state, clients):
        correction = torch.zeros_like(state.model).expand(len(clients), -1)
        return a.Instructions(state.model, correction=correction)


@pytest.mark.parametrize("vectors", [2, 3, 4])
def test_vectors_that_no_report_would_count_are_said_once(vectors, caplog):
    simulate(Corrected(vectors=vectors))
    found = [record.getMessage() for record in caplog.records if record.name == "fedtide"]
    assert [text.split(":")[0] for text in found] == ["algorithm.message_vectors"] * (vectors < 3)


@pytest.mark.parametrize("wrong", [wrong for wrong in COMPLAINTS if "in place" in wrong])
def test_a_model_changed_in_place_is_not_that_of_later_runs(wrong):
    """Runs of the same problem share their task, and with it the initial model."""
    with pytest.raises(ft.InvalidInputError):
        simulate(Plain(wrong))
    np.testing.assert_allclose(simulate("fedavg").iterates[:, 0], expected(), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", [Plain(), a.Amplified(period=2, factor=1.0, inner=Plain())])
def test_what_keeps_the_contract_gives_the_closed_form(method, dtype):
    result = simulate(method, dtype=dtype)
    np.testing.assert_allclose(result.iterates[:, 0], expected(), rtol=1e-6)


@dataclass(frozen=True)
class Undefined(Plain):
    """Divides by the number of updates, which is 0 in an empty round."""

    def step(self, state, lr):
        direction = state.total / len(state.clients)
        info = RoundInfo(state.clients, torch.full((len(state.clients),), 0.5), direction)
        return replace(self.init(state.model + direction, None), round=state.round + 1), info


def test_an_empty_round_is_named_where_it_makes_the_model_undefined():
    """The step size, which the message on a step that is not finite names, is not the reason."""
    nobody = ft.participation.Table(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    with pytest.raises(
        ft.InvalidInputError, match=r"^algorithm\.step: in a round without updates "
    ):
        simulate(Undefined(), participation=nobody, rounds=2)


@dataclass(frozen=True)
class Keyed(Plain):
    """Keeps what the contract allows to keep, and draws as it allows to draw."""

    @cached_property
    def scale(self):
        return float(torch.ones(2).sum())

    def step(self, state, lr):
        noise = generator(0, "noise", state.round).normal(size=1)
        total = state.total + self.scale * torch.from_numpy(noise)
        return super().step(replace(state, total=total), lr)


def test_random_numbers_that_depend_on_the_round_alone_are_accepted():
    once, again = simulate(Keyed()), simulate(Keyed())
    np.testing.assert_array_equal(once.iterates, again.iterates)
    assert not np.allclose(once.iterates, simulate("fedavg").iterates)


@dataclass(frozen=True)
class SeededSum(Sum):
    seed: int


@dataclass(frozen=True)
class WithLosses(Plain):
    """Computes the losses of all clients in each run, as docs/your-own.md describes it."""

    problem: Any = None

    @cached_property
    def tasks(self):
        return {}

    def init(self, model, population):
        start = super().init(model, population)
        return SeededSum(**vars(start), seed=population.seed)

    def losses(self, state):
        if state.seed not in self.tasks:
            task = self.problem.prepare(state.seed, torch.device("cpu"), torch.float64)
            self.tasks[state.seed] = task
        return self.tasks[state.seed].evaluate(state.model).clients["loss"]

    def step(self, state, lr):
        self.losses(state)
        moved, info = super().step(state, lr)
        return SeededSum(**vars(moved), seed=state.seed), info


def test_a_method_knows_the_seed_of_the_run():
    """By which other clients have other data."""
    problem = ft.problems.Regression(clients=3, samples=30, features=4, informative=2)
    method = WithLosses(problem=problem)
    for seed in 3, 8:
        result = simulate(method, problem=problem, seed=seed)
        assert result.state.seed == seed
        np.testing.assert_array_equal(method.losses(result.state), result.clients["loss"])
    assert list(method.tasks) == [3, 8]


@dataclass(frozen=True)
class Weighing(Plain):
    weights: Any = None

    def weigh(self, state, updates):
        return self.weights


@pytest.mark.parametrize(
    "weights", [[1.0, 1.0], torch.ones(2, 1), torch.ones(2, dtype=torch.float64), torch.ones(3)]
)
def test_weights_of_another_form_than_the_contract_says_are_refused(weights):
    driver = a.RoundDriver(Weighing(weights=weights), torch.zeros(1), Population(3))
    ones = torch.ones(2)
    updates = a.ClientUpdates(torch.arange(2), ones, torch.zeros(2, 0), 0.1, ones)
    with pytest.raises(ft.InvalidInputError, match=r"^algorithm\.weigh: its result (is|has) "):
        driver.weigh(updates)


@dataclass(frozen=True)
class Momentum(State):
    start: torch.Tensor
    velocity: Any


def test_a_state_may_name_a_tensor_twice_and_begin_a_tensor_as_a_number():
    """A file holds each memory once, and the initial state does not say what numbers become."""
    start = torch.zeros(3)
    fresh = Momentum(start, 0, start, 0.0)
    moved = Momentum(start, 1, start, torch.arange(3.0))
    restored = from_tensors(
        fresh, safetensors.torch.load(safetensors.torch.save(to_tensors(moved)))
    )
    assert torch.equal(restored.start, start)
    assert torch.equal(restored.velocity, torch.arange(3.0))
