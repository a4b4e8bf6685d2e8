"""What depends on the device on which models and data lie: it is decided here.

A GPU works through a queue, and the process that fills it runs ahead until it asks for a value.
So a round asks once, at its end (`read`); methods whose weights follow the updates (`Clipped`,
`Median`, `TrimmedMean`) and `on_nonfinite: drop` ask once more per chunk, and memories in a file
whenever they are read or written. What a round copies to the GPU, such as the numbers of its
samples, joins the queue (`fedtide.device_copies`); only for megabytes CUDA may wait. Chunks are
whole cohorts, as far as memory allows, since an operation takes about as long for a hundred clients
as for one.

To start an operation from Python takes longer than most operations do, so a block of local steps is
recorded as a CUDA graph, and repeated in one call (`RecordedFunction`).

The tests run without a GPU: on the device "meta", whose tensors have no values, so that any look at
one fails, with a count of the copies that would wait, and with a stand-in for graphs.
`benchmarks/gpu.py` compares a GPU with the CPU, and counts the waits of a round there.
"""

from __future__ import annotations

import math
import platform
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

_SHARE = 16  # updates of a chunk take this part of a GPU's memory: activations take more
_RECORDED = 4  # inputs and outputs of recordings take this part of it, beside those in use
_MOST_DROPS = 2  # of a recording; to make it anew takes longer than it saves if it is then dropped
_OCTAVE = 4  # sizes of chunks per doubling
_MOST = 2**14  # clients in a chunk

_NO_MEMORY = re.compile("out of memory|not enough memory|allocate memory", re.IGNORECASE)
"""What PyTorch says where memory is short; many other errors mention memory formats."""

_replaying = Lock()
"""Recordings share their memory, and PyTorch makes one at a time: no two threads are in one."""


def require_device(name: str) -> None:
    """Check that a device is there.

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
    """Return whether a tensor lies in the computer's memory, where a value costs no waiting."""
    return tensor.device.type == "cpu"


def can_compile(like: Tensor) -> bool:
    """Return whether local steps can be compiled there; on CPU that needs a C++ compiler."""
    return not is_cpu(like) or shutil.which("g++") is not None


@cache
def mkl_lacks_avx512() -> bool:
    """Return whether PyTorch multiplies matrices in float32 with half of the registers' width.

    MKL uses AVX-512 on Intel's processors only. oneDNN uses it on all that have it.
    """
    libraries: Any = torch.backends  # without types
    both = libraries.mkl.is_available() and libraries.mkldnn.is_available()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return both and wide and "Intel" not in machine()


def lacks_bfloat16(like: Tensor) -> bool:
    """Return whether it is a processor without instructions for bfloat16 that computes there.

    PyTorch then replaces them by others, which take several times as long as float32.
    """
    if not is_cpu(like) or platform.machine() not in ("x86_64", "AMD64"):
        return False
    tell = getattr(torch.cpu, "get_capabilities", dict)  # older versions of PyTorch do not
    capabilities: dict[str, bool] = tell()
    known = [capabilities.get(name) for name in ("avx512_bf16", "amx_bf16")]
    return False in known and True not in known


def can_replay(like: Tensor) -> bool:
    """Return whether `RecordedFunction` records functions on the device of a tensor."""
    return like.device.type == "cuda"


def stack_bytes(like: Tensor, cpu_bytes: int) -> int:
    """Return how much memory the updates of a chunk may take on the device of a tensor.

    Args:
        like: on the device.
        cpu_bytes: what they may take on a CPU, and at least on any other device.
    """
    if like.device.type != "cuda":
        return cpu_bytes
    memory = torch.cuda.get_device_properties(like.device).total_memory
    return max(cpu_bytes, memory // _SHARE)


def chunk_sizes() -> tuple[int, ...]:
    """Return the sizes that chunks may have on a GPU.

    A cohort of S clients is one chunk of at most 5/4 S, as steps are captured for every size:

    >>> chunk_sizes()[:12]
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    """
    sizes, step = list(range(1, _OCTAVE)), 1
    while sizes[-1] < _MOST:
        sizes += [step * k for k in range(_OCTAVE, 2 * _OCTAVE)]
        step *= 2
    return tuple(size for size in sizes if size <= _MOST)


def wait_for(like: Tensor) -> None:
    """Wait until the device of a tensor has done all it was asked to, before a clock is read."""
    if like.device.type == "cuda":
        torch.cuda.synchronize(like.device)


def read(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Return the values of tensors on one device: a round on a GPU calls this once.

    Args:
        tensors: of one dtype, of any shapes.

    >>> read([torch.ones(2), torch.zeros(1, 1)])
    [array([1., 1.], dtype=float32), array([[0.]], dtype=float32)]
    """
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu().numpy()
    parts = np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]


def recording_bytes(like: Tensor) -> float:
    """Return how much memory recordings may keep on the device of a tensor."""
    if like.device.type != "cuda":
        return math.inf
    return torch.cuda.get_device_properties(like.device).total_memory / _RECORDED


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that there is not enough memory, of the computer or a GPU.

    >>> lacks_memory(RuntimeError("unsupported memory format")), lacks_memory(MemoryError())
    (False, True)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


class RecordedFunction:
    """A function of tensors that is recorded on a GPU once, and then repeated in a single call.

    A recording keeps its inputs and outputs. If those of a device take too much of its memory, as
    with cohorts of many sizes that fill it, the recording that was not used for longest is dropped,
    and made anew when it is needed. One that is dropped again is not: if several are needed in turn
    that do not fit together, each would be dropped before it is repeated.

    Any thread may call it.

    Args:
        function: of tensors, whose shapes and strides never change, on one GPU. Nothing in it may
            look at a value. One that cannot be recorded is called as it is, with a warning.
        fixed: how many of the last tensors are read where they are, such as all samples; the others
            are copied to where the recording reads them. If these have moved, it is made anew.
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
                return tuple(output.clone() for output in self._outputs)  # overwritten next time
        return self._function(*tensors)

    @property
    def bytes(self) -> int:
        """How much memory the inputs and outputs take."""
        return sum(t.numel() * t.element_size() for t in (*self._inputs, *self._outputs))

    def forget(self) -> None:
        """Forget the recording."""
        self._repeat, self._places, self._inputs, self._outputs = None, None, [], ()

    def drop(self) -> None:
        """Forget the recording, as there is no room for it."""
        self._drops += 1
        self.forget()

    def _record(self, tensors: Sequence[Tensor], count: int) -> None:
        """Record the function with copies of so many tensors, or warn that it cannot be."""
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
        if is_full:  # all that recordings keep, so that the function itself can be called
            _recordings(device).drop_all()
            _memory_of_graphs.cache_clear()


class _Recordings:
    """The recordings on a device, in the order of their last use; they live elsewhere."""

    def __init__(self) -> None:
        self._known: dict[int, ReferenceType[RecordedFunction]] = {}

    def move_to_end(self, replay: RecordedFunction) -> None:
        """Note that a recording is used."""
        self._known.pop(id(replay), None)
        self._known[id(replay)] = ref(replay)

    def add(self, replay: RecordedFunction, most: float) -> None:
        """Add a recording, and drop others until all take at most so many bytes."""
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
    """Return what calls the function again with these tensors, and where it then writes."""
    device = tensors[0].device
    with torch.cuda.device(device):
        graph: torch.cuda.CUDAGraph = torch.cuda.CUDAGraph()
        stream = _stream_of_graphs(device)
        stream.wait_stream(torch.cuda.current_stream())
        try:
            # if the capture fails, only the outer of the two leaves the stream
            with torch.cuda.stream(stream):
                function(*tensors)  # libraries choose their kernels and take their memory
                pool = _memory_of_graphs(device).pool()
                with _capture(graph, stream, pool=pool):
                    outputs = function(*tensors)
        finally:  # also after an error, before others write where the tensors were
            torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, outputs


def _capture(graph: Any, stream: Any, **where: Any) -> torch.cuda.graph:
    """Return a context whose operations are recorded; other threads may use the GPU meanwhile."""
    return torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local", **where)


@cache
def _stream_of_graphs(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all captures on a device; PyTorch's own is that of the first device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def _memory_of_graphs(device: torch.device) -> torch.cuda.CUDAGraph:
    """Return a graph whose memory all others share: none runs while another does.

    It is never replayed. PyTorch frees such memory with the last graph that has a part in it.
    """
    graph = torch.cuda.CUDAGraph()
    with _capture(graph, _stream_of_graphs(device)):
        torch.zeros(1, device=device)
    return graph


@cache
def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
