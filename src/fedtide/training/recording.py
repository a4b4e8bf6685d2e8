"""Recording a function of tensors on a GPU once, to replay it in a single call."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from fedtide.errors import first_line

TensorFunction = Callable[..., tuple[Tensor, ...]]

_SHARE = 4  # inputs and outputs of recordings may take 1/4 of a GPU's memory
_MOST_DROPS = 2  # a recording dropped this often is not made again: that would cost more time

_replaying = Lock()
"""Held while recording or replaying: recordings share memory, and PyTorch records one at a time."""


class RecordedFunction:
    """A function of tensors that is recorded on a GPU once and then replayed in a single call.

    A recording keeps its inputs and outputs. If all recordings together take too much memory, as
    with large cohorts of many sizes, the others are dropped, and recorded again when they are
    needed. After a second drop a function is called directly: where several recordings that do not
    fit together are needed in turn, each would be dropped before it is replayed.

    Any thread may call it.

    Args:
        function: a function of tensors on one GPU, whose shapes and strides never change. It must
            not read any value. If it cannot be recorded, it is called directly, with a warning.
        fixed: how many of the last tensors are read in place, such as all samples; if one has
            moved, the function is recorded again. The other tensors are copied to where the
            recording reads them.
    """

    def __init__(self, function: TensorFunction, fixed: int) -> None:
        self._function, self._fixed = function, fixed
        self._drops = 0
        self._places: list[int] | None = None
        self._inputs: list[Tensor] = []
        self._outputs: tuple[Tensor, ...] = ()
        self._repeat: Callable[[], None] | None = None

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return what the function returns."""
        count = len(tensors) - self._fixed
        places = [tensor.data_ptr() for tensor in tensors[count:]]
        with _replaying:
            if places != self._places and self._drops < _MOST_DROPS:
                self._forget()  # frees the memory first
                self._record(tensors, count)
                self._places = places
            if self._repeat is not None:
                torch._foreach_copy_(self._inputs, list(tensors[:count]))
                self._repeat()
                return tuple(output.clone() for output in self._outputs)  # overwritten by next call
        return self._function(*tensors)

    @property
    def bytes(self) -> int:
        """The number of bytes that the inputs and outputs take."""
        return sum(t.numel() * t.element_size() for t in (*self._inputs, *self._outputs))

    def _forget(self) -> None:
        self._repeat, self._places, self._inputs, self._outputs = None, None, [], ()

    def _record(self, tensors: Sequence[Tensor], count: int) -> None:
        """Record the function with copies of the first `count` tensors, or warn if that fails."""
        try:
            inputs = [tensor.clone() for tensor in tensors[:count]]
            self._repeat, self._outputs = _record(self._function, (*inputs, *tensors[count:]))
            self._inputs = inputs
        except RuntimeError as error:
            _warn(f"local steps are not recorded on the GPU and run slower: {first_line(error)}")
            if isinstance(error, torch.OutOfMemoryError):  # so that the function itself can run
                _drop_others(self)
                _memory_of_graphs.cache_clear()
            return
        _recorded.add(self)
        if sum(one.bytes for one in _recorded) > recording_bytes(tensors[0]):
            _drop_others(self)


_recorded: WeakSet[RecordedFunction] = WeakSet()


def can_record(like: Tensor) -> bool:
    """Return whether functions can be recorded on the device of a tensor."""
    return like.device.type == "cuda"


def recording_bytes(like: Tensor) -> float:
    """Return how many bytes recordings may keep on the device of a tensor."""
    if like.device.type != "cuda":
        return math.inf
    return torch.cuda.get_device_properties(like.device).total_memory / _SHARE


def _drop_others(kept: RecordedFunction) -> None:
    """Free the memory of all other recordings."""
    for other in _recorded:
        if other is not kept and other.bytes:
            other._drops += 1
            other._forget()


def _record(
    function: TensorFunction, tensors: Sequence[Tensor]
) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Return a function that repeats this call, and the tensors that it writes to."""
    device = tensors[0].device
    with torch.cuda.device(device):
        graph: torch.cuda.CUDAGraph = torch.cuda.CUDAGraph()
        stream = _stream_of_graphs(device)
        stream.wait_stream(torch.cuda.current_stream())
        try:
            # if the capture fails, only the outer of the two contexts leaves the stream
            with torch.cuda.stream(stream):
                function(*tensors)  # libraries choose kernels and allocate memory at the first call
                pool = _memory_of_graphs(device).pool()
                with _capture(graph, stream, pool=pool):
                    outputs = function(*tensors)
        finally:  # even after an error, before anything else writes to the tensors' memory
            torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, outputs


def _capture(graph: Any, stream: Any, **where: Any) -> torch.cuda.graph:
    """Return a context that records operations; other threads may use the GPU meanwhile."""
    return torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local", **where)


@cache
def _stream_of_graphs(device: torch.device) -> torch.cuda.Stream:
    """Return a device's stream for captures; PyTorch's own belongs to the first device used."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def _memory_of_graphs(device: torch.device) -> torch.cuda.CUDAGraph:
    """Return a graph whose memory all others share, as no two run at the same time.

    It is never replayed. PyTorch frees the memory together with the last graph that uses it.
    """
    graph = torch.cuda.CUDAGraph()
    with _capture(graph, _stream_of_graphs(device)):
        torch.zeros(1, device=device)
    return graph


@cache
def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
