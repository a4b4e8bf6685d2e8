"""The population of clients, as known before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtide.validation import require_one_per_client, require_whole_number

Names = NDArray[Any]
"""The names of N clients, each at most once: whole numbers, or strings."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True)
class Population:
    """The N clients of a problem.

    Its arrays cannot be written to, because runs of one problem share them: copy one to change it.

    Args:
        clients: N, the number of clients; their ids are 0..N-1.
        samples: the number of samples of each client, shape (N,); None if clients hold functions.
        class_shares: the share of each class in each client's samples, shape (N, C), rows summing
            to 1; None without classes.
        rates: the participation rate p_n of each client, its long-run probability of taking part,
            shape (N,); None if unknown.
        names: the clients' names in the data, by id, shape (N,): logs, traces and results name
            clients by them; None: clients are only numbered.
        seed: of the run, for methods that draw random numbers or prepare the problem themselves;
            None: there is none, as in a federation.

    Raises:
        InvalidInputError: the number of clients is not a whole number of at least 1, or an array
            does not have N rows.

    >>> Population(clients=2, names=np.array(["ann", "bob"])).names_of(np.array([1]))
    array(['bob'], dtype='<U3')
    """

    clients: int
    samples: NDArray[np.int64] | None = None
    class_shares: NDArray[np.float64] | None = None
    rates: NDArray[np.float64] | None = None
    names: Names | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        require_whole_number("clients", self.clients)
        for name in ("samples", "class_shares", "rates", "names"):
            array = getattr(self, name)
            if array is not None:
                require_one_per_client(name, array, self.clients)
                object.__setattr__(self, name, read_only(array))

    def names_of(self, clients: NDArray[np.int64]) -> Names:
        """Return the names of these clients; their ids if clients are only numbered."""
        return clients if self.names is None else self.names[clients]


def read_only(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Return a view of the array that cannot be written to, for code of a user.

    >>> read_only(np.arange(3)).sort()
    Traceback (most recent call last):
    ValueError: sort array is read-only
    """
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view
