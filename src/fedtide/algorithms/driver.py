"""The driver of a round, which simulator, deployment, replays and reports all use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Generic

import numpy as np
import torch
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
from fedtide.errors import InvalidInputError
from fedtide.population import Population

Train = Callable[[Instructions, Cohort], ClientUpdates]
"""Trains a part of a cohort as instructed and returns the updates that arrived."""

Chunk = tuple[Instructions, Cohort]
"""A part of a cohort whose clients start from the same model, shape (d,), and how it trains."""


class RoundDriver(Generic[StateT]):
    """Owns the state of an algorithm and takes it through rounds.

    `run` is a whole round. Where training takes time, as in a deployment, the same four steps are
    called one by one: `choose_cohort`, `instruct`, `absorb` for every chunk of updates, `step`.
    The driver looks at shapes and at who is in a round; `fedtide.testing.check_method` checks the
    rest of the contract.

    Args:
        algorithm: the method to drive.
        model: x_0, shape (d,).
        population: the clients.

    Attributes:
        state: of the algorithm.

    Raises:
        InvalidInputError: a hyper-parameter does not fit the population; in a round, a tensor of
            another shape than the contract says, clients that do not exist, or one that is there
            twice.

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
        self._clients = population.clients
        self._arrived: list[Tensor] = []

    @property
    def output(self) -> Tensor:
        """The model that the algorithm recommends so far, shape (d,)."""
        output = self.algorithm.output(self.state)
        _require_shape("output: its model", output, self.state.model)
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
        other (`choose_cohort`) and says which these are (`Instructions.starts`): they train
        together.

        Args:
            cohort: the clients that train.
            size: how many clients a chunk has at most; None: no limit.
        """
        first, size = 0, size or max(1, len(cohort))
        while first < len(cohort):
            part = cohort.select(slice(first, first + size))
            instructions = self.instruct(part.clients)
            if instructions.model.ndim == 1:
                yield instructions, part
                first += len(part)
                continue
            ends = _ends_of_runs(instructions.starts, len(part))
            if len(ends) > 1 and first + len(part) < len(cohort):
                ends.pop()  # these clients may have the same model as the next ones
            for begin, end in pairwise([0, *ends]):
                own = instructions.select(slice(begin, end))
                yield replace(own, model=own.model[0], starts=None), part.select(slice(begin, end))
            first += ends[-1]

    def choose_cohort(self, cohort: Cohort) -> Cohort:
        """Return the clients that train, given those that take part."""
        chosen = self.algorithm.choose_cohort(self.state, cohort)
        if chosen is not cohort:
            self._require_clients("choose_cohort", chosen.clients)
        return chosen

    def instruct(self, clients: Tensor) -> Instructions:
        """Return how these clients, shape (S,), should train."""
        instructions = self.algorithm.instruct(self.state, clients)
        model, rows = self.state.model, self.state.model.expand(len(clients), -1)
        if instructions.model is not model:
            own = instructions.model.ndim == 2
            _require_shape("instruct: its model", instructions.model, rows if own else model)
        if instructions.correction is not None:
            _require_shape("instruct: its correction", instructions.correction, rows)
        return instructions

    def weigh(self, updates: ClientUpdates) -> Tensor | None:
        """Return the weights of the sum that may replace the updates, see `Algorithm.weigh`."""
        return self.algorithm.weigh(self.state, updates)

    def absorb(self, updates: ClientUpdates | WeightedTotal) -> None:
        """Fold in a chunk of the round's updates, or its sum."""
        self._arrived.append(updates.clients)
        if isinstance(updates, WeightedTotal):
            self.state = self.algorithm.absorb_total(self.state, updates)
        else:
            self.state = self.algorithm.absorb(self.state, updates)

    def step(self, lr: float) -> RoundInfo:
        """End the round and return what happened; `lr` is γ_t."""
        model = self._end_round()
        self.state, info = self.algorithm.step(self.state, lr)
        _require_shape("step: its model", self.state.model, model)
        _require_shape("step: its direction", info.direction, model)
        if info.weights.shape != info.clients.shape:
            raise InvalidInputError(
                f"algorithm.step: its RoundInfo has weights of shape {tuple(info.weights.shape)} "
                f"for clients of shape {tuple(info.clients.shape)}; give one for each"
            )
        return info

    def advance(self, lr: float) -> tuple[Tensor, Tensor]:
        """End the round as `step` does, bit for bit, in less memory where the method can.

        A method for large models has a function `advance` with the arguments of `step`, which
        returns clients and weights without the direction.

        Returns:
            The clients and weights of `RoundInfo`, both of shape (S,).
        """
        advance = getattr(self.algorithm, "advance", None)
        if advance is None:
            info = self.step(lr)
            return info.clients, info.weights
        self._end_round()
        self.state, clients, weights = advance(self.state, lr)
        return clients, weights

    def _end_round(self) -> Tensor:
        """Return the model before the step, after a look at whose updates have arrived."""
        if self._arrived:
            self._require_clients("absorb", torch.cat(self._arrived))
            self._arrived = []
        return self.state.model

    def _require_clients(self, function: str, clients: Tensor) -> None:
        ids = np.sort(clients.cpu().numpy())
        known = len(ids) == 0 or 0 <= ids[0] <= ids[-1] < self._clients
        if not known or (ids[1:] == ids[:-1]).any():
            raise InvalidInputError(
                f"algorithm.{function}: the clients of the round are {ids!s:.60}; give ids from 0 "
                f"to {self._clients - 1}, each at most once"
            )


def _require_shape(what: str, found: Tensor, like: Tensor) -> None:
    """Raise InvalidInputError unless a tensor has the shape and the dtype of another one."""
    if found.shape != like.shape or found.dtype != like.dtype:
        raise InvalidInputError(
            f"algorithm.{what} has shape {tuple(found.shape)} and dtype {found.dtype}; return one "
            f"of shape {tuple(like.shape)} and dtype {like.dtype}"
        )


def _ends_of_runs(starts: Tensor | None, clients: int) -> list[int]:
    """Return where each run of clients with equal numbers ends; None: all differ.

    >>> _ends_of_runs(torch.tensor([4, 4, 7]), 3), _ends_of_runs(None, 3)
    ([2, 3], [1, 2, 3])
    """
    if starts is None:
        return [*range(1, clients + 1)]
    return [*(starts.diff().nonzero().flatten() + 1).tolist(), clients]
