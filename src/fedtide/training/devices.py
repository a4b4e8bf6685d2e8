"""All decisions that depend on the device that holds models and data.

A GPU works through a queue. The process that fills the queue runs ahead until it reads a value, for
which it has to wait. So a round reads values once, at its end (`read`). Methods whose weights
depend on the updates (`Clipped`, `Median`, `TrimmedMean`) and `on_nonfinite: drop` read once more
per chunk, and memories in a file whenever they are read or written. Copies to the GPU, such as the
indices of a round's samples, are queued as well (`fedtide.device_copies`); CUDA may wait only for
copies of megabytes. A chunk is a whole cohort if memory allows, because an operation takes about as
long for a hundred clients as for one.

Launching an operation from Python takes longer than most operations themselves, so a block of local
steps is recorded as a CUDA graph and replayed in one call (`fedtide.training.recording`).

The tests run without a GPU: on the device "meta", whose tensors have no values, so that reading one
fails; with a count of the copies that would wait; and with a stand-in for graphs.
`benchmarks/gpu.py` compares a GPU with the CPU and counts the waits in a round on the GPU.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError, first_line
from fedtide.provenance import machine

_SHARE = 16  # a chunk's updates may take 1/16 of a GPU's memory: activations take more
_OCTAVE = 4  # chunk sizes per doubling
_MOST = 2**14  # most clients in a chunk

_NO_MEMORY = re.compile("out of memory|not enough memory|allocate memory", re.IGNORECASE)
"""What PyTorch says when memory runs out; many other errors mention memory *formats*."""


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


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that CPU or GPU memory ran out.

    >>> lacks_memory(RuntimeError("unsupported memory format")), lacks_memory(MemoryError())
    (False, True)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))
