"""Values that a user gives for every client: in order of ids, or by the clients' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, list_names
from fedtide.population import Population

Name = str | int
"""A client's name in such a mapping; 7 and "7" are the same name."""


def order_by_id(field: str, values: Any, population: Population) -> Any:
    """Return the values in order of the clients' ids; a list is in this order already.

    Args:
        field: the field that an error names.
        values: one per client, in a list, or in a mapping by name, or by id if clients have no
            names.
        population: the clients.

    Raises:
        InvalidInputError: no client has a given name, a name is given twice, or a client is
            missing.

    >>> population = Population(clients=2, names=np.array(["ann", "bob"]))
    >>> order_by_id("rates", {"bob": 0.1, "ann": 0.3}, population)
    [0.3, 0.1]
    """
    if not isinstance(values, Mapping):
        return values
    names = [str(name) for name in population.names_of(np.arange(population.clients)).tolist()]
    given = {str(name): value for name, value in values.items()}
    if len(given) < len(values):
        raise InvalidInputError(
            f"{field}: a name is given both as a number and as text; give it once"
        )
    unknown, missing = given.keys() - set(names), set(names) - given.keys()
    if unknown:
        as_numbers = {str(int(name)) for name in missing if name.isascii() and name.isdigit()}
        hint = "put names that look like numbers in quotes" if as_numbers & unknown else ""
        raise InvalidInputError(
            f"{field}: no client is called {list_names(sorted(unknown))} (the clients: "
            f"{list_names(names)}); {hint or 'correct the names'}"
        )
    if missing:
        raise InvalidInputError(
            f"{field}: nothing for {list_names(sorted(missing))}; give each client a value"
        )
    return [given[name] for name in names]


def scale_to_finite_sum(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return nonnegative weights scaled by a power of two, so that their sum is finite.

    The share of each in the sum keeps its bits, unless it is extremely small.

    >>> weights = scale_to_finite_sum(np.array([1e308, 1e308, 0.0]))
    >>> weights / weights.sum()
    array([0.5, 0.5, 0. ])
    """
    return np.asarray(np.ldexp(weights, -np.frexp(weights.max())[1]))


def in_any_order(values: Any) -> Any:
    """Return the values in any order, for checks before the population is known."""
    return [*values.values()] if isinstance(values, Mapping) else values
