"""Copies from the computer's memory to a GPU, for which the computer does not wait."""

from __future__ import annotations

from torch import Tensor


def to_device_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor on the device of another one: itself if it is there, otherwise a copy.

    PyTorch's `to` waits, after a copy to a GPU, until the GPU has done all it was asked to. With
    `non_blocking=True` it does not, and the source may still be changed or freed as soon as the
    call returns: CUDA first copies pageable memory, which is that of every tensor that nobody has
    pinned, to memory of its own. If that is full, as it may be for megabytes, CUDA itself waits.

    On Apple's GPUs the source would be read later, and copies to the CPU may be read too early:
    there, and in that direction, PyTorch waits.

    >>> import torch
    >>> to_device_of(torch.ones(2), torch.zeros(3, device="meta")).device
    device(type='meta')
    """
    source, device = tensor.device, like.device
    if source == device:
        return tensor
    return tensor.to(device, non_blocking=source.type == "cpu" and device.type != "mps")
