"""Copies from CPU memory to a GPU that do not make the CPU wait."""

from __future__ import annotations

from torch import Tensor


def to_device_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor on the device of another one: itself if it is there, otherwise a copy.

    After a copy to a GPU, PyTorch's `to` waits until the GPU has finished its queue. With
    `non_blocking=True` it does not wait, and the source may still be changed or freed as soon as
    the call returns: CUDA first copies pageable memory (that of any tensor not pinned) to a buffer
    of its own. If that is full, which may happen with megabytes, CUDA itself waits.

    Copies to Apple GPUs, which would read the source only later, and copies to the CPU, whose
    result could be read too early, do wait.

    >>> import torch
    >>> to_device_of(torch.ones(2), torch.zeros(3, device="meta")).device
    device(type='meta')
    """
    source, device = tensor.device, like.device
    if source == device:
        return tensor
    return tensor.to(device, non_blocking=source.type == "cpu" and device.type != "mps")
