"""Batch normalisation as a pure function of its running statistics."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from fedtide.problems.layout import Params
from fedtide.problems.models.layer_replacement import replace_layers

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NAMES = ("running_mean", "running_var", "num_batches_tracked")


class RunningStatistics:
    """The running statistics during one forward pass: layers read them and replace them.

    Layers without statistics of their own only read which samples are padding.

    Attributes:
        initial: the statistics of the network, by name; `num_batches_tracked` as a float.
        sample_mask: False for samples of the minibatch that are padding, (B,); None: no padding.
        fewest_values: the smallest number of values per channel that a layer has had so far.
    """

    def __init__(self, initial: Params) -> None:
        self.initial = initial
        self.fewest_values = math.inf
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
    """Batch normalisation in training that leaves out padding and changes nothing in place.

    With mean m, biased variance v and unbiased variance u of the n values of a channel,

        output = (x - m) / √(v + ε) · weight + bias,
        mean ← mean + β (m - mean),  var ← var + β (u - var)

    with the layer's momentum β, or 1 / (number of batches) if it is None. A single value (n = 1)
    has no variance: it leaves `var` as it is, where PyTorch raises an error. A layer with
    `track_running_stats=False` has no mean and var to update.

    Args:
        name: prefix of the layer's statistics.
        layer: the layer whose settings and parameters it takes over.
        statistics: of the pass.
    """

    def __init__(self, name: str, layer: Any, statistics: RunningStatistics) -> None:
        super().__init__()
        self.name, self.eps, self.momentum = name, layer.eps, layer.momentum
        self.weight, self.bias, self.statistics = layer.weight, layer.bias, statistics
        self.tracks = layer.running_mean is not None

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x, (B, C, ...)."""
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        mask = self.statistics.sample_mask
        count = len(values) * values.shape[2:].numel()
        self.statistics.fewest_values = min(self.statistics.fewest_values, count)
        if mask is None and count > 1:
            return self._normalise_all(values).to(x.dtype)
        real = values.new_ones(len(values)) if mask is None else mask
        return self._normalise_real(values, real.to(values.dtype)).to(x.dtype)

    def _normalise_all(self, x: Tensor) -> Tensor:
        """Return all values normalised by PyTorch's own function, which is faster."""
        if self.tracks:
            variance, mean = torch.var_mean(x.detach(), [0, *range(2, x.dim())])
            self._record(mean, variance)
        weight, bias = (p if p is None else p.to(x.dtype) for p in (self.weight, self.bias))
        return batch_norm(x, None, None, weight, bias, training=True, eps=self.eps)

    def _normalise_real(self, x: Tensor, real: Tensor) -> Tensor:
        """Return the values normalised by the statistics of samples with 1 in `real`, (B,)."""
        over, channels = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
        rows = real.view(-1, *[1] * (x.dim() - 1))
        count = real.sum() * x[0, 0].numel()
        mean = (x * rows).sum(over) / count
        centred = x - mean.view(channels)
        squares = (centred.square() * rows).sum(over)
        if self.tracks:
            old = self.statistics.read(self.name)[1]
            unbiased = squares.detach() / (count - 1).clamp(min=1)
            self._record(mean.detach(), torch.where(count > 1, unbiased, old))
        output: Tensor = centred * (squares / count + self.eps).rsqrt().view(channels)
        if self.weight is not None:
            output = output * self.weight.view(channels) + self.bias.view(channels)
        return output

    def _record(self, mean: Tensor, variance: Tensor) -> None:
        old_mean, old_variance, batches = self.statistics.read(self.name)
        batches = batches + 1
        factor = 1 / batches if self.momentum is None else self.momentum
        self.statistics.replace(
            self.name,
            old_mean + factor * (mean - old_mean),
            old_variance + factor * (variance - old_variance),
            batches,
        )


def replace_batch_norm(module: nn.Module) -> tuple[nn.Module, RunningStatistics | None]:
    """Replace layers that normalise over the minibatch by pure ones.

    Layers in evaluation mode that have running statistics normalise by these and stay as they are.
    Returns the network and the statistics that its layers share; None if none was replaced.

    >>> module, statistics = replace_batch_norm(nn.Sequential(nn.BatchNorm1d(2)))
    >>> sorted(statistics.initial)
    ['0.num_batches_tracked', '0.running_mean', '0.running_var']
    """
    statistics = RunningStatistics({})
    replaced = []

    def pure(name: str, layer: nn.Module) -> nn.Module | None:
        if type(layer) not in _KINDS:
            return None
        prefix, mean = f"{name}." if name else "", layer.running_mean
        if isinstance(mean, Tensor):
            if not layer.training:
                return None
            statistics.initial |= {
                prefix + kind: getattr(layer, kind).detach().clone().to(mean.dtype)
                for kind in _NAMES
            }
        replaced.append(name)
        return PureBatchNorm(prefix, layer, statistics)

    module = replace_layers(module, pure)
    return module, statistics if replaced else None
