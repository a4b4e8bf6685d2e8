"""Replacing layers of a network."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replace_layers(
    module: nn.Module, replacement: Callable[[str, nn.Module], nn.Module | None]
) -> nn.Module:
    """Replace layers of `module` and return it.

    A layer that is used under several names is replaced once, and `replacement` gets the first.

    Args:
        module: changed in place, unless it is itself replaced.
        replacement: returns the new layer for a name and a layer; None: keep the layer.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> replace_layers(net, lambda name, layer: nn.Tanh() if name == "1" else None)[1]
    Tanh()
    """
    root = nn.ModuleDict({"root": module})
    layers = [*module.named_modules(prefix="root", remove_duplicate=False)]
    replaced: dict[int, nn.Module | None] = {}
    for path, layer in layers:
        if id(layer) not in replaced:
            replaced[id(layer)] = replacement(path.removeprefix("root").removeprefix("."), layer)
        new = replaced[id(layer)]
        if new is not None:
            root.set_submodule(path, new)
    return root["root"]
