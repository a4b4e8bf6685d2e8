"""Running the local steps of one client, or of a stacked chunk of clients, block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedtide.activity import COMPILING, activity
from fedtide.algorithms.base import Instructions
from fedtide.device_copies import to_device_of
from fedtide.errors import first_line
from fedtide.problems.base import BatchPlan, Task
from fedtide.training import devices
from fedtide.training.local_step import adam_scales, count_moments
from fedtide.training.local_training import LocalTraining
from fedtide.training.recording import RecordedFunction, can_record
from fedtide.training.trainers._cpu_operations import cpu_operations
from fedtide.training.trainers._graph_capture import (
    TensorFunction,
    capture,
    compile_graph,
    has_constants,
)
from fedtide.training.trainers._pooling_first import PoolingFirst
from fedtide.training.trainers._recurrent_layers import StackableRecurrence
from fedtide.training.trainers.base import Trained, UnsuitableTrainerError, find_or_add
from fedtide.training.trainers.step_block import BlockInputs, StepBlock, Tensors

_Blocks = dict[object, TensorFunction]

_SHARED: deque[tuple[object, _Blocks]] = deque(maxlen=8)
"""The captured blocks of the last families of tasks and local settings; runs of several seeds and
methods share them. They hold no data: data are arguments."""
_capturing = Lock()


@dataclass(frozen=True)
class LocalSteps:
    """The local steps of some clients.

    Args:
        inputs: what they are computed from.
        count: I, how many steps there are.
        at_start: whether every gradient is taken at the start model.
        active: False where a client has finished its steps, shape (I, S), in CPU memory; None where
            all clients take all steps.
    """

    inputs: BlockInputs
    count: int
    at_start: bool
    active: NDArray[np.bool_] | None

    @property
    def clients(self) -> int:
        """S, of stacked clients."""
        return self.inputs.batch_inputs[0].shape[1]

    def select(self, clients: slice | NDArray[np.int64]) -> LocalSteps:
        """Return the steps of the clients at these positions."""
        there: slice | torch.Tensor
        if isinstance(clients, slice):
            there = clients
        else:
            there = to_device_of(torch.from_numpy(clients), self.inputs.x[0])
        active = None if self.active is None else self.active[:, clients]
        return LocalSteps(self.inputs.select(there), self.count, self.at_start, active)


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
        self._block = StepBlock(task, local, stacked)
        self._compiled, self._block_steps, self._sizes = compiled, block_steps, sizes
        settings = (
            (stacked, compiled, *map(_form, task.batch_data)),
            (local.optimizer, local.betas, local.eps, local.momentum, local.weight_decay),
            _to_key(local.projection),
        )
        family = ref(task) if task.seed_family is None else task.seed_family
        self._shared = find_or_add(_SHARED, (settings, family))
        self._own: _Blocks = {}  # those that refer to the task

    def start(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        lr: float,
        buffers: torch.Tensor | None = None,
    ) -> LocalSteps:
        """Return the local steps of these clients, or of this one client.

        Args:
            instructions: how they train; the correction of one client has shape (d,).
            plan: their minibatches.
            lr: γ.
            buffers: initial ones, shape (S, d_b), or (d_b,) for one client; None: none.
        """
        x, mu, correction = instructions.model, instructions.mu, instructions.correction
        count = len(plan.step_index)
        inputs = BlockInputs(
            x=(x,),
            correction=() if correction is None else (correction.contiguous(),),
            mu=(x.new_full((), mu),) if mu else (),
            lr=(x.new_full((), lr),),
            scales=self._scales(count, x),
            buffers=() if buffers is None else (buffers.contiguous(),),
            batch_inputs=tuple(part.contiguous() for part in self._task.batch_inputs(plan)),
        )
        return LocalSteps(inputs, count, instructions.gradients_at_start, plan.active)

    def prepare(self, steps: LocalSteps) -> Callable[[], Trained]:
        """Return a function that trains and returns Δ_n, shape (S, d), or (d,) for one client.

        Any thread may call it; if the steps fit into one block, it does nothing but run it.
        """
        parts = list(_split_steps(steps, self._block_steps))
        if len(parts) == 1:
            run = self._prepare_block(steps, parts[0])
            return lambda: Trained(*run())
        return partial(self._run_blocks, steps, parts)

    def _run_blocks(self, steps: LocalSteps, parts: list[slice]) -> Trained:
        """Run steps in several blocks."""
        inputs, block = steps.inputs, self._block
        x = inputs.x[0]
        leading = (steps.clients,) if block.stacked else ()
        y = block.tensors(x.expand(*leading, -1).clone())
        if not devices.is_cpu(x):  # as every later block has them
            y = tuple(tensor.contiguous() for tensor in y)
        moments = tuple(map(torch.zeros_like, y * count_moments(self._local)))
        steps = replace(steps, inputs=inputs._replace(y=y, moments=moments))
        ended: list[Trained] = []
        for part in parts:
            size = self._size_needed(steps, part)
            if size == 0:
                break
            if size < steps.clients:
                rest = steps.select(slice(size, None)).inputs
                ended.append(Trained(block.flat(rest.y) - x, *rest.buffers))
                steps = steps.select(slice(size))
            state = self._prepare_block(steps, part)()
            steps = replace(steps, inputs=steps.inputs.with_state(state))
        ended.append(Trained(block.flat(steps.inputs.y) - x, *steps.inputs.buffers))
        return Trained.join(ended[::-1])

    def _size_needed(self, steps: LocalSteps, part: slice) -> int:
        """Return the size to which a chunk may shrink before these steps; 0: all have finished."""
        if steps.active is None or not self._sizes:
            return steps.clients
        active = np.flatnonzero(steps.active[part.start])
        if len(active) == 0:
            return 0
        return min((fit for fit in self._sizes if fit > active[-1]), default=steps.clients)

    def _prepare_block(self, steps: LocalSteps, part: slice) -> Callable[[], Tensors]:
        """Return a function that takes this part of the steps."""
        inputs, count = steps.inputs, part.stop - part.start
        if count < steps.count:
            inputs = inputs.of_steps(part)
        if steps.active is not None:
            idle = to_device_of(torch.from_numpy(~steps.active[part]), inputs.x[0])
            inputs = inputs._replace(idle=(idle,))
        tensors = inputs.flat
        threads = self._compiled and torch.get_num_threads()  # which are compiled in
        key = (threads, count, steps.at_start, *map(len, inputs), *map(_form, tensors))
        function = self._find(key)
        if function is None:
            with _capturing:
                function = self._find(key) or self._capture(key, inputs, count, steps.at_start)
        return partial(function, *tensors, *self._task.batch_data)

    def _find(self, key: object) -> TensorFunction | None:
        return self._shared.get(key) or self._own.get(key)

    def _scales(self, steps: int, like: torch.Tensor) -> Tensors:
        """Return the scales of all steps of Adam, shape (I, 2)."""
        if self._local.optimizer == "sgd":
            return ()
        scales = torch.tensor([*adam_scales(self._local, steps)], dtype=like.dtype)
        return (to_device_of(scales, like),)

    def _capture(
        self, key: object, inputs: BlockInputs, steps: int, at_start: bool
    ) -> TensorFunction:
        """Return the block for inputs of these shapes; keep it for all tasks that it fits."""
        task, stacked, flat = self._task, self._block.stacked, inputs.flat
        examples = [*flat, *task.batch_data]

        def function(*tensors: torch.Tensor) -> Tensors:
            own = replace(self._block, task=task.with_batch_data(tensors[len(flat) :]))
            return own(inputs.with_tensors(tensors[: len(flat)]), steps, at_start)

        operations = None
        if self._compiled and devices.is_cpu(examples[0]):
            operations = cpu_operations(inputs.batch_inputs[0].shape[1] if stacked else 0)
        with _stacking(stacked):
            graph = capture(function, examples, operations)
        refers_to_task = has_constants(graph)
        if graph is not function:
            if self._compiled:
                with activity(COMPILING):
                    graph = compile_graph(graph, examples)
            if stacked and can_record(examples[0]):  # one chunk at a time
                graph = RecordedFunction(graph, fixed=len(task.batch_data))
        (self._own if refers_to_task else self._shared)[key] = graph
        return graph


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride()


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


def _split_steps(steps: LocalSteps, most: int) -> Iterator[slice]:
    """Yield blocks of `most` steps, then the remaining steps.

    These form one more block; or one block per step if the number of steps varies from round to
    round, because every length of a block has to be captured.
    """
    whole = steps.count - steps.count % most
    for first in range(0, whole, most):
        yield slice(first, first + most)
    size = 1 if steps.active is not None else steps.count - whole
    for first in range(whole, steps.count, size or 1):
        yield slice(first, first + size)
