"""Running statistics of networks over the rounds: averaged over clients, or kept by each client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtide.problems import Task
from fedtide.problems.base import BufferMode


class Buffers:
    """The buffers of a run, such as the running statistics of batch normalisation.

    With mode "average", all clients start a round from the same buffers. These are then replaced by
    the mean over the clients whose updates are used, with equal weights, because an algorithm's
    weights may be far above 1, which makes no sense for a variance; a round without updates changes
    nothing. With "local", every client keeps its own buffers from round to round. (FedBN keeps the
    parameters of these layers local as well: Li et al., "FedBN: Federated Learning on Non-IID
    Features via Local Batch Normalization", ICLR 2021.)

    Args:
        start: initial buffers, shape (d_b,).
        mode: "average" or "local".
        clients: N.

    Attributes:
        values: shape (d_b,), or (N, d_b) with "local".

    >>> buffers = Buffers(torch.zeros(1), "average", clients=3)
    >>> for chunk, trained in [([0], [[3.0]]), ([2], [[5.0]])]:
    ...     buffers.absorb(torch.tensor(chunk), torch.tensor(trained))
    >>> buffers.end_round()
    >>> buffers.of(torch.tensor([0, 1]))
    tensor([[4.],
            [4.]])
    """

    def __init__(self, start: Tensor, mode: BufferMode, clients: int) -> None:
        self._mode = mode
        self.values = start.expand(clients, -1).clone() if mode == "local" else start
        self._sum, self._count = torch.zeros_like(start, dtype=torch.float64), 0

    @classmethod
    def of_task(cls, task: Task, centralised: bool) -> Buffers | None:
        """Return the initial buffers of a task, or None if it has none.

        Args:
            task: what is learnt.
            centralised: whether a single client trains on all data; its buffers count as shared.
        """
        if task.start_buffers is None:
            return None
        mode: BufferMode = "average" if centralised else task.buffer_mode
        return cls(task.start_buffers, mode, task.population.clients)

    def of(self, clients: Tensor) -> Tensor:
        """Return the initial buffers, shape (S, d_b), of these clients, shape (S,)."""
        if self._mode == "local":
            return self.values[clients]
        return self.values.expand(len(clients), -1)

    def absorb(self, clients: Tensor, trained: Tensor) -> None:
        """Take the buffers (S, d_b) of clients (S,) whose updates are used."""
        if self._mode == "local":
            self.values[clients] = trained
            return
        self._sum += trained.double().sum(0)
        self._count += len(clients)

    def end_round(self) -> None:
        """Replace shared buffers by the mean of those absorbed in this round."""
        if self._count:
            self.values = (self._sum / self._count).to(self.values.dtype)
            self._sum, self._count = torch.zeros_like(self._sum), 0
