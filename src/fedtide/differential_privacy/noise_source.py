"""Standard normal numbers: reproducible ones for simulations, secret ones for deployments."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.randomness import generator

_AVERAGED = 4


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
