"""The driver of a round, which simulator, deployment, replays and reports all use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Generic

from torch import Tensor

from fedtide.algorithms.base import (
    Algorithm,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundInfo,
    StateT,
    WeightedTotal,
)
from fedtide.algorithms.contract_checks import ContractCheck, find_own
from fedtide.population import Population

Train = Callable[[Instructions, Cohort], ClientUpdates]
"""Trains a part of a cohort as instructed and returns the updates that arrived."""

Chunk = tuple[Instructions, Cohort]
"""A part of a cohort whose clients start from the same model, shape (d,), and how it trains."""


class RoundDriver(Generic[StateT]):
    """Owns the state of an algorithm and takes it through rounds.

    `run` is a whole round. Where training takes time, as in a deployment, the same four steps are
    called one by one: `choose_cohort`, `instruct`, `absorb` for every chunk of updates, `step`.
    What a user-defined method returns is checked in every round (see `ContractCheck`).

    Args:
        algorithm: the method to drive.
        model: x_0, shape (d,).
        population: the clients.

    Attributes:
        state: of the algorithm.

    Raises:
        InvalidInputError: a hyper-parameter does not fit the population; in a round, a user-defined
            method breaks the contract.

    >>> import torch
    >>> from fedtide.algorithms.fedavg import FedAvg
    >>> driver = RoundDriver(FedAvg(), torch.zeros(1), Population(2))
    >>> def train(instructions, cohort):
    ...     ones = torch.ones(len(cohort))
    ...     return ClientUpdates(cohort.clients, cohort.weights, ones[:, None], 0.1, ones)
    >>> info = driver.run(Cohort.uniform(torch.tensor([0, 1])), lr=0.1, train=train)
    >>> driver.state.model, info.weights
    (tensor([1.]), tensor([0.5000, 0.5000]))
    """

    def __init__(self, algorithm: Algorithm[StateT], model: Tensor, population: Population) -> None:
        self.algorithm = algorithm
        self.state = algorithm.init(model, population)
        self._check: ContractCheck | None = None
        if own := list(find_own(algorithm)):
            self._check = ContractCheck(own, self.state, model, population.clients)

    @property
    def output(self) -> Tensor:
        """The model that the algorithm recommends so far, shape (d,)."""
        output: Tensor = self._call("output")
        if self._check is not None:
            self._check.after_output(output)
        return output

    def run(
        self, cohort: Cohort, lr: float, train: Train, chunk_size: int | None = None
    ) -> RoundInfo:
        """Run one round and return what happened.

        Args:
            cohort: the clients that take part.
            lr: γ_t, the local learning rate of this round.
            train: trains a chunk of the cohort; it may leave clients out.
            chunk_size: how many clients train together at most; None: all.
        """
        chosen = self.choose_cohort(cohort)
        for instructions, chunk in self.chunks(chosen, chunk_size):
            self.absorb(train(instructions, chunk))
        return self.step(lr)

    def chunks(self, cohort: Cohort, size: int | None = None) -> Iterator[Chunk]:
        """Yield the cohort in chunks of consecutive clients that start from the same model.

        A method that gives clients models of their own puts those with the same model next to each
        other (`choose_cohort`): they train together.

        Args:
            cohort: the clients that train.
            size: how many clients a chunk has at most; None: no limit.
        """
        first, size = 0, size or max(1, len(cohort))
        while first < len(cohort):
            part = cohort.select(slice(first, first + size))
            instructions = self.instruct(part.clients)
            ends = [len(part)]
            if instructions.model.ndim == 2:
                ends = _ends_of_runs(instructions.model)
                if len(ends) > 1 and first + len(part) < len(cohort):
                    ends.pop()  # these clients may have the same model as the next ones
            for begin, end in pairwise([0, *ends]):
                yield _one_start(instructions, slice(begin, end)), part.select(slice(begin, end))
            first += ends[-1]

    def choose_cohort(self, cohort: Cohort) -> Cohort:
        """Return the clients that train, given those that take part."""
        chosen: Cohort = self._call("choose_cohort", cohort)
        if self._check is not None:
            self._check.after_choose_cohort(chosen)
        return chosen

    def instruct(self, clients: Tensor) -> Instructions:
        """Return how these clients, shape (S,), should train."""
        instructions: Instructions = self._call("instruct", clients)
        if self._check is not None:
            vectors = self.algorithm.message_vectors
            self._check.after_instruct(clients, instructions, vectors)
        return instructions

    def weigh(self, updates: ClientUpdates) -> Tensor | None:
        """Return the weights of the sum that may replace the updates, see `Algorithm.weigh`."""
        weights: Tensor | None = self._call("weigh", updates)
        if self._check is not None:
            self._check.after_weigh(updates.clients, weights)
        return weights

    def absorb(self, updates: ClientUpdates | WeightedTotal) -> None:
        """Fold in a chunk of the round's updates, or its sum."""
        if isinstance(updates, WeightedTotal):
            state = self._call("absorb_total", updates)
        else:
            state = self._call("absorb", updates)
        if self._check is not None:
            self._check.after_absorb(self.state, updates.clients, state)
        self.state = state

    def step(self, lr: float) -> RoundInfo:
        """End the round and return what happened; `lr` is γ_t."""
        found = self._call("step", lr)
        if self._check is not None:
            self._check.after_step(self.state, found)
        info: RoundInfo
        self.state, info = found
        return info

    def advance(self, lr: float) -> None:
        """End the round as `step` does, in less memory where the method can."""
        if self._check is not None:
            self.step(lr)  # the checks need the `RoundInfo`
        else:
            self.state = self.algorithm.advance(self.state, lr)

    def _call(self, name: str, *args: Any) -> Any:
        """Call a function of the method with the current state."""
        function = getattr(self.algorithm, name)
        if self._check is None:
            return function(self.state, *args)
        return self._check.call(name, function, self.state, *args)


def _ends_of_runs(models: Tensor) -> list[int]:
    """Return where each run of equal rows ends, for rows (S, d).

    >>> import torch
    >>> _ends_of_runs(torch.tensor([[1.0], [1.0], [2.0]]))
    [2, 3]
    """
    changes = (models[1:] != models[:-1]).any(dim=1).nonzero().flatten() + 1
    return [*changes.tolist(), len(models)]


def _one_start(instructions: Instructions, rows: slice) -> Instructions:
    """Return the instructions of these clients, which start from the same model."""
    own = instructions.select(rows)
    return own if own.model.ndim == 1 else replace(own, model=own.model[0])
