"""Batch normalisation as a pure function of its running statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedtide.errors import InvalidInputError
from fedtide.problems.layout import Params
from fedtide.problems.models.layer_replacement import replace_layers

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NAMES = ("running_mean", "running_var", "num_batches_tracked")


class RunningStatistics:
    """The running statistics during one forward pass: layers read them and replace them.

    Attributes:
        initial: the statistics of the network, by name; `num_batches_tracked` as a float.
        sample_mask: False for samples of the minibatch that are padding, (B,); None: no padding.
    """

    def __init__(self, initial: Params) -> None:
        self.initial = initial
        self.sample_mask: Tensor | None = None
        self._current: Params = {}

    def start_pass(self, values: Params, sample_mask: Tensor | None) -> None:
        """Start a forward pass with these statistics."""
        self._current, self.sample_mask = dict(values), sample_mask

    def end_pass(self) -> Params:
        """Return the statistics after the forward pass."""
        values = self._current
        self._current, self.sample_mask = {}, None
        return values

    def read(self, layer: str) -> list[Tensor]:
        """Return mean, variance and number of batches of a layer."""
        return [self._current[layer + name] for name in _NAMES]

    def replace(self, layer: str, *values: Tensor) -> None:
        """Replace mean, variance and number of batches of a layer."""
        self._current.update({layer + n: v for n, v in zip(_NAMES, values, strict=True)})


class PureBatchNorm(nn.Module):
    """A batch normalisation in training that leaves out padding and changes nothing in place.

    With mean m, biased variance v and unbiased variance u of the n values of a channel,

        output = (x - m) / √(v + ε) · weight + bias,
        mean ← mean + β (m - mean),  var ← var + β (u - var)

    with the layer's momentum β, or 1 / (number of batches) if it is None. A single value (n = 1)
    has no variance: it leaves `var` as it is, where PyTorch raises an error.

    Args:
        name: prefix of the layer's statistics.
        layer: the layer whose settings and parameters it takes over.
        statistics: of the pass.
    """

    def __init__(self, name: str, layer: Any, statistics: RunningStatistics) -> None:
        super().__init__()
        self.name, self.eps, self.momentum = name, layer.eps, layer.momentum
        self.weight, self.bias, self.statistics = layer.weight, layer.bias, statistics

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x, (B, C, ...)."""
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        over, channels = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
        real = self._sample_weights(values)
        count = real.sum() * (x.numel() // (x.shape[0] * x.shape[1]))
        rows = real.view(-1, *[1] * (x.dim() - 1))
        mean = (values * rows).sum(over) / count
        centred = values - mean.view(channels)
        squares = (centred.square() * rows).sum(over)
        self._record(mean.detach(), squares.detach() / (count - 1).clamp(min=1), count)
        output: Tensor = centred * (squares / count + self.eps).rsqrt().view(channels)
        if self.weight is not None:
            output = output * self.weight.view(channels) + self.bias.view(channels)
        return output.to(x.dtype)

    def _sample_weights(self, x: Tensor) -> Tensor:
        """Return 1 for each sample of the minibatch and 0 for padding, (B,)."""
        mask = self.statistics.sample_mask
        if mask is None:
            return x.new_ones(len(x))
        if len(mask) != len(x):
            raise InvalidInputError(
                f"model: batch normalisation {self.name.rstrip('.')!r} gets {len(x)} rows for "
                f"{len(mask)} samples, so padding cannot be left out; keep the samples in the "
                "first dimension, or give a batch_size that no client falls short of"
            )
        return mask.to(x.dtype)

    def _record(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        old_mean, old_variance, batches = self.statistics.read(self.name)
        batches = batches + 1
        factor = 1 / batches if self.momentum is None else self.momentum
        moved = old_variance + factor * (variance - old_variance)
        self.statistics.replace(
            self.name,
            old_mean + factor * (mean - old_mean),
            torch.where(count > 1, moved, old_variance),
            batches,
        )


def replace_batch_norm(module: nn.Module) -> tuple[nn.Module, RunningStatistics | None]:
    """Replace layers that track statistics by pure ones; return it and the statistics, if any.

    >>> module, statistics = replace_batch_norm(nn.Sequential(nn.BatchNorm1d(2)))
    >>> sorted(statistics.initial)
    ['0.num_batches_tracked', '0.running_mean', '0.running_var']
    """
    statistics = RunningStatistics({})

    def pure(name: str, layer: nn.Module) -> nn.Module | None:
        if type(layer) not in _KINDS or layer.running_mean is None:
            return None
        prefix = f"{name}." if name else ""
        mean = layer.running_mean
        assert isinstance(mean, Tensor)
        statistics.initial |= {
            prefix + kind: getattr(layer, kind).detach().clone().to(mean.dtype) for kind in _NAMES
        }
        return PureBatchNorm(prefix, layer, statistics)

    module = replace_layers(module, pure)
    return module, statistics if statistics.initial else None
