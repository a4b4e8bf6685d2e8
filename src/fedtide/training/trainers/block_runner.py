"""The local steps of one client, or of a stacked chunk of clients, recorded and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedtide.problems.base import BatchInputs, BatchPlan, Task
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers._graph_capture import Recording, record
from fedtide.training.trainers.base import RoundContext
from fedtide.training.trainers.step_block import BlockInputs, StepBlock, Tensors

_RECORDED: WeakKeyDictionary[Task, dict[Any, Recording]] = WeakKeyDictionary()
"""The recorded blocks of each task that is alive; runs of several methods on it share them."""
_recording = Lock()


class BlockRunner:
    """Takes local steps with tensors that are those of one client, or stacked over a chunk.

    A block of steps is recorded once for each set of shapes, and compiled if asked for. Between the
    steps of a compiled block nothing returns to Python, and a minibatch is used while it is in
    cache.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        stacked: whether models and batches have a leading dimension over clients.
        compiled: whether to compile (which needs a C++ compiler on CPU).
        block: how many steps a block has at most.
    """

    def __init__(
        self, task: Task, local: LocalTraining, stacked: bool, compiled: bool, block: int
    ) -> None:
        self._task, self._local = task, local
        self._stacked, self._compiled, self._block = stacked, compiled, block
        self._recorded = _RECORDED.setdefault(task, {})

    def take(self, round: RoundContext, plan: BatchPlan, correction: Tensor | None) -> Tensor:
        """Return the updates Δ_n of the chunk, shape (S, d), or of the one client, shape (d,).

        Args:
            round: what the clients share.
            plan: the steps of the chunk, or of the one client.
            correction: the corrections, shape (S, d), or (d,) of the one client.
        """
        inputs = BlockInputs(
            x=(round.start,),
            correction=() if correction is None else (correction.contiguous(),),
            mu=(round.start.new_tensor(round.mu),) if round.mu else (),
            lr=(round.start.new_tensor(round.lr),),
        )
        parts = list(_parts(plan, self._block))
        draws = tuple(part.contiguous() for part in self._task.batch_inputs(plan))
        if len(parts) == 1:
            return self._run(round, plan, parts[0], draws, inputs)[0]
        every = (len(plan.clients),) if self._stacked else ()
        block = self._block_of(round, 0)
        y = block.tensors(round.start.expand(*every, -1).clone())
        m = tuple(map(torch.zeros_like, y)) if self._local.momentum else ()
        for part in parts:
            moved = self._run(round, plan, part, draws, inputs._replace(y=y, m=m))
            y, m = moved[: len(y)], moved[len(y) :]
        return block.flat(y) - round.start

    def _run(
        self,
        round: RoundContext,
        plan: BatchPlan,
        part: slice,
        draws: BatchInputs,
        inputs: BlockInputs,
    ) -> Tensors:
        """Take these of the plan's steps."""
        inputs = inputs._replace(
            resting=_resting(plan, part, round.start.device),
            draws=tuple(steps if len(steps) == 1 else steps[part] for steps in draws),
        )
        block = self._block_of(round, part.stop - part.start)
        return self._recording_of(block, inputs)(*inputs.flat)

    def _block_of(self, round: RoundContext, steps: int) -> StepBlock:
        return StepBlock(self._task, self._local, self._stacked, round.gradients_at_start, steps)

    def _recording_of(self, block: StepBlock, inputs: BlockInputs) -> Recording:
        """Return the block for inputs of these shapes."""
        local = self._local
        key = (
            (self._compiled, block.stacked, block.gradients_at_start, block.steps),
            (local.momentum, local.weight_decay, local.projection),
            tuple(tuple((t.shape, t.stride(), t.dtype) for t in group) for group in inputs),
        )
        found = self._recorded.get(key)
        if found is None:
            with _recording:
                found = self._recorded.get(key)
                if found is None:  # another thread may have been quicker
                    found = self._recorded[key] = self._record(block, inputs)
        return found

    def _record(self, block: StepBlock, inputs: BlockInputs) -> Recording:
        recording = record(lambda *tensors: block(inputs.of(tensors)), list(inputs.flat))
        return _compiled(recording, [*inputs.flat], self._stacked) if self._compiled else recording


def _compiled(recording: GraphModule, examples: list[Tensor], stacked: bool) -> Recording:
    """Return the compiled recording; the recording itself where the compiler fails.

    A stacked block is driven from Python, which is compiled sooner. That of one client on CPU is
    one C++ function: threads run side by side only outside the interpreter's lock, which kernels
    called from Python do not let go.
    """
    in_cpp = not stacked and examples[0].device.type == "cpu"
    options = {"size_asserts": False, "cpp_wrapper": in_cpp}
    try:
        compiled: Recording = torch._inductor.compile(recording, [*examples], options)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"local steps are not compiled: {reason}", RuntimeWarning, stacklevel=2)
        return recording
    return compiled


def _parts(plan: BatchPlan, most: int) -> Iterator[slice]:
    """Yield blocks of steps, `most` in each while they last.

    What is left is one block more; or one for each step, where the number of steps varies from
    round to round, since a block is recorded for every length.
    """
    steps = len(plan.step_index)
    whole = steps - steps % most
    for first in range(0, whole, most):
        yield slice(first, first + most)
    size = 1 if plan.active is not None else steps - whole
    for first in range(whole, steps, size or 1):
        yield slice(first, first + size)


def _resting(plan: BatchPlan, part: slice, device: torch.device) -> Tensors:
    """Return which clients have done their steps already, (I, S)."""
    if plan.active is None:
        return ()
    return (torch.as_tensor(~plan.active[part], device=device),)
