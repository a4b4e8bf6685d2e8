"""The limits of a machine: memory bandwidth and matrix products, and so the least time of a round.

    python benchmarks/limits.py

A round cannot be faster than its matrix products and convolutions at the rate of large ones, nor
than reading each sample of its minibatches, writing each update and reading it again at the memory
bandwidth. Other data of a round (models, gradients, activations) could stay in caches.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from measuring import machine
from workload import Workload

_SIZE = 2048
_IMAGES, _CHANNELS, _PIXELS, _KERNEL = 64, 64, 36, 5
_FLOATS = 2**27
_REPEATS = 5


@dataclass(frozen=True)
class Need:
    """The least that a round needs.

    Args:
        flops: of its matrix products and convolutions.
        bytes: read from and written to memory.
        dtype: of the products.
    """

    flops: float
    bytes: float
    dtype: torch.dtype = torch.float32

    @property
    def milliseconds(self) -> float:
        """The least time of a round."""
        return 1000 * max(self.flops / product_rate(self.dtype), self.bytes / bandwidth())

    @property
    def bound(self) -> str:
        """What bounds it."""
        by_products = self.flops / product_rate(self.dtype) > self.bytes / bandwidth()
        return "products" if by_products else "memory"

    def share(self, milliseconds: float) -> str:
        """Return the share of the limit that rounds of so many milliseconds reach."""
        return f"{100 * self.milliseconds / milliseconds:.0f} % ({self.bound})"


def need(work: Workload, model: nn.Module, dtype: torch.dtype = torch.float32) -> Need:
    """Return the least that a round of federated averaging with this network needs."""
    steps = work.cohort * work.steps
    sample = torch.randn(work.shape)
    update = sum(p.numel() * p.element_size() for p in model.parameters())
    moved = steps * work.batch * sample.numel() * sample.element_size() + 2 * work.cohort * update
    # in float32, an LSTM is one operation of oneDNN, which is not counted
    counted = copy.deepcopy(model).double()
    with FlopCounterMode(display=False) as counter:
        outputs = counted(sample.double().expand(work.batch, *work.shape))
        outputs.sum().backward()
    return Need(float(steps * counter.get_total_flops()), float(moved), dtype)


@cache
def product_rate(dtype: torch.dtype) -> float:
    """Return FLOP/s of a large product of matrices, or of a convolution if that is faster.

    They come from different libraries: on an AMD processor of family 26, PyTorch's products in
    float32 (MKL) reach less than half of the rate of its convolutions (oneDNN), which is nearly
    that of the hardware.
    """
    a, b = (torch.randn(_SIZE, _SIZE, dtype=dtype) for _ in range(2))
    images = torch.randn(_IMAGES, _CHANNELS, _PIXELS, _PIXELS, dtype=dtype)
    weights = torch.randn(_CHANNELS, _CHANNELS, _KERNEL, _KERNEL, dtype=dtype)
    images = images.to(memory_format=torch.channels_last)
    outputs = _IMAGES * _CHANNELS * (_PIXELS - _KERNEL + 1) ** 2
    return max(
        2 * _SIZE**3 / _seconds(lambda: a @ b),
        2 * outputs * _CHANNELS * _KERNEL**2 / _seconds(lambda: torch.conv2d(images, weights)),
    )


@cache
def bandwidth() -> float:
    """Return bytes/s of copying data too large for any cache: read once, written once."""
    a, b = (torch.zeros(_FLOATS) for _ in range(2))
    return 2 * a.numel() * a.element_size() / _seconds(lambda: b.copy_(a))


def _seconds(run: Callable[[], object]) -> float:
    """Return the least time of some repeats: a limit is reached when nothing interferes."""
    run()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def sentence() -> str:
    """Return the measured rates in words."""
    return (
        f"This machine copies {bandwidth() / 1e9:.0f} GB/s (read and written bytes) and reaches "
        f"{product_rate(torch.float32) / 1e9:.0f} GFLOP/s in float32 and "
        f"{product_rate(torch.bfloat16) / 1e9:.0f} in bfloat16, in products of {_SIZE} x {_SIZE} "
        f"matrices or in convolutions of {_KERNEL} x {_KERNEL} pixels and {_CHANNELS} channels, "
        "whichever is faster."
    )


def about() -> str:
    """Return what the tables mean by a limit."""
    return (
        f"{sentence()} The limit of a round follows from these rates: the time of its matrix "
        "products and convolutions, or that of reading the samples of its minibatches, writing "
        "each update and reading it again, whichever is longer (in brackets). What else a round "
        "moves could stay in caches. So no program can be faster than the limit; whether one could "
        "reach it is open."
    )


if __name__ == "__main__":
    print(machine())
    print(sentence())
