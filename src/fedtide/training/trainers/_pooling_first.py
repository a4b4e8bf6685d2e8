"""Maximum pooling before ReLU, in networks that apply them the other way round.

Both orders give the same numbers and gradients, because ReLU does not decrease: the maximum of a
window stays its maximum, and where it is not positive, its gradient is zero. Pooled images have
fewer pixels for ReLU and its gradient, which no longer reads the images before pooling.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_RELU = {torch.relu, Tensor.relu, nn.functional.relu}
_MAXIMA = {
    *(torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    *(nn.functional.max_pool1d, nn.functional.max_pool2d, nn.functional.max_pool3d),
}


class PoolingFirst(TorchFunctionMode):
    """A context in which maximum pooling of what ReLU returned is computed first, then ReLU.

    ReLU in place, and pooling that also returns indices, are left as they are.

    >>> network = nn.Sequential(nn.ReLU(), nn.MaxPool1d(2))
    >>> with PoolingFirst():
    ...     network(torch.tensor([[-1.0, 2.0, 3.0, 1.0]]))
    tensor([[2., 3.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self._images: tuple[Tensor, ...] = ()
        self._versions: tuple[int, ...] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the function returns."""
        kwargs = kwargs or {}
        if func in _MAXIMA and self._are_images(args):
            maxima = func(self._images[0], *args[1:], **kwargs)
            if isinstance(maxima, Tensor):  # otherwise with indices
                return torch.relu(maxima)
        found = func(*args, **kwargs)
        if func in _RELU and args and found is not args[0]:
            self._images = (args[0], found)
            self._versions = _versions(self._images)
        return found

    def _are_images(self, args: tuple[Any, ...]) -> bool:
        """Return whether the first argument is the result of the last ReLU.

        If it, or what ReLU was applied to, has been changed in place since, it is not.
        """
        same = bool(args and self._images) and args[0] is self._images[1]
        return same and _versions(self._images) == self._versions


def _versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors)
