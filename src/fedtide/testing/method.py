"""The check of a method."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtide.algorithms import Algorithm, ClientUpdates, Cohort, Instructions, RoundDriver, Traits
from fedtide.algorithms.base import RoundInfo, WeightedTotal
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.population import Population
from fedtide.testing._purity import assertions, fail, no_global_randomness

_ROUNDS, _SIZE, _LR = 14, 3, 0.1
_STOPS = (0, 1, 5, 9)
_HINT = "draw from fedtide.randomness.generator(state.seed, purpose, state.round)"


def check_method(method: Algorithm[Any], population: Population | None = None) -> None:
    """Check that a method keeps the contract of `Algorithm`, in fourteen rounds of random updates.

    Some rounds have no updates, some have one, and clients take different numbers of steps.

    - Chunks in any order give the same model and weights, and so do sums where `weigh` allows them.
    - A state that was stored and read goes on bit for bit, in another object of the method.
    - `RoundInfo` lists the clients whose updates arrived, and the change of the model, which is
      the sum of the updates with these weights if the method averages updates.
    - Weights depend on who took part alone, unless the trait `weights_follow_updates` is true; the
      trait `message_vectors` counts what `instruct` sends and asks for.
    - Models and directions are finite and have the dtype of the first model.
    - No number comes from a global generator; neither the model nor another vector of its length
      changes in place, and `choose_cohort`, `instruct` and `output` change nothing.

    Args:
        method: what is checked.
        population: the clients; by default 4, with rates and samples.

    Raises:
        AssertionError: it does not keep the contract.

    >>> from fedtide.algorithms import FedAvg
    >>> check_method(FedAvg())
    """
    people = population or Population(
        4, samples=np.array([5, 2, 9, 4]), rates=np.array([0.9, 0.5, 0.7, 0.2]), seed=3
    )
    with assertions():
        with no_global_randomness("the method", _HINT):
            whole = _Course(method, people, watched=True).run()
        whole.require_same(
            _Course(method, people, chunk=1, reverse=True).run(),
            "updates in one chunk and in several in another order give another {}; let absorb add "
            "each chunk to those before it",
        )
        whole.require_same(
            _Course(method, people, sums=True).run(),
            "sums of updates, which weigh offers, give another {} than the updates; let weigh "
            "return None",
        )
        _check_weights(method, whole, _Course(method, people, draw=1).run())
        _Course(method, people, dtype=torch.float32).run()
        for stop in _STOPS:
            _check_resumed(method, whole, stop)
        _check_with_model(method, whole)


@dataclass
class _Course:
    """Some rounds of a method, and what it did in them.

    Args:
        method: the method, of which it uses a copy.
        population: the clients.
        chunk: how many updates are absorbed together; None: all.
        reverse: whether the last chunk comes first.
        sums: whether the sums of chunks are absorbed where `weigh` offers that.
        draw: the number of the updates; others for each.
        dtype: of the model.
        watched: whether what a method may not change, and what it says, is checked in every round.
        models: x_0, x_1, ...
        infos: of each round.
        states: a copy of the state before each of the rounds at which a run is resumed.
    """

    method: Algorithm[Any]
    population: Population
    chunk: int | None = None
    reverse: bool = False
    sums: bool = False
    draw: int = 0
    dtype: torch.dtype = torch.float64
    watched: bool = False
    models: list[Tensor] = field(default_factory=list)
    infos: list[RoundInfo] = field(default_factory=list)
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        start = torch.tensor([1.0, -0.5, 0.25], dtype=self.dtype)
        self.driver = RoundDriver(copy.deepcopy(self.method), start, self.population)
        state: Any = self.driver.state
        if not is_dataclass(state) or getattr(state, "round", None) != 0:
            fail("init returns another thing than a state, a dataclass, of round 0")
        if not torch.equal(self.driver.state.model, start):
            fail("the state that init returns has another model than the one that it was given")
        self.models.append(start)

    def run(self, first: int = 0) -> _Course:
        """Run all rounds from this one on."""
        stored = to_tensors(self.driver.state).keys()
        for t in range(first, _ROUNDS):
            if t in _STOPS and self.watched:
                self.states[t] = {n: v.clone() for n, v in to_tensors(self.driver.state).items()}
            kept = [(v, v.clone()) for v in _vectors(self.driver.state)] if self.watched else []
            self.infos.append(self._round(t))
            self.models.append(self.driver.state.model)
            if not all(torch.equal(now, before) for now, before in kept):
                fail("absorb or step changes the model, or a vector like it, in place; copy it")
            if unlike := stored ^ to_tensors(self.driver.state).keys():
                fail(
                    f"the state has {sorted(unlike)} either before training or after a round, so "
                    "it cannot be resumed; let them have a value in both, such as zeros"
                )
        self.output = self._unchanged("output", lambda: self.driver.output)
        return self

    def _round(self, t: int) -> RoundInfo:
        driver = self.driver
        came = Cohort.uniform(_who_comes(t, self.population.clients))
        cohort = self._unchanged("choose_cohort", lambda: driver.choose_cohort(came))
        if self.method.traits.centralised:
            cohort = Cohort.uniform(torch.zeros_like(cohort.clients[:1]))
        chunks = self._unchanged("instruct", lambda: list(driver.chunks(cohort, self.chunk)))
        arrived = [self._train(t, *chunk) for chunk in (chunks[::-1] if self.reverse else chunks)]
        for updates in arrived:
            weights = driver.weigh(replace(updates, deltas=updates.deltas.to("meta")))
            if self.sums and weights is not None:
                total = weights @ updates.deltas
                driver.absorb(WeightedTotal(updates.clients, weights, total))
            else:
                driver.absorb(updates)
        before, after = driver.state.model, driver.state.round + 1
        info = driver.step(_LR)
        if driver.state.round != after:
            fail(f"step returns a state of round {driver.state.round}, not of round {after}")
        _check_info(info, driver.state.model - before, arrived, self.method.traits)
        return info

    def _train(self, t: int, instructions: Instructions, cohort: Cohort) -> ClientUpdates:
        """Return random updates, the same for a client and a round in every course of this draw."""
        sent = 2 + (instructions.correction is not None)
        sent += instructions.gradients + instructions.end_gradients
        if sent > self.method.traits.message_vectors:
            fail(
                f"the trait message_vectors is {self.method.traits.message_vectors}, but with the "
                f"correction or the gradients of instruct, {sent} vectors are sent"
            )
        draws = [np.random.default_rng([self.draw, t, n]) for n in cohort.clients.tolist()]
        rows = torch.tensor(np.array([d.normal(size=(2, _SIZE)) for d in draws]), dtype=self.dtype)
        steps = torch.tensor([int(d.integers(1, 4)) for d in draws])
        samples = self.population.samples
        held = None if samples is None else torch.from_numpy(samples[cohort.clients.numpy()])
        return ClientUpdates(
            cohort.clients, cohort.weights, rows[:, 0], _LR, steps, held, rows[:, 1]
        )

    def _unchanged(self, name: str, call: Any) -> Any:
        """Return what a function of the method returns, which may not change the state."""
        before = {n: v.clone() for n, v in to_tensors(self.driver.state).items()}
        found = call()
        after = to_tensors(self.driver.state)
        if not all(_same(after[n], v) for n, v in before.items()):
            fail(f"{name} changes a tensor of the state in place; make a new one")
        return found

    def require_same(self, other: _Course, sentence: str) -> None:
        """Fail with this sentence, in which {} is what differs, if another course differs."""
        pairs = zip([*self.models, self.output], [*other.models, other.output], strict=True)
        if not all(map(_close, *zip(*pairs, strict=True))):
            fail(sentence.format("model"))
        for mine, its in zip(self.infos, other.infos, strict=True):
            if not _close(*(_by_client(info, self.population) for info in (mine, its))):
                fail(sentence.format("RoundInfo"))


def _check_info(
    info: RoundInfo, change: Tensor, arrived: list[ClientUpdates], traits: Traits
) -> None:
    """Check what a method says of a round that changed the model like this."""
    ids = [n for updates in arrived for n in updates.clients.tolist()]
    listed = info.clients.tolist()
    if not (bool(info.direction.isfinite().all()) and bool(info.weights.isfinite().all())):
        when = "a round with updates" if ids else "a round without updates"
        fail(f"in {when}, the direction or a weight is not finite; divide by max(1, their number)")
    if sorted(listed) != sorted(ids):
        fail(
            f"the RoundInfo has the clients {listed}, but updates came from {ids}; list each of "
            "these once, and begin every round without clients"
        )
    if not _close(info.direction, change):
        fail("the direction of the RoundInfo is not the change of the model")
    if traits.averages_updates and not traits.scales_coordinates:
        weights = dict(zip(listed, info.weights.tolist(), strict=True))
        total = torch.zeros_like(change)
        for updates in arrived:
            factors = [weights.get(n, 0.0) for n in updates.clients.tolist()]
            total += torch.tensor(factors, dtype=total.dtype) @ updates.deltas
        if not _close(info.direction, total):
            fail(
                "the direction is not the sum of the updates with the weights of the RoundInfo, as "
                "the trait averages_updates says"
            )


def _check_weights(method: Algorithm[Any], course: _Course, other: _Course) -> None:
    """Check that weights are the same with other updates and other numbers of steps."""
    if method.traits.weights_follow_updates:
        return
    for mine, its in zip(course.infos, other.infos, strict=True):
        if not _close(*(_by_client(info, course.population) for info in (mine, its))):
            fail(
                "weights depend on updates or numbers of steps; let the trait "
                "weights_follow_updates be true"
            )


def _check_resumed(method: Algorithm[Any], whole: _Course, stop: int) -> None:
    """Check that another object of the method goes on from a stored state bit for bit."""
    resumed = _Course(method, whole.population)
    resumed.driver.state = from_tensors(resumed.driver.state, whole.states[stop])
    resumed.run(stop)
    if not all(map(_same, resumed.models[1:], whole.models[stop + 1 :])):
        fail(
            f"a run that is resumed in round {stop} goes on otherwise; keep all that a round "
            "depends on in the state"
        )


def _check_with_model(method: Algorithm[Any], course: _Course) -> None:
    """Check that a wrapper can move the model."""
    model = course.driver.state.model + 1.0
    if not torch.equal(method.with_model(course.driver.state, model).model, model):
        fail("with_model returns a state with another model than the one that it was given")


def _who_comes(t: int, clients: int) -> Tensor:
    """Return the clients of a round: nobody in rounds 0, 4, 8, ..., one, some or all in others."""
    draws = np.random.default_rng(t)
    size = [0, 1, clients, int(draws.integers(1, clients + 1))][t % 4]
    return torch.from_numpy(np.sort(draws.permutation(clients)[:size]))


def _vectors(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state, and of those in it, that have the shape of a model."""
    for part in fields(state):
        value = getattr(state, part.name)
        if is_dataclass(value):
            yield from _vectors(value)
        elif isinstance(value, Tensor) and value.shape == (_SIZE,) and value.is_floating_point():
            yield value


def _by_client(info: RoundInfo, population: Population) -> Tensor:
    """Return the weight of every client in a round, NaN for those that it does not list, (N,)."""
    weights = torch.full((population.clients,), torch.nan, dtype=torch.float64)
    weights[info.clients] = info.weights.double()
    return weights


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _close(one: Tensor, other: Tensor) -> bool:
    rounding = 1e-9 if one.dtype == torch.float64 else 1e-4
    return torch.allclose(one, other, rtol=rounding, atol=rounding, equal_nan=True)
