"""Initial parameters of a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedtide.randomness import random_words


def initialise_kaiming(module: nn.Module) -> None:
    """Initialise a network as the programs of Wang & Ji (2022, 2024) do.

    Weights ~ N(0, 2 / fan_in) and zero biases for convolutions and hidden linear layers; the last
    layer keeps PyTorch's U(±1/√fan_in) for weights and biases.
    """
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the module that `build` returns when torch's generator is seeded with `seed`.

    The state of the global generator is restored.

    >>> before = torch.get_rng_state()
    >>> a, b = (build_seeded(lambda: nn.Linear(2, 1), seed=3) for _ in range(2))
    >>> bool((a.weight == b.weight).all()), bool((before == torch.get_rng_state()).all())
    (True, True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(random_words(seed, "initial model")) >> 1)
        return build()
