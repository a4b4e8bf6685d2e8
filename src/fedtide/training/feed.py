"""Which samples a client uses in which local step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import BadInput
from fedtide.population import Population
from fedtide.problems.problem import Plan
from fedtide.randomness import hashes
from fedtide.training.local import LocalTraining
from fedtide.training.shuffle import Epochs

Ints = NDArray[np.int64]


class Feed:
    """Plans the minibatches of a run: shuffled epochs that go on from round to round.

    The b-th local step that client n ever takes uses the batch number b mod B_n of its epoch number
    b div B_n, where B_n is its number of batches in an epoch; the order of an epoch is a function
    of (seed, n, epoch). So `taken`, the steps taken so far, is all there is to remember.

    Args:
        population: whose `samples` say how many samples each client holds (None: functions).
        local: steps, epochs and batch size.
        seed: of the run.

    Raises:
        BadInput: a batch size or epochs where clients hold no samples.
    """

    def __init__(self, population: Population, local: LocalTraining, seed: int) -> None:
        self.taken = np.zeros(population.clients, dtype=np.int32)
        self._sizes = population.samples
        self._seed = seed
        self._epochs, self._steps = local.epochs, local.steps
        if self._sizes is None:
            if local.batch_size is not None or local.epochs is not None:
                field = "batch_size" if local.batch_size is not None else "epochs"
                raise BadInput(
                    f"{field}: the clients of this problem hold no samples; leave it out"
                )
            return
        largest, smallest = int(self._sizes.max()), int(self._sizes.min())
        self._shuffled = Epochs(self._sizes, seed)
        self._batch = min(local.batch_size or largest, largest)
        self._full = local.batch_size is None
        even = smallest == largest and largest % self._batch == 0
        self._padded = not even if self._full or self._epochs else smallest < self._batch

    def plan(self, clients: Ints) -> Plan:
        """Return the local steps to come of these clients, shape (S,), and count them as taken."""
        steps = self._steps_of(clients)
        number = np.arange(steps.max(initial=0))[:, None] + self.taken[clients].astype(np.int64)
        active = np.arange(len(number))[:, None] < steps
        self.taken[clients] += steps.astype(np.int32)
        positions, mask = self._positions(clients, number)
        return Plan(
            clients=clients,
            keys=hashes(self._seed, "step", clients, number).view(np.int64),
            positions=positions,
            mask=mask,
            active=None if self._epochs is None else active,
        )

    def _steps_of(self, clients: Ints) -> Ints:
        if self._epochs is None:
            return np.full(len(clients), self._steps, dtype=np.int64)
        return self._epochs * self._batches_of(clients)

    def _batches_of(self, clients: Ints) -> Ints:
        """Return B_n: complete batches only, unless a round is counted in epochs."""
        assert self._sizes is not None
        sizes = self._sizes[clients]
        if self._epochs is None:
            return np.maximum(sizes // self._batch, 1)
        return -(-sizes // self._batch)

    def _positions(
        self, clients: Ints, number: Ints
    ) -> tuple[Ints | None, NDArray[np.bool_] | None]:
        """Return the positions (I or 1, S, B) of the batches with these numbers, and their mask."""
        if self._sizes is None or len(clients) == 0:
            return None, None
        sizes = self._sizes[clients][:, None]
        if self._full:
            place = np.broadcast_to(np.arange(self._batch), (1, len(clients), self._batch))
        else:
            epoch, batch = np.divmod(number, self._batches_of(clients))
            place = batch[..., None] * self._batch + np.arange(self._batch)
        inside = place < sizes
        place = np.minimum(place, sizes - 1)
        if not self._full:
            place = self._shuffled.lookup(clients, epoch, place)
        return place, inside if self._padded else None
