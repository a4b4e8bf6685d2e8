"""Who is asked to train: a uniform share of the clients, or a selection whose state is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtide.errors import InvalidInputError, error_prefix
from fedtide.participation.availability.base import AvailableClients
from fedtide.participation.schedule import require_selected
from fedtide.participation.selections import Selection
from fedtide.population import Population
from fedtide.randomness import generator


class SavedSelection:
    """A selection, started for these clients as in a simulation.

    The state that its stream keeps between rounds is read from its attributes, which must be
    numbers and arrays of numbers.

    Args:
        selection: which of the clients that are free are asked to train.
        population: the clients.
        seed: of its random draws.

    Raises:
        InvalidInputError: a parameter does not fit the population, or the stream keeps something
            other than numbers.

    >>> from fedtide.participation import LongestAbsent
    >>> selection = SavedSelection(LongestAbsent(size=1, ties="id"), Population(clients=3), seed=0)
    >>> [selection.select(t, [0, 2]) for t in range(3)]
    [[0], [2], [0]]
    """

    def __init__(self, selection: Selection, population: Population, seed: int) -> None:
        with error_prefix("selection"):
            self._stream = selection.start(population, seed)
        self._clients = population.clients
        self.to_tensors()

    def select(self, t: int, clients: list[int]) -> list[int]:
        """Return which of these clients are asked to train in round t, sorted."""
        available = np.array(clients, dtype=np.int64)
        found = self._stream.select(t, AvailableClients(available.copy()))
        selected: list[int] = require_selected(found, t, available, self._clients).tolist()
        return selected

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the stream's state, by name."""
        kept = {}
        for name, value in self._kept().items():
            try:
                kept[name] = torch.from_numpy(np.array(value))
            except (TypeError, ValueError):  # such as text, and integers beyond 64 bits
                raise InvalidInputError(
                    f"selection: its stream keeps {name}, of the type {type(value).__name__}; a "
                    "federation saves numbers of at most 64 bits, and arrays of them: keep nothing "
                    "else"
                ) from None
        return kept

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what `to_tensors` returned.

        Raises:
            KeyError: something is missing.
        """
        for name in self._kept().keys() - tensors.keys():
            raise KeyError(name)
        for name, tensor in tensors.items():  # `select` may create some, or change their type
            saved, value = tensor.numpy(), getattr(self._stream, name, None)
            if saved.ndim or isinstance(value, np.ndarray):
                setattr(self._stream, name, saved.copy())
            else:
                number = saved[()] if isinstance(value, np.generic) else saved.item()
                setattr(self._stream, name, number)

    def _kept(self) -> dict[str, Any]:
        return vars(self._stream) if self._stream.stateful else {}


def draw_share(
    clients: list[int], fraction: float, least: int, draws: tuple[int, str, int]
) -> list[int]:
    """Return a random share of the clients, sorted.

    Args:
        clients: their numbers, sorted.
        fraction: how many of them, rounded down.
        least: how many at least, if there are so many.
        draws: seed, purpose and round; draws of other ones are independent.
    """
    size = min(len(clients), max(int(len(clients) * fraction), least))
    if size == len(clients):
        return clients
    chosen = generator(*draws).choice(np.array(clients), size, replace=False)
    return sorted(chosen.tolist())
