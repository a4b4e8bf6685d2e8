"""A network as a pure function of its parameters."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn

from fedtide.errors import InvalidInputError
from fedtide.problems.layout import Params
from fedtide.problems.models.keyed_dropout import DropoutMasks, replace_dropout


class FunctionalModel:
    """A `torch.nn.Module` as two functions of its parameters: for training and for evaluation.

    Parameters that do not require gradients keep their values.

    Args:
        module: the network, which is copied.
        example: features of two or more samples, for a trial run of the network.
        classes: C, the number of logits per sample.
        training_dtype: the dtype of the computations in training; parameters, logits and gradients
            keep their own. None: the dtype of the example.

    Attributes:
        params: the trainable parameters by name.
        draws: whether training needs a key, because the network has dropout.

    Raises:
        InvalidInputError: the network does not fit the features, does not return logits of shape
            (B, C), keeps running statistics, or draws random numbers outside dropout layers.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Tensor,
        classes: int,
        training_dtype: torch.dtype | None = None,
    ) -> None:
        self.params: Params = {
            name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad
        }
        if not self.params:
            raise InvalidInputError(
                "model: it has no parameters to train; set requires_grad to True"
            )
        self._evaluating = copy.deepcopy(module).eval()
        self._dtype = training_dtype or example.dtype
        training, masks = replace_dropout(copy.deepcopy(module).train().to(self._dtype))
        self._training = (training, masks)
        self.draws = masks is not None
        self._thread_local = threading.local()
        _check_pure(training, masks, example.to(self._dtype), classes)

    def __call__(self, params: Params, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return the logits (B, C) in training; `key`, an int64 scalar, determines the dropout."""
        module, masks = self._training_module()
        if masks is not None:
            masks.start_pass(key)
        converted = {name: tensor.to(self._dtype) for name, tensor in params.items()}
        logits: Tensor = torch.func.functional_call(module, converted, (x.to(self._dtype),))
        return logits.to(x.dtype)

    def evaluate(self, params: Params, x: Tensor) -> Tensor:
        """Return the logits (B, C), without dropout."""
        return torch.func.functional_call(self._evaluating, params, (x,))  # type: ignore[no-any-return]

    def _training_module(self) -> tuple[nn.Module, DropoutMasks | None]:
        # functional_call swaps the module's tensors temporarily, so each thread has its own copy
        if not hasattr(self._thread_local, "training"):
            module = self._training[0]
            tensors = (*module.parameters(), *module.buffers())
            # shared tensors allow this copy during tracing (make_fx), too
            self._thread_local.training = copy.deepcopy(self._training, {id(t): t for t in tensors})
        return self._thread_local.training  # type: ignore[no-any-return]


@torch.no_grad()
def _check_pure(module: nn.Module, masks: DropoutMasks | None, x: Tensor, classes: int) -> None:
    """Raise InvalidInputError unless the module is a pure function in training."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    if masks is not None:
        masks.start_pass(torch.zeros((), dtype=torch.int64, device=x.device))
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        logits = _run(module, x)
        random = not torch.equal(state, torch.get_rng_state())
    if masks is not None:
        masks.start_pass(None)
    if not isinstance(logits, Tensor) or logits.shape != (len(x), classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidInputError(
            f"model: the output for {len(x)} samples of {classes} classes should have shape "
            f"({len(x)}, {classes}), got {got}; set the last layer's width to {classes}"
        )
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            layer = name.rpartition(".")[0] or type(module).__name__
            raise InvalidInputError(
                f"model: layer {layer!r} changes its buffer {name!r} in training; use GroupNorm, "
                f"or track_running_stats=False"
            )
    if random:
        raise InvalidInputError(
            "model: the forward pass draws from torch's global generator (as RReLU and "
            "functional.dropout do), so a step is not reproducible; use nn.Dropout, or layers "
            "without random numbers"
        )


def _run(module: nn.Module, x: Tensor) -> object:
    try:
        return module(x)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(
            f"model: it cannot process features of shape {tuple(x.shape[1:])} ({reason}); choose "
            f"one that fits the data set"
        ) from error
