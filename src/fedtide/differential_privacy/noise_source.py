"""Noise: reproducible for simulations, secret for deployments; and how it is added to a sum."""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.randomness import generator

_AVERAGED = 4
_GRID_BITS = 20  # the noise has a standard deviation of at least 2^20 grid spacings


def standard_normals(size: int, t: int, seed: int | None) -> Tensor:
    """Return independent standard normal numbers for round t, shape (size,), float64.

    Args:
        size: how many.
        t: the round.
        seed: the numbers are a function of it and the round, so anyone who knows it can
            subtract them; None: from the operating system's cryptographic random source.
    """
    if seed is not None:
        return torch.from_numpy(generator(seed, "privacy", t).standard_normal(size))
    return torch.from_numpy(_secret_normals(size))


def _secret_normals(size: int) -> NDArray[np.float64]:
    """Return standard normals from os.urandom by the method of Box and Muller.

    Each is the sum of four, divided by 2, so that single results of the logarithm cannot be
    recognised by their last digits (Holohan and Braghin, "Secure Random Sampling in Differential
    Privacy", 2021). That makes such an attack harder, but proves nothing.
    """
    half = (size + 1) // 2
    total = np.zeros(2 * half)
    for _ in range(_AVERAGED):
        words = np.frombuffer(os.urandom(16 * half), dtype=np.uint64)
        uniforms = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # never 0
        radius, angle = np.sqrt(-2 * np.log(uniforms[:half])), 2 * np.pi * uniforms[half:]
        total += np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return np.asarray(total[:size] / np.sqrt(_AVERAGED))


def add_noise(direction: Tensor, deviation: float, row: Tensor) -> Tensor:
    """Return a sum with noise, rounded to a grid that is far finer than the noise.

    If noise of the direction's dtype were simply added, results would be multiples of the spacing
    of such numbers, so the last digits of a small sum could rule out that an update is in it
    (Mironov, "On Significance of the Least Significant Bits for Differential Privacy", 2012). So
    both are added in float64 and rounded to multiples of one power of two, which does not depend on
    the updates. Later operations on the sum, such as the conversion to the model's dtype, reveal
    nothing more.

    Args:
        direction: without noise, shape (d,).
        deviation: the standard deviation of the noise; 0: without noise.
        row: its standard normal numbers, float64, shape (d,).
    """
    if not deviation:
        return direction
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID_BITS)
    exact = (deviation * to_device_of(row, direction)).add_(direction)
    return exact.div_(grid).round_().mul_(grid).to(direction)
