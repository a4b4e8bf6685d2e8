"""The local steps of one client, or of a stacked chunk of clients, recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable
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
from fedtide.training.recording import Recording, record
from fedtide.training.trainer import Round, local_step, of_step

_RECORDED: WeakKeyDictionary[Task, dict[Any, Recording]] = WeakKeyDictionary()
"""The recorded steps of each task that is alive; runs of several methods on it share them."""
_recording = Lock()


class Steps:
    """Takes local steps with tensors that are those of one client, or stacked over a chunk.

    What a step does is recorded once for each set of shapes, and compiled if asked for.

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
        batches: Batch,
        active: list[NDArray[Any] | None],
    ) -> list[Tensor]:
        """Return the models after the local steps, tensor by tensor.

        Args:
            round: what the clients share.
            y: the models before the first step.
            x: the start model.
            drift: the corrections; empty for none.
            batches: the batches of all steps, the step first.
            active: for each step which of the clients take it, None for all of them.
        """
        m = [torch.zeros_like(t) for t in y] if self._local.momentum else []
        scalars = [round.start.new_tensor(round.lr)]
        if round.mu:
            scalars.append(round.start.new_tensor(round.mu))
        for k, taking in enumerate(active):
            arguments = [*y, *m, *x, *drift, *scalars, *of_step(batches, k)]
            after = list(self._recording_for(round, bool(drift), arguments)(*arguments))
            if taking is not None:
                after = _where(taking, after, [*y, *m])
            y, m = after[: len(y)], after[len(y) :]
        return y

    def _recording_for(self, round: Round, drift: bool, arguments: list[Tensor]) -> Recording:
        """Return the step for arguments of these shapes."""
        local = self._local
        key = (
            (self._stacked, self._compiled, round.frozen, bool(round.mu), drift),
            (local.momentum, local.weight_decay, local.projection),
            tuple((t.shape, t.dtype) for t in arguments),
        )
        found = self._recorded.get(key)
        if found is None:
            with _recording:
                found = self._recorded.get(key) or self._record(round, drift, arguments)
                self._recorded[key] = found
        return found

    def _record(self, round: Round, drift: bool, arguments: list[Tensor]) -> Recording:
        """Record one step as a function of the single tensors in `arguments`."""
        recording = record(self._flat(round, drift, len(arguments)), arguments)
        if not self._compiled:
            return recording
        compiled: Recording = torch.compile(recording, dynamic=False)
        compiled(*arguments)  # now, while no other thread records or compiles
        return compiled

    def _flat(self, round: Round, drift: bool, size: int) -> Callable[..., tuple[Tensor, ...]]:
        n, momentum, mu = len(self._names), bool(self._local.momentum), bool(round.mu)
        counts = (n, n * momentum, n, n * drift, 1, int(mu))
        step = local_step(self._task, self._local, round.frozen)
        if self._stacked:
            dims = (0, 0, None, 0 if drift else None, None, None)
            step = torch.func.vmap(step, in_dims=dims + (0,) * (size - sum(counts)))

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            y, m, x, corrections, lr, weight, batch = _cut(tensors, counts)
            after, momenta = step(
                self._named(y),
                self._named(m) if momentum else {},
                self._named(x),
                self._named(corrections) if drift else None,
                lr[0],
                weight[0] if mu else None,
                *batch,
            )
            return *(after[k] for k in self._names), *(momenta[k] for k in momenta)

        return flat

    def _named(self, tensors: tuple[Tensor, ...]) -> Params:
        return dict(zip(self._names, tensors, strict=True))


def _cut(tensors: tuple[Tensor, ...], counts: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    """Return the tensors in groups of these sizes, and what is left."""
    ends = [*accumulate(counts), len(tensors)]
    return [tensors[i:j] for i, j in zip([0, *ends], ends, strict=False)]


def _where(active: NDArray[Any], after: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    """Return what stands after the step for the active clients, and before it for the rest."""
    return [
        torch.where(
            torch.as_tensor(active, device=new.device).view(-1, *[1] * (new.dim() - 1)), new, old
        )
        for new, old in zip(after, before, strict=True)
    ]
