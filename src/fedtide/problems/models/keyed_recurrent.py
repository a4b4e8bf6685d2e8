"""Recurrent layers whose dropout masks are pure functions of a key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedtide.problems.models.dropout_masks import DropoutMasks

_FUNCTIONS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class _KeyedRecurrent(nn.RNNBase):
    """A recurrent layer in training, with what passes between its layers dropped by keyed masks.

    PyTorch's own layers draw these masks from the global generator. So they still do for packed
    sequences.

    Args:
        layer: the layer whose settings and parameters it takes over, under the same names.
        masks: the source of the masks.
    """

    def __init__(self, layer: nn.RNNBase, masks: DropoutMasks) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(layer.__dict__)
        self.masks = masks

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the layer returns."""
        with _DropoutBetweenLayers(self.masks):
            return super().forward(*args, **kwargs)


class KeyedLSTM(_KeyedRecurrent, nn.LSTM):
    """`nn.LSTM` with keyed dropout."""


class KeyedGRU(_KeyedRecurrent, nn.GRU):
    """`nn.GRU` with keyed dropout."""


class KeyedRNN(_KeyedRecurrent, nn.RNN):
    """`nn.RNN` with keyed dropout."""


KEYED_RECURRENT: dict[type[nn.Module], type[_KeyedRecurrent]] = {
    nn.LSTM: KeyedLSTM,
    nn.GRU: KeyedGRU,
    nn.RNN: KeyedRNN,
}
"""What takes the place of each recurrent layer."""


class _DropoutBetweenLayers(TorchFunctionMode):
    """A context in which a recurrent layer of several layers is computed layer by layer."""

    def __init__(self, masks: DropoutMasks) -> None:
        super().__init__()
        self._masks = masks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the function returns."""
        if func not in _FUNCTIONS or not isinstance(args[2], list):
            return func(*args, **(kwargs or {}))
        x, initial, weights, biases, layers, p, training, bidirectional, batch_first = args
        single = isinstance(initial, Tensor)
        states = zip(
            *(part.chunk(layers) for part in ((initial,) if single else initial)), strict=True
        )
        size, ends = len(weights) // layers, []
        for layer, own in enumerate(states):
            part = weights[layer * size : (layer + 1) * size]
            given = own[0] if single else own
            x, *end = func(x, given, part, biases, 1, 0.0, training, bidirectional, batch_first)
            ends.append(end)
            if layer < layers - 1:
                x = self._masks.drop(x, p)
        return x, *(torch.cat(parts) for parts in zip(*ends, strict=True))
