"""The population of clients, as known before training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.validation import require_one_per_client


@dataclass(frozen=True)
class Population:
    """The N clients of a problem.

    Args:
        clients: N, the number of clients; their ids are 0..N-1.
        samples: the number of samples of each client, shape (N,); None if clients hold functions.
        class_shares: the share of each class in each client's samples, shape (N, C), rows summing
            to 1; None without classes.
        rates: the participation rate p_n of each client, its long-run probability of taking part,
            shape (N,); None if unknown.

    Raises:
        InvalidInputError: no clients, or an array whose first length is not N.
    """

    clients: int
    samples: NDArray[np.int64] | None = None
    class_shares: NDArray[np.float64] | None = None
    rates: NDArray[np.float64] | None = None
    names: NDArray[np.generic] | None = None

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InvalidInputError(f"clients: {self.clients} clients; give at least 1")
        for name in ("samples", "class_shares", "rates"):
            array = getattr(self, name)
            if array is not None:
                require_one_per_client(name, array, self.clients)
