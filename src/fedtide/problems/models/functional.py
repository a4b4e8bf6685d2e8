"""A network as a pure function of its parameters."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn

from fedtide.errors import InvalidInputError
from fedtide.problems.layout import Params
from fedtide.problems.models.keyed_dropout import Masks, key_dropout


class FunctionalModel:
    """A `torch.nn.Module` as two functions of its parameters: for training and for evaluation.

    Parameters that do not require gradients stay as they are in the module.

    Args:
        module: the network; it is left alone.
        example: features of two or more samples, to try the network on.
        classes: C, how many logits a sample must get.
        training_dtype: in which numbers it computes while it trains, with the parameters, logits
            and gradients outside it as they are; None: in those of the parameters.

    Attributes:
        params: the trainable parameters by name.
        draws: whether training needs a key: whether there is dropout.

    Raises:
        InvalidInputError: a network that cannot take the features, gives no logits of shape (B, C), keeps
            running statistics, or draws random numbers outside of dropout layers.
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
                "model: it has no parameters to train; leave requires_grad at True"
            )
        self._evaluating = copy.deepcopy(module).eval()
        self._dtype = training_dtype or example.dtype
        training, masks = key_dropout(copy.deepcopy(module).train().to(self._dtype))
        self._training = (training, masks)
        self.draws = masks is not None
        self._of_thread = threading.local()
        _check(training, masks, example.to(self._dtype), classes)

    def __call__(self, params: Params, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return the logits (B, C) in training; `key`, an int64 scalar, decides the dropout."""
        module, masks = self._training_module()
        if masks is not None:
            masks.begin(key)
        inside = {name: tensor.to(self._dtype) for name, tensor in params.items()}
        logits: Tensor = torch.func.functional_call(module, inside, (x.to(self._dtype),))
        return logits.to(x.dtype)

    def evaluate(self, params: Params, x: Tensor) -> Tensor:
        """Return the logits (B, C), without dropout."""
        return torch.func.functional_call(self._evaluating, params, (x,))  # type: ignore[no-any-return]

    def _training_module(self) -> tuple[nn.Module, Masks | None]:
        # functional_call exchanges the module's tensors for a moment, so threads must not share it
        if not hasattr(self._of_thread, "training"):
            module = self._training[0]
            tensors = (*module.parameters(), *module.buffers())
            # sharing the tensors lets this happen in the middle of a recording (make_fx), too
            self._of_thread.training = copy.deepcopy(self._training, {id(t): t for t in tensors})
        return self._of_thread.training  # type: ignore[no-any-return]


@torch.no_grad()
def _check(module: nn.Module, masks: Masks | None, x: Tensor, classes: int) -> None:
    """Raise InvalidInputError unless the module can be trained as a pure function; its state is used up."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    if masks is not None:
        masks.begin(torch.zeros((), dtype=torch.int64, device=x.device))
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        logits = _tried(module, x)
        random = not torch.equal(state, torch.get_rng_state())
    if masks is not None:
        masks.begin(None)
    if not isinstance(logits, Tensor) or logits.shape != (len(x), classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidInputError(
            f"model: for {len(x)} samples of {classes} classes its output should have shape "
            f"({len(x)}, {classes}), got {got}; set the last layer's width to {classes}"
        )
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            layer = name.rpartition(".")[0] or type(module).__name__
            raise InvalidInputError(
                f"model: layer {layer!r} changes its buffer {name!r} in training, which clients "
                f"cannot share; use GroupNorm, or track_running_stats=False"
            )
    if random:
        raise InvalidInputError(
            "model: its forward pass draws from torch's global generator (as RReLU or "
            "functional.dropout do), so a step could not be repeated; use layers without random "
            "numbers, or nn.Dropout, whose masks fedtide draws itself"
        )


def _tried(module: nn.Module, x: Tensor) -> object:
    try:
        return module(x)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(
            f"model: it cannot take features of shape {tuple(x.shape[1:])} ({reason}); choose one "
            f"that fits the data set"
        ) from error
