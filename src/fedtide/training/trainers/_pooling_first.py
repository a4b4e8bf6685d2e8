"""Max pooling before ReLU, in networks that apply ReLU first.

Both orders give the same numbers and the same gradients, because ReLU is monotone: the maximum of a
window stays its maximum, and where it is not positive, its gradient is zero. Pooled images have
fewer pixels for ReLU and for its gradient. That gradient then reads the pooled images only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_RELU = {torch.relu, Tensor.relu, nn.functional.relu}
_MAXIMA = {
    *(torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    *(nn.functional.max_pool1d, nn.functional.max_pool2d, nn.functional.max_pool3d),
}


class _Call(NamedTuple):
    """A call of ReLU: its input, its output, and whether it is differentiated."""

    x: Tensor
    y: Tensor
    with_gradient: bool


class PoolingFirst(TorchFunctionMode):
    """A context in which max pooling directly after ReLU is computed before it.

    Nothing else may happen between the two, such as a change in place. ReLU in place, dilated
    pooling, whose windows may contain nothing but padding, and pooling that also returns indices
    are left as they are.

    >>> network = nn.Sequential(nn.ReLU(), nn.MaxPool1d(2))
    >>> with PoolingFirst():
    ...     network(torch.tensor([[-1.0, 2.0, 3.0, 1.0]]))
    tensor([[2., 3.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: _Call | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the function returns; for such pooling, ReLU of the pooled input."""
        kwargs = kwargs or {}
        relu, self._last = self._last, None
        if relu is not None and func in _MAXIMA and _pools(relu, args, kwargs):
            return torch.relu(func(relu.x, *args[1:], **kwargs))
        found = func(*args, **kwargs)
        if func in _RELU and args and found is not args[0]:
            self._last = _Call(args[0], found, torch.is_grad_enabled())
        return found


def _pools(relu: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether these are the arguments of a pooling that may be computed before ReLU."""
    input, *others = args or (None,)
    if input is not relu.y or relu.with_gradient != torch.is_grad_enabled():
        return False
    if len(others) > 3 or kwargs.get("return_indices"):  # dilation or more by position
        return False
    return kwargs.get("dilation", 1) in (1, (1,), (1, 1), (1, 1, 1))
