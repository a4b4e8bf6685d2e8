"""Recurrent layers made of operations that can be stacked over clients.

PyTorch's own recurrent layers change tensors in place, which `torch.func.vmap` cannot stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

States = tuple[Tensor, ...]
"""The state of a layer: h, shape (B, H); for an LSTM, (h, c)."""


class _Weights(NamedTuple):
    """The weights of a layer in one direction, named as in PyTorch's equations.

    Args:
        w_ih, w_hh: of the input and of h.
        b_ih, b_hh: the biases; None: none.
        w_hr: the projection of an LSTM's h; None: none.
    """

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None
    w_hr: Tensor | None

    @classmethod
    def of(cls, tensors: list[Tensor], biases: bool) -> _Weights:
        """Return the weights from PyTorch's flat list."""
        count = 4 if biases else 2
        b_ih, b_hh = tensors[2:4] if biases else (None, None)
        w_hr = tensors[count] if len(tensors) > count else None
        return cls(tensors[0], tensors[1], b_ih, b_hh, w_hr)


class StackableRecurrence(TorchFunctionMode):
    """A context in which `nn.LSTM`, `nn.GRU` and `nn.RNN` do not work in place.

    Packed sequences, and layers with random dropout between them, are left to PyTorch.

    >>> layer, x = torch.nn.GRU(2, 3), torch.ones(4, 1, 2)
    >>> with StackableRecurrence():
    ...     outputs, _ = layer(x)
    >>> torch.allclose(outputs, layer(x)[0])
    True
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the function returns."""
        cell = _LAYERS.get(func)
        if cell is None or not isinstance(args[2], list):  # with packed sequences, it is no list
            return func(*args, **(kwargs or {}))
        x, initial, weights, biases, layers, dropout, training, bidirectional, batch_first = args
        if dropout and training:
            return func(*args)
        directions = 2 if bidirectional else 1
        size = len(weights) // (layers * directions)
        every = [_Weights.of(weights[k : k + size], biases) for k in range(0, len(weights), size)]
        states = (initial,) if isinstance(initial, Tensor) else initial
        each = list(zip(every, zip(*states, strict=True), strict=True))
        ends: list[States] = []
        x = x.transpose(0, 1) if batch_first else x
        for layer in range(layers):
            own = each[layer * directions : (layer + 1) * directions]
            found = [_run(cell, x, *given, reverse=k > 0) for k, given in enumerate(own)]
            x = torch.cat([outputs for outputs, _ in found], dim=-1)
            ends += [end for _, end in found]
        x = x.transpose(0, 1) if batch_first else x
        return x, *(torch.stack(parts) for parts in zip(*ends, strict=True))


def _run(
    cell: _Cell, x: Tensor, weights: _Weights, states: States, reverse: bool
) -> tuple[Tensor, States]:
    """Return h at every position, (L, B, H), and the last state of one layer in one direction."""
    outputs = []
    positions = linear(x, weights.w_ih, weights.b_ih).unbind(0)
    for given in reversed(positions) if reverse else positions:
        states = cell(given, states, weights)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if reverse else outputs), states


def _lstm_cell(given: Tensor, states: States, weights: _Weights) -> States:
    h, c = states
    i, f, g, o = (given + linear(h, weights.w_hh, weights.b_hh)).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h if weights.w_hr is None else linear(h, weights.w_hr), c


def _gru_cell(given: Tensor, states: States, weights: _Weights) -> States:
    (h,) = states
    of_state = linear(h, weights.w_hh, weights.b_hh)
    r, z, n = given.chunk(3, dim=-1)
    r_h, z_h, n_h = of_state.chunk(3, dim=-1)
    n = (n + (r + r_h).sigmoid() * n_h).tanh()
    return (n + (z + z_h).sigmoid() * (h - n),)


def _tanh_cell(given: Tensor, states: States, weights: _Weights) -> States:
    return ((given + linear(states[0], weights.w_hh, weights.b_hh)).tanh(),)


def _relu_cell(given: Tensor, states: States, weights: _Weights) -> States:
    return ((given + linear(states[0], weights.w_hh, weights.b_hh)).relu(),)


_Cell = Callable[[Tensor, States, _Weights], States]
"""cell(W x + b, states, weights) = the states at the next position."""

_LAYERS: Mapping[Any, _Cell] = {
    torch.lstm: _lstm_cell,
    torch.gru: _gru_cell,
    torch.rnn_tanh: _tanh_cell,
    torch.rnn_relu: _relu_cell,
}
