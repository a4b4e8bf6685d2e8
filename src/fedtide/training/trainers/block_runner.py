"""Running the local steps of one client, or of a stacked chunk of clients, block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedtide.activity import COMPILING, activity
from fedtide.algorithms.base import Instructions
from fedtide.errors import first_line
from fedtide.problems.base import BatchInputs, BatchPlan, Task
from fedtide.training.devices import is_cpu
from fedtide.training.local_optimizers import adam_scales, count_moments
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers._cpu_operations import cpu_operations
from fedtide.training.trainers._graph_capture import (
    TensorFunction,
    capture,
    compile_graph,
    has_constants,
)
from fedtide.training.trainers._recurrent_layers import StackableRecurrence
from fedtide.training.trainers.base import StackingError, Trained
from fedtide.training.trainers.step_block import BlockInputs, StepBlock, Tensors

_Blocks = dict[Any, TensorFunction]

_CAPTURED: WeakKeyDictionary[Task, _Blocks] = WeakKeyDictionary()
"""The captured blocks of each live task; runs of several methods on one task share them."""
_SHARED: deque[tuple[object, _Blocks]] = deque(maxlen=4)
"""The captured blocks of the last families of tasks; runs with several seeds share them."""
_capturing = Lock()


class BlockRunner:
    """Runs local steps on tensors of one client, or stacked over a chunk of clients.

    A block of steps is captured once per set of shapes, and compiled if asked for. Between the
    steps of a compiled block nothing returns to Python, and a minibatch is used while it is in
    cache.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        stacked: whether models and batches have a leading dimension over clients.
        compiled: whether to compile (needs a C++ compiler on CPU).
        block_steps: how many steps a block has at most.
    """

    def __init__(
        self,
        task: Task,
        local: LocalTraining,
        stacked: bool,
        compiled: bool,
        block_steps: int,
    ) -> None:
        self._task, self._local = task, local
        self._stacked, self._compiled, self._block_steps = stacked, compiled, block_steps
        self._own = _CAPTURED.setdefault(task, {})
        self._shared = self._own if task.seed_family is None else _shared_blocks(task.seed_family)

    def prepare(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        batch_inputs: BatchInputs,
        lr: float,
        buffers: torch.Tensor | None = None,
    ) -> Callable[[], Trained]:
        """Return what trains, and returns the updates Δ_n, shape (S, d), or (d,) for one client.

        Any thread may call it; where the plan is a single block, it does nothing but run that.

        Args:
            instructions: how to train; the correction has shape (S, d), or (d,) for one client.
            plan: the steps of the chunk, or of the one client.
            batch_inputs: those of the plan.
            lr: γ.
            buffers: where they start, shape (S, d_b), or (d_b,) for one client; None: none.
        """
        x, correction = instructions.model, instructions.correction
        at_start = instructions.gradients_at_start
        inputs = BlockInputs(
            x=(x,),
            correction=() if correction is None else (correction.contiguous(),),
            mu=(x.new_tensor(instructions.mu),) if instructions.mu else (),
            lr=(x.new_tensor(lr),),
            scales=self._scales(len(plan.step_index), x),
            buffers=() if buffers is None else (buffers.contiguous(),),
        )
        parts = list(_split_steps(plan, self._block_steps))
        batch_inputs = tuple(part.contiguous() for part in batch_inputs)
        if len(parts) == 1:
            block = self._prepare_block(at_start, plan, parts[0], batch_inputs, inputs)
            return lambda: Trained(*block())
        return partial(self._run_blocks, at_start, plan, parts, batch_inputs, inputs)

    def _run_blocks(
        self,
        at_start: bool,
        plan: BatchPlan,
        parts: list[slice],
        batch_inputs: BatchInputs,
        inputs: BlockInputs,
    ) -> Trained:
        """Run the plan's steps in several blocks."""
        x = inputs.x[0]
        leading = (len(plan.clients),) if self._stacked else ()
        block = self._block(at_start, 0)
        y = block.tensors(x.expand(*leading, -1).clone())
        moments = tuple(map(torch.zeros_like, y * count_moments(self._local)))
        inputs = inputs._replace(y=y, moments=moments)
        for part in parts:
            moved = self._prepare_block(at_start, plan, part, batch_inputs, inputs)()
            inputs = inputs.with_state(moved)
        return Trained(block.flat(inputs.y) - x, *inputs.buffers)

    def _prepare_block(
        self,
        at_start: bool,
        plan: BatchPlan,
        part: slice,
        batch_inputs: BatchInputs,
        inputs: BlockInputs,
    ) -> Callable[[], Tensors]:
        """Return what runs these of the plan's steps."""
        inputs = inputs._replace(
            scales=tuple(scales[part] for scales in inputs.scales),
            idle=_idle(plan, part, inputs.x[0].device),
            batch_inputs=tuple(steps if len(steps) == 1 else steps[part] for steps in batch_inputs),
        )
        block = self._block(at_start, part.stop - part.start)
        return partial(self._function(block, inputs), *inputs.flat, *self._task.batch_data)

    def _scales(self, steps: int, like: torch.Tensor) -> Tensors:
        """Return the scales of all steps of Adam, (I, 2)."""
        if self._local.optimizer == "sgd":
            return ()
        return (like.new_tensor([*adam_scales(self._local, steps)]),)

    def _block(self, at_start: bool, steps: int) -> StepBlock:
        return StepBlock(self._task, self._local, self._stacked, at_start, steps)

    def _function(self, block: StepBlock, inputs: BlockInputs) -> TensorFunction:
        """Return the block for inputs of these shapes, captured if it was not before."""
        local = self._local
        key = (
            (self._compiled, block.stacked, block.gradients_at_start, block.steps),
            (local.momentum, local.weight_decay, local.projection),
            (local.optimizer, local.betas, local.eps),
            tuple(
                tuple((t.shape, t.stride(), t.dtype) for t in group)
                for group in (*inputs, self._task.batch_data)
            ),
        )
        function = self._find(key)
        if function is None:
            with _capturing:
                function = self._find(key)
                if function is None:  # another thread may have been faster
                    function, lasts = self._capture(block, inputs)
                    (self._shared if lasts else self._own)[key] = function
        return function

    def _find(self, key: Any) -> TensorFunction | None:
        return self._own.get(key) or self._shared.get(key)

    def _capture(self, block: StepBlock, inputs: BlockInputs) -> tuple[TensorFunction, bool]:
        """Return the block, and whether it holds nothing of the task."""
        task, count = self._task, len(inputs.flat)
        examples = [*inputs.flat, *task.batch_data]

        def function(*tensors: torch.Tensor) -> Tensors:
            given = replace(block, task=task.with_batch_data(tensors[count:]))
            return given(inputs.with_tensors(tensors[:count]))

        operations = None
        if self._compiled and is_cpu(examples[0]):
            stacked = block.stacked and inputs.batch_inputs
            operations = cpu_operations(inputs.batch_inputs[0].shape[1] if stacked else 0)
        with _stacking(block.stacked):
            graph = capture(function, examples, operations)
        if graph is function:
            return graph, False
        lasts = not has_constants(graph)
        if not self._compiled:
            return graph, lasts
        with activity(COMPILING):
            return compile_graph(graph, examples), lasts


def _shared_blocks(family: object) -> _Blocks:
    """Return the blocks of a family of tasks."""
    for known, blocks in _SHARED:
        if known == family:
            return blocks
    _SHARED.append((family, {}))
    return _SHARED[-1][1]


@contextmanager
def _stacking(stacked: bool) -> Iterator[None]:
    """Choose kernels that stack over clients, and turn errors of stacking into a StackingError."""
    # a process-wide setting, which only the thread that captures may change
    kernels = sdpa_kernel(SDPBackend.MATH) if stacked else nullcontext()
    try:
        with kernels, StackableRecurrence() if stacked else nullcontext():
            yield
    except RuntimeError as error:
        if not stacked or "memory" in str(error):
            raise
        reason = first_line(error).partition(". ")[0]
        raise StackingError(
            f"trainer: this model cannot be stacked over clients ({reason}); use trainer: threaded "
            "or reference"
        ) from error


def _split_steps(plan: BatchPlan, most: int) -> Iterator[slice]:
    """Yield blocks of `most` steps, and of the steps that remain.

    These are one block more; or one block per step where the number of steps varies from round to
    round, since a block is captured for every length.
    """
    steps = len(plan.step_index)
    whole = steps - steps % most
    for first in range(0, whole, most):
        yield slice(first, first + most)
    size = 1 if plan.active is not None else steps - whole
    for first in range(whole, steps, size or 1):
        yield slice(first, first + size)


def _idle(plan: BatchPlan, part: slice, device: torch.device) -> Tensors:
    """Return which clients have finished their steps, (I, S)."""
    if plan.active is None:
        return ()
    return (torch.as_tensor(~plan.active[part], device=device),)
