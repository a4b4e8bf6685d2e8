"""Running the local steps of one client, or of a stacked chunk of clients, block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedtide.activity import COMPILING, activity
from fedtide.algorithms.base import Instructions
from fedtide.device_copies import to_device_of
from fedtide.errors import first_line
from fedtide.problems.base import BatchInputs, BatchPlan, Task
from fedtide.training import devices
from fedtide.training.local_step import adam_scales, count_moments
from fedtide.training.local_training import LocalTraining
from fedtide.training.recording import RecordedFunction, can_record
from fedtide.training.trainers._cpu_operations import cpu_operations
from fedtide.training.trainers._graph_capture import (
    TensorFunction,
    capture,
    compile_graph,
    draws_random_numbers,
    has_constants,
)
from fedtide.training.trainers._pooling_first import PoolingFirst
from fedtide.training.trainers._recurrent_layers import StackableRecurrence
from fedtide.training.trainers.base import Trained, UnsuitableTrainerError, find_or_add
from fedtide.training.trainers.step_block import BlockInputs, StepBlock, Tensors

_Blocks = dict[Any, TensorFunction]

_SHARED: deque[tuple[object, _Blocks]] = deque(maxlen=4)
"""The captured blocks of the last families of tasks; runs of several seeds and methods share them.
They hold no data: data are arguments."""
_capturing = Lock()


class BlockRunner:
    """Runs local steps on tensors of one client, or stacked over a chunk of clients.

    A block of steps is captured once per set of shapes, and compiled if asked for. A compiled block
    does not return to Python between its steps, and uses each minibatch while it is in the cache.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        stacked: whether models and batches have a leading dimension over clients.
        compiled: whether to compile (needs a C++ compiler on CPU).
        block_steps: how many steps a block has at most.
        sizes: the sizes to which a stacked chunk may shrink once its last clients have taken all
            their steps.
    """

    def __init__(
        self,
        task: Task,
        local: LocalTraining,
        stacked: bool,
        compiled: bool,
        block_steps: int,
        sizes: Sequence[int] = (),
    ) -> None:
        self._task, self._local = task, local
        self._stacked, self._compiled, self._block_steps = stacked, compiled, block_steps
        self._sizes = sizes
        optimizer = (local.optimizer, local.betas, local.eps, local.momentum, local.weight_decay)
        self._settings = (*optimizer, _to_key(local.projection))
        self._used: _Blocks = {}
        family = ref(task) if task.seed_family is None else task.seed_family
        self._shared = find_or_add(_SHARED, family)

    def prepare(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        batch_inputs: BatchInputs,
        lr: float,
        buffers: torch.Tensor | None = None,
    ) -> Callable[[], Trained]:
        """Return a function that trains and returns Δ_n, shape (S, d), or (d,) for one client.

        Any thread may call it; if the plan is a single block, it does nothing but run that block.

        Args:
            instructions: of the chunk, or of the one client, whose correction has shape (d,).
            plan: their steps.
            batch_inputs: those of the plan.
            lr: γ.
            buffers: initial ones, shape (S, d_b), or (d_b,) for one client; None: none.
        """
        x, mu, correction = instructions.model, instructions.mu, instructions.correction
        inputs = BlockInputs(
            x=(x,),
            correction=() if correction is None else (correction.contiguous(),),
            mu=(x.new_full((), mu),) if mu else (),
            lr=(x.new_full((), lr),),
            scales=self._scales(len(plan.step_index), x),
            buffers=() if buffers is None else (buffers.contiguous(),),
            batch_inputs=tuple(part.contiguous() for part in batch_inputs),
        )
        at_start = instructions.gradients_at_start
        block = StepBlock(self._task, self._local, self._stacked, at_start, len(plan.step_index))
        parts = list(_split_steps(plan, self._block_steps))
        if len(parts) == 1:
            run = self._prepare_block(block, plan, parts[0], inputs)
            return lambda: Trained(*run())
        return partial(self._run_blocks, block, plan, parts, inputs)

    def _run_blocks(
        self, block: StepBlock, plan: BatchPlan, parts: list[slice], inputs: BlockInputs
    ) -> Trained:
        """Run the plan's steps in several blocks."""
        x = inputs.x[0]
        leading = (len(plan.clients),) if self._stacked else ()
        y = block.tensors(x.expand(*leading, -1).clone())
        if not devices.is_cpu(x):  # as every later block has them
            y = tuple(tensor.contiguous() for tensor in y)
        moments = tuple(map(torch.zeros_like, y * count_moments(self._local)))
        inputs = inputs._replace(y=y, moments=moments)
        ended: list[Trained] = []
        for part in parts:
            size = self._size_needed(plan, part)
            if size == 0:
                break
            if size < len(plan.clients):
                rest = inputs.select(slice(size, None))
                ended.append(Trained(block.flat(rest.y) - x, *rest.buffers))
                inputs, plan = inputs.select(slice(size)), plan.select(np.arange(size))
            inputs = inputs.with_state(self._prepare_block(block, plan, part, inputs)())
        ended.append(Trained(block.flat(inputs.y) - x, *inputs.buffers))
        return Trained.join(ended[::-1])

    def _size_needed(self, plan: BatchPlan, part: slice) -> int:
        """Return the size to which a chunk may shrink before these steps; 0: all have finished."""
        size = len(plan.clients)
        if plan.active is None or not self._sizes:
            return size
        active = np.flatnonzero(plan.active[part.start])
        if len(active) == 0:
            return 0
        return min((fit for fit in self._sizes if fit > active[-1]), default=size)

    def _prepare_block(
        self, whole: StepBlock, plan: BatchPlan, part: slice, inputs: BlockInputs
    ) -> Callable[[], Tensors]:
        """Return a function that runs this part of the plan's steps."""
        block = replace(whole, steps=len(plan.step_index[part]))
        if block.steps < whole.steps:
            inputs = inputs._replace(
                scales=tuple(scales[part] for scales in inputs.scales),
                batch_inputs=tuple(
                    given if len(given) == 1 else given[part] for given in inputs.batch_inputs
                ),
            )
        if plan.active is not None:
            idle = to_device_of(torch.from_numpy(~plan.active[part]), inputs.x[0])
            inputs = inputs._replace(idle=(idle,))
        key = (block.gradients_at_start, block.steps, *map(len, inputs), *map(_form, inputs.flat))
        function = self._used.get(key)
        if function is None:
            function = self._used[key] = self._find_or_capture(block, inputs)
        return partial(function, *inputs.flat, *self._task.batch_data)

    def _scales(self, steps: int, like: torch.Tensor) -> Tensors:
        """Return the scales of all steps of Adam, shape (I, 2)."""
        if self._local.optimizer == "sgd":
            return ()
        scales = torch.tensor([*adam_scales(self._local, steps)], dtype=like.dtype)
        return (to_device_of(scales, like),)

    def _find_or_capture(self, block: StepBlock, inputs: BlockInputs) -> TensorFunction:
        """Return the block for inputs of these shapes."""
        tensors = (*inputs.flat, *self._task.batch_data)
        key = (
            (self._compiled and torch.get_num_threads(), block.stacked),  # which are compiled in
            (block.gradients_at_start, block.steps, *self._settings),
            tuple(map(len, inputs)),
            tuple((t.shape, _strides(t), t.dtype) for t in tensors),
        )
        with _capturing:
            found = self._shared.get(key) or self._used.get(key)
            if found is None:
                found, blocks = self._capture(block, inputs)
                blocks[key] = found
        return found

    def _capture(self, block: StepBlock, inputs: BlockInputs) -> tuple[TensorFunction, _Blocks]:
        """Return the block, and where to keep it: with others, if it does not refer to the task."""
        task, count = self._task, len(inputs.flat)
        examples = [*inputs.flat, *task.batch_data]

        def function(*tensors: torch.Tensor) -> Tensors:
            given = replace(block, task=task.with_batch_data(tensors[count:]))
            return given(inputs.with_tensors(tensors[:count]))

        operations = None
        if self._compiled and devices.is_cpu(examples[0]):
            stacked = block.stacked and inputs.batch_inputs
            operations = cpu_operations(inputs.batch_inputs[0].shape[1] if stacked else 0)
        with _stacking(block.stacked):
            graph = capture(function, examples, operations)
            if draws_random_numbers(graph):
                raise RuntimeError("it draws random numbers")
        if graph is function:  # which holds the task
            return graph, self._used
        blocks = self._used if has_constants(graph) else self._shared
        if self._compiled:
            with activity(COMPILING):
                graph = compile_graph(graph, examples)
        if block.stacked and can_record(examples[0]):  # one chunk at a time
            graph = RecordedFunction(graph, fixed=len(task.batch_data))
        return graph, blocks


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride()


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides, with 0 for dimensions of one element, whose stride is arbitrary."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if size > 1 else 0 for size, stride in sizes)


def _to_key(value: object) -> object:
    """Return the value, or if it is not hashable, a key that equals only itself.

    A user's projection with a list as a field is not hashable.
    """
    try:
        hash(value)
    except TypeError:
        return object()
    return value


@contextmanager
def _stacking(stacked: bool) -> Iterator[None]:
    """Select kernels that can be stacked; turn errors into an UnsuitableTrainerError."""
    # a process-wide setting, which only the thread that captures may change
    kernels = sdpa_kernel(SDPBackend.MATH) if stacked else nullcontext()
    try:
        with kernels, PoolingFirst(), StackableRecurrence() if stacked else nullcontext():
            yield
    except RuntimeError as error:
        if devices.lacks_memory(error):
            raise
        reason = first_line(error).partition(". ")[0]
        fails, others = "stacked over clients", "threaded or reference"
        if not stacked:  # torch.func differentiates the steps, which not every operation allows
            fails, others = "trained on threads", "reference"
        raise UnsuitableTrainerError(
            f"trainer: this model cannot be {fails} ({reason}); use trainer: {others}"
        ) from error


def _split_steps(plan: BatchPlan, most: int) -> Iterator[slice]:
    """Yield blocks of `most` steps, then the remaining steps.

    These form one more block; or one block per step if the number of steps varies from round to
    round, because every length of a block has to be captured.
    """
    steps = len(plan.step_index)
    whole = steps - steps % most
    for first in range(0, whole, most):
        yield slice(first, first + most)
    size = 1 if plan.active is not None else steps - whole
    for first in range(whole, steps, size or 1):
        yield slice(first, first + size)
