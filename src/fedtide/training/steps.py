"""The local steps of one client, or of a stacked chunk of clients, recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.problems.layout import Params
from fedtide.problems.problem import Batch, Task
from fedtide.training.local import LocalTraining
from fedtide.training.projection import Projection
from fedtide.training.recording import Recording, record
from fedtide.training.trainer import Round, local_direction

_RECORDED: WeakKeyDictionary[Task, dict[Any, Recording]] = WeakKeyDictionary()
"""The recorded steps of each task that is alive; runs of several methods on it share them."""
_recording = Lock()


class Steps:
    """Takes local steps with tensors that are those of one client, or stacked over a chunk.

    The direction of a step is recorded once for each set of shapes, and compiled if asked for; the
    models move in place.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        stacked: whether models and batches have a leading dimension over clients.
        compiled: whether to use torch.compile.
    """

    def __init__(self, task: Task, local: LocalTraining, stacked: bool, compiled: bool) -> None:
        self._task, self._local = task, local
        self._stacked, self._compiled = stacked, compiled
        self._names = list(task.layout.shapes)
        self._recorded = _RECORDED.setdefault(task, {})

    def take(
        self,
        round: Round,
        y: list[Tensor],
        x: list[Tensor],
        drift: list[Tensor],
        batches: Iterable[Batch],
        active: Iterable[NDArray[Any] | None],
    ) -> list[Tensor]:
        """Take the local steps: change the models in place, and return them.

        Args:
            round: what the clients share.
            y: the models before the first step, tensor by tensor.
            x: the start model.
            drift: the corrections; empty for none.
            batches: the batch of each step.
            active: for each step which of the clients take it, None for all of them.
        """
        momentum = bool(self._local.momentum)
        m = [torch.zeros_like(t) for t in y] if momentum else []
        mu = [round.start.new_tensor(round.mu)] if round.mu else []
        for taking, batch in zip(active, batches, strict=False):
            arguments = [*y, *m, *x, *drift, *mu, *batch]
            direction = self._recording_for(round, bool(drift), arguments)(*arguments)
            for tensor, along in zip(y, direction, strict=True):
                tensor.add_(along if taking is None else _only(taking, along), alpha=-round.lr)
            if self._local.projection is not None:
                y = self._projected(self._local.projection, y)
            m = list(direction) if momentum else m
        return y

    def _projected(self, projection: Projection, y: list[Tensor]) -> list[Tensor]:
        leading = int(self._stacked)
        flat = torch.cat([tensor.flatten(leading) for tensor in y], dim=-1)
        return list(self._task.layout.unflatten(projection(flat)).values())

    def _recording_for(self, round: Round, drift: bool, arguments: list[Tensor]) -> Recording:
        """Return the direction for arguments of these shapes."""
        local = self._local
        key = (
            (self._stacked, self._compiled, round.frozen, bool(round.mu), drift),
            (local.momentum, local.weight_decay),
            tuple((t.shape, t.dtype) for t in arguments),
        )
        found = self._recorded.get(key)
        if found is None:
            with _recording:
                found = self._recorded.get(key)
                if found is None:  # another thread may have been quicker
                    found = self._recorded[key] = self._record(round, drift, arguments)
        return found

    def _record(self, round: Round, drift: bool, arguments: list[Tensor]) -> Recording:
        """Record the direction as a function of the single tensors in `arguments`."""
        recording = record(self._flat(round, drift, len(arguments)), arguments)
        if not self._compiled:
            return recording
        compiled: Recording = torch.compile(recording, dynamic=False)
        compiled(*arguments)  # now, while no other thread records or compiles
        return compiled

    def _flat(self, round: Round, drift: bool, size: int) -> Callable[..., tuple[Tensor, ...]]:
        n, momentum, mu = len(self._names), bool(self._local.momentum), bool(round.mu)
        counts = (n, n * momentum, n, n * drift, int(mu))
        direction = local_direction(self._task, self._local, round.frozen)
        if self._stacked:
            dims = (0, 0, None, 0 if drift else None, None)
            direction = torch.func.vmap(direction, in_dims=dims + (0,) * (size - sum(counts)))

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            y, m, x, corrections, weight, batch = _cut(tensors, counts)
            along = direction(
                self._named(y),
                self._named(m) if momentum else {},
                self._named(x),
                self._named(corrections) if drift else None,
                weight[0] if mu else None,
                *batch,
            )
            return tuple(along[name] for name in self._names)

        return flat

    def _named(self, tensors: tuple[Tensor, ...]) -> Params:
        return dict(zip(self._names, tensors, strict=True))


def _cut(tensors: tuple[Tensor, ...], counts: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    """Return the tensors in groups of these sizes, and what is left."""
    ends = [*accumulate(counts), len(tensors)]
    return [tensors[i:j] for i, j in zip([0, *ends], ends, strict=False)]


def _only(active: NDArray[Any], along: Tensor) -> Tensor:
    """Return the direction of a chunk, shape (S, ...), zero for the clients that are not active."""
    resting = torch.as_tensor(~active, device=along.device)
    return along.masked_fill(resting.view(-1, *[1] * (along.dim() - 1)), 0)
