"""All decisions that depend on the device that holds models and data.

A GPU works through a queue. The process that fills the queue runs ahead until it reads a value, for
which it has to wait. So a round reads values once, at its end (`read`). Methods whose weights
depend on the updates (`Clipped`, `Median`, `TrimmedMean`) and `on_nonfinite: drop` read once more
per chunk, and memories in a file whenever they are read or written. Copies to the GPU, such as the
indices of a round's samples, are queued as well (`fedtide.device_copies`); CUDA may wait only for
copies of megabytes. A chunk is a whole cohort if memory allows, because an operation takes about as
long for a hundred clients as for one.

Launching an operation from Python takes longer than most operations themselves, so a block of local
steps is recorded as a CUDA graph and replayed in one call (`RecordedFunction`).

The tests run without a GPU: on the device "meta", whose tensors have no values, so that reading one
fails; with a count of the copies that would wait; and with a stand-in for graphs.
`benchmarks/gpu.py` compares a GPU with the CPU and counts the waits in a round on the GPU.
"""

from __future__ import annotations

import math
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError, first_line
from fedtide.provenance import machine

TensorFunction = Callable[..., tuple[Tensor, ...]]

_SHARE = 16  # a chunk's updates may take 1/16 of a GPU's memory: activations take more
_RECORDED = 4  # inputs and outputs of recordings may take 1/4 of it, besides those in use
_MOST_DROPS = 2  # a recording dropped this often is not recorded again: that would cost more time
_OCTAVE = 4  # chunk sizes per doubling
_MOST = 2**14  # most clients in a chunk

_NO_MEMORY = re.compile("out of memory|not enough memory|allocate memory", re.IGNORECASE)
"""What PyTorch says when memory runs out; many other errors mention memory *formats*."""

_replaying = Lock()
"""Held while recording or replaying: recordings share memory, and PyTorch records one at a time."""


def require_device(name: str) -> None:
    """Check that a device is available.

    Raises:
        InvalidInputError: it is not.

    >>> require_device("cpu")
    """
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InvalidInputError(
            f"device: {name!r} is not available ({first_line(error, 80)}); use 'cpu'"
        ) from None


def describe(name: str) -> str:
    """Return the name of a GPU, or of the kind of device.

    >>> describe("cpu")
    'cpu'
    """
    device = torch.device(name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_cpu(tensor: Tensor) -> bool:
    """Return whether a tensor is in CPU memory, where reading a value needs no waiting."""
    return tensor.device.type == "cpu"


def can_compile(like: Tensor) -> bool:
    """Return whether local steps can be compiled on a tensor's device; a CPU needs a compiler."""
    return not is_cpu(like) or shutil.which("g++") is not None


@cache
def mkl_lacks_avx512() -> bool:
    """Return whether PyTorch's float32 matrix products use only half of the registers' width.

    MKL uses AVX-512 on Intel processors only; oneDNN uses it on all that have it.
    """
    libraries: Any = torch.backends  # without types
    both = libraries.mkl.is_available() and libraries.mkldnn.is_available()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return both and wide and "Intel" not in machine()


def can_replay(like: Tensor) -> bool:
    """Return whether `RecordedFunction` can record functions on the device of a tensor."""
    return like.device.type == "cuda"


def stack_bytes(like: Tensor, cpu_bytes: int) -> int:
    """Return how many bytes the updates of a chunk may take on the device of a tensor.

    Args:
        like: a tensor on the device.
        cpu_bytes: the limit on a CPU; on other devices the limit is no lower.
    """
    if like.device.type != "cuda":
        return cpu_bytes
    memory = torch.cuda.get_device_properties(like.device).total_memory
    return max(cpu_bytes, memory // _SHARE)


def chunk_sizes() -> tuple[int, ...]:
    """Return the sizes that chunks may have on a GPU.

    Steps are captured for every size, so there are few; a chunk for S clients has at most 5/4 S.

    >>> chunk_sizes()[:12]
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    """
    sizes, step = list(range(1, _OCTAVE)), 1
    while sizes[-1] < _MOST:
        sizes += [step * k for k in range(_OCTAVE, 2 * _OCTAVE)]
        step *= 2
    return tuple(size for size in sizes if size <= _MOST)


def wait_for(like: Tensor) -> None:
    """Wait until the device of a tensor has finished its queue, before a clock is read."""
    if like.device.type == "cuda":
        torch.cuda.synchronize(like.device)


def read(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Return the values of tensors on one device; a round on a GPU calls this once.

    Args:
        tensors: of one dtype and any shapes.

    >>> read([torch.ones(2), torch.zeros(1, 1)])
    [array([1., 1.], dtype=float32), array([[0.]], dtype=float32)]
    """
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu().numpy()
    parts = np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]


def recording_bytes(like: Tensor) -> float:
    """Return how many bytes recordings may keep on the device of a tensor."""
    if like.device.type != "cuda":
        return math.inf
    return torch.cuda.get_device_properties(like.device).total_memory / _RECORDED


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that CPU or GPU memory ran out.

    >>> lacks_memory(RuntimeError("unsupported memory format")), lacks_memory(MemoryError())
    (False, True)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


class RecordedFunction:
    """A function of tensors that is recorded on a GPU once and then replayed in a single call.

    A recording keeps its inputs and outputs. If the recordings on a device together take too much
    memory, as with large cohorts of many sizes, the least recently used one is dropped, and
    recorded again when it is needed. After a second drop it is not recorded again: where several
    recordings that do not fit together are needed in turn, each would be dropped before it is
    replayed.

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
                self.forget()  # frees the memory first
                self._record(tensors, count)
                self._places = places
            if self._repeat is not None:
                _recordings(tensors[0].device).move_to_end(self)
                torch._foreach_copy_(self._inputs, list(tensors[:count]))
                self._repeat()
                return tuple(output.clone() for output in self._outputs)  # overwritten by next call
        return self._function(*tensors)

    @property
    def bytes(self) -> int:
        """The number of bytes that the inputs and outputs take."""
        return sum(t.numel() * t.element_size() for t in (*self._inputs, *self._outputs))

    def forget(self) -> None:
        """Discard the recording."""
        self._repeat, self._places, self._inputs, self._outputs = None, None, [], ()

    def drop(self) -> None:
        """Discard the recording because there is no room for it."""
        self._drops += 1
        self.forget()

    def _record(self, tensors: Sequence[Tensor], count: int) -> None:
        """Record the function with copies of the first `count` tensors, or warn if that fails."""
        device = tensors[0].device
        try:
            inputs = [tensor.clone() for tensor in tensors[:count]]
            self._repeat, self._outputs = _record(self._function, (*inputs, *tensors[count:]))
        except RuntimeError as error:
            _warn(f"local steps are not recorded on the GPU and run slower: {first_line(error)}")
            is_full = isinstance(error, torch.OutOfMemoryError)
        else:
            self._inputs = inputs
            _recordings(device).add(self, recording_bytes(tensors[0]))
            return
        if is_full:  # free the memory of all recordings, so that the function itself can run
            _recordings(device).drop_all()
            _memory_of_graphs.cache_clear()


class _Recordings:
    """The recordings on a device, in the order of their last use, as weak references."""

    def __init__(self) -> None:
        self._known: dict[int, ReferenceType[RecordedFunction]] = {}

    def move_to_end(self, replay: RecordedFunction) -> None:
        """Mark a recording as the last used."""
        self._known.pop(id(replay), None)
        self._known[id(replay)] = ref(replay)

    def add(self, replay: RecordedFunction, most: float) -> None:
        """Add a recording, and drop others until all together take at most `most` bytes."""
        self.move_to_end(replay)
        alive = {key: found for key, known in self._known.items() if (found := known())}
        self._known = {key: self._known[key] for key in alive}
        excess = sum(one.bytes for one in alive.values()) - most
        for key, other in alive.items():
            if excess <= 0 or other is replay:
                return
            excess -= other.bytes
            other.drop()
            del self._known[key]

    def drop_all(self) -> None:
        """Drop all recordings."""
        for known in self._known.values():
            if other := known():
                other.drop()
        self._known = {}


@cache
def _recordings(device: torch.device) -> _Recordings:
    return _Recordings()


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
